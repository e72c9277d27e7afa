import java.io.File;
import java.nio.file.FileStore;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFileAttributeView;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.FsStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.util.DiskChecker;

/** What Java and Hadoop make of the space of a filesystem; ends with an error if it is nothing sensible. */
public class Space {
    static void check(String what, long total, long used, long free) {
        System.out.println(what + ": " + total + " bytes, " + used + " used, " + free + " free");
        if (total <= 0 || used < 0 || free <= 0 || free > total || used > total) {
            throw new IllegalStateException(what);
        }
    }

    public static void main(String[] args) throws Exception {
        File dir = new File(args[0]);
        check("File", dir.getTotalSpace(), dir.getTotalSpace() - dir.getFreeSpace(), dir.getUsableSpace());
        FileStore store = Files.getFileStore(dir.toPath());
        long total = store.getTotalSpace();
        check("FileStore", total, total - store.getUnallocatedSpace(), store.getUsableSpace());
        if (store.isReadOnly() || !store.supportsFileAttributeView(PosixFileAttributeView.class)) {
            throw new IllegalStateException(store.toString());
        }
        FsStatus status = FileSystem.getLocal(new Configuration()).getStatus(new Path(args[0]));
        check("Hadoop", status.getCapacity(), status.getUsed(), status.getRemaining());
        // As YARN and MapReduce do before they use a local directory: it is made, written, renamed in.
        DiskChecker.checkDirWithDiskIo(new File(dir, "made/by/hadoop"));
        System.out.println("ok");
    }
}
