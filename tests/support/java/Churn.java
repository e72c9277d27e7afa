import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.File;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.channels.Channels;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.*;
import java.util.concurrent.*;

/**
 * The calls that Flink makes for incremental RocksDB checkpoints, in their order and sizes, with
 * contents that can be verified.
 *
 * <pre>
 * run DIR SEED CHECKPOINTS FSYNC   continues from the newest checkpoint; prints each that was completed
 * restore DIR N                    the newest checkpoint is N or later, and every file it names is whole
 * </pre>
 */
public class Churn {
    static final int SUBTASKS = 2, THREADS = 4, NEW_FILES = 6, RETAINED = 2, BLOCK = 20_480;

    /** A file of `shared`: which bytes it holds follows from its name. */
    record Sst(String name, int size) {}

    final Path dir;
    final boolean fsync;
    final Random random;
    final ExecutorService tasks = Executors.newFixedThreadPool(SUBTASKS * THREADS);
    final ExecutorService io = Executors.newFixedThreadPool(4);
    /** What each subtask's RocksDB consists of. */
    final List<List<Sst>> alive = new ArrayList<>();
    final TreeMap<Long, List<Sst>> retained = new TreeMap<>();
    long files;

    Churn(Path dir, long seed, boolean fsync) {
        this.dir = dir;
        this.random = new Random(seed);
        this.fsync = fsync;
        for (int s = 0; s < SUBTASKS; s++) {
            alive.add(new ArrayList<>());
        }
    }

    public static void main(String[] args) throws Exception {
        Path dir = Path.of(args[1]);
        try {
            if (args[0].equals("run")) {
                new Churn(dir, Long.parseLong(args[2]), Boolean.parseBoolean(args[4])).run(Long.parseLong(args[3]));
            } else {
                restore(dir, Long.parseLong(args[2]));
            }
        } catch (Throwable e) {
            e.printStackTrace();
            // The threads of the pools must not keep it alive.
            System.exit(1);
        }
        System.exit(0);
    }

    void run(long checkpoints) throws Exception {
        makeDirs(dir.resolve("shared"));
        makeDirs(dir.resolve("taskowned"));
        long newest = newest(dir);
        // As a CLAIM would: what the newest checkpoint names is ours from now on.
        if (newest >= 0) {
            List<Sst> claimed = readMetadata(dir.resolve("chk-" + newest).resolve("_metadata"));
            retained.put(newest, claimed);
            for (int i = 0; i < claimed.size(); i++) {
                alive.get(i % SUBTASKS).add(claimed.get(i));
            }
        }
        // A crash may have come after the directory was made: the next number is above all of them.
        long id = Math.max(newest, newestDir(dir)) + 1;
        for (long done = 0; done < checkpoints; done++, id++) {
            checkpoint(id);
            System.out.println("completed " + id);
        }
        System.out.println("files " + files);
    }

    void checkpoint(long id) throws Exception {
        Path chk = dir.resolve("chk-" + id);
        makeDirs(chk);
        List<Future<Sst>> uploads = new ArrayList<>();
        for (int s = 0; s < SUBTASKS; s++) {
            compact(alive.get(s));
            for (int f = 0; f < NEW_FILES; f++) {
                int size = random.nextInt(10) == 0 ? random.nextInt(3_000_000) : 1 + random.nextInt(120_000);
                String name = new UUID(random.nextLong(), random.nextLong()).toString();
                uploads.add(tasks.submit(() -> upload(new Sst(name, size))));
            }
        }
        for (int i = 0; i < uploads.size(); i++) {
            alive.get(i / NEW_FILES).add(uploads.get(i).get());
        }
        List<Sst> all = new ArrayList<>();
        alive.forEach(all::addAll);
        writeMetadata(chk, all);
        retained.put(id, all);
        files += uploads.size() + 1;
        while (retained.size() > RETAINED) {
            subsume(retained.firstKey());
        }
    }

    /** RocksDB merged some files away. */
    void compact(List<Sst> ssts) {
        while (ssts.size() > 4 * NEW_FILES) {
            ssts.remove(random.nextInt(ssts.size()));
        }
    }

    Sst upload(Sst sst) throws IOException {
        File file = dir.resolve("shared").resolve(sst.name).toFile();
        if (!file.getParentFile().isDirectory() || file.exists()) {
            throw new IOException("no directory for it, or there already: " + file);
        }
        byte[] bytes = contents(sst);
        try (FileOutputStream out = new FileOutputStream(file)) {
            for (int at = 0; at < bytes.length; at += BLOCK) {
                out.write(bytes, at, Math.min(BLOCK, bytes.length - at));
            }
            if (out.getChannel().position() != sst.size) {
                throw new IOException("wrong position in " + file);
            }
            if (fsync) {
                out.getFD().sync();
            }
        }
        return sst;
    }

    /** Hundreds of writes of a few bytes, under another name until it is whole. */
    void writeMetadata(Path chk, List<Sst> ssts) throws IOException {
        Path target = chk.resolve("_metadata");
        if (Files.exists(target)) {
            throw new IOException("there already: " + target);
        }
        Path part = chk.resolve("._metadata.inprogress." + UUID.randomUUID());
        long size;
        try (FileChannel channel = FileChannel.open(part, StandardOpenOption.WRITE, StandardOpenOption.CREATE_NEW)) {
            DataOutputStream out = new DataOutputStream(Channels.newOutputStream(channel));
            out.writeInt(ssts.size());
            for (Sst sst : ssts) {
                out.writeUTF(sst.name);
                out.writeInt(sst.size);
                // What an entry has besides, in pieces as small as Flink's.
                for (int i = 0; i < 12; i++) {
                    out.writeLong(i);
                }
            }
            size = channel.position();
            if (fsync) {
                channel.force(true);
            }
        }
        if (Files.size(part) != size) {
            throw new IOException(part + " has " + Files.size(part) + " bytes, not " + size);
        }
        Files.move(part, target, StandardCopyOption.ATOMIC_MOVE);
    }

    static List<Sst> readMetadata(Path path) throws IOException {
        try (DataInputStream in = new DataInputStream(new FileInputStream(path.toFile()))) {
            List<Sst> ssts = new ArrayList<>();
            for (int n = in.readInt(); n > 0; n--) {
                ssts.add(new Sst(in.readUTF(), in.readInt()));
                for (int i = 0; i < 12; i++) {
                    if (in.readLong() != i) {
                        throw new IOException("WRONG BYTES in " + path);
                    }
                }
            }
            if (in.read() != -1) {
                throw new IOException("WRONG SIZE of " + path);
            }
            return ssts;
        }
    }

    void subsume(long id) throws Exception {
        Set<Sst> dropped = new HashSet<>(retained.remove(id));
        retained.values().forEach(dropped::removeAll);
        List<Future<?>> deletes = new ArrayList<>();
        for (Sst sst : dropped) {
            deletes.add(io.submit(() -> delete(dir.resolve("shared").resolve(sst.name))));
        }
        for (Future<?> d : deletes) {
            d.get();
        }
        Path chk = dir.resolve("chk-" + id);
        delete(chk.resolve("_metadata"));
        String[] left = chk.toFile().list();
        if (left == null || left.length != 0) {
            throw new IOException(chk + " is not empty: " + Arrays.toString(left));
        }
        delete(chk);
    }

    /** File.delete: unlink, and rmdir if it is a directory. */
    static void delete(Path path) {
        File file = path.toFile();
        if (!file.exists() || !file.delete() || file.exists()) {
            throw new IllegalStateException("cannot delete, or still there: " + path);
        }
    }

    static void makeDirs(Path path) throws IOException {
        File file = path.toFile();
        if (!file.isDirectory()) {
            if (file.getParentFile() != null) {
                makeDirs(file.getParentFile().toPath());
            }
            if (!file.mkdir() && !file.isDirectory()) {
                throw new IOException("cannot make " + path);
            }
        }
    }

    static long newest(Path dir) {
        return newest(dir, true);
    }

    static long newestDir(Path dir) {
        return newest(dir, false);
    }

    static long newest(Path dir, boolean complete) {
        long newest = -1;
        for (File f : Objects.requireNonNullElse(dir.toFile().listFiles(), new File[0])) {
            if (f.getName().startsWith("chk-") && (!complete || new File(f, "_metadata").exists())) {
                newest = Math.max(newest, Long.parseLong(f.getName().substring(4)));
            }
        }
        return newest;
    }

    static void restore(Path dir, long atLeast) throws Exception {
        long newest = newest(dir);
        if (newest < atLeast) {
            throw new IllegalStateException("LOST: the newest checkpoint is " + newest + ", not " + atLeast);
        }
        if (newest < 0) {
            System.out.println("restored -1 of 0 files");
            return;
        }
        List<Sst> ssts = readMetadata(dir.resolve("chk-" + newest).resolve("_metadata"));
        ExecutorService pool = Executors.newFixedThreadPool(SUBTASKS * THREADS);
        List<Future<?>> reads = new ArrayList<>();
        for (Sst sst : ssts) {
            reads.add(pool.submit(() -> read(dir.resolve("shared").resolve(sst.name), sst)));
        }
        for (Future<?> r : reads) {
            r.get();
        }
        System.out.println("restored " + newest + " of " + ssts.size() + " files");
    }

    static Void read(Path path, Sst sst) throws IOException {
        byte[] expected = contents(sst);
        byte[] buffer = new byte[8192];
        int at = 0;
        try (FileInputStream in = new FileInputStream(path.toFile())) {
            for (int n; (n = in.read(buffer)) != -1; at += n) {
                if (at + n > expected.length || !Arrays.equals(buffer, 0, n, expected, at, at + n)) {
                    throw new IOException("WRONG BYTES in " + path + " from " + at);
                }
            }
        }
        if (at != sst.size) {
            throw new IOException("WRONG SIZE of " + path + ": " + at + ", not " + sst.size);
        }
        return null;
    }

    static byte[] contents(Sst sst) {
        byte[] bytes = new byte[sst.size];
        new Random(sst.name.hashCode() * 31L + sst.size).nextBytes(bytes);
        return bytes;
    }
}
