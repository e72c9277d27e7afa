import java.net.URI;
import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/** Writes or deletes plain HDFS files: what a stream processor does without stowfs. */
public class PlainFiles {
    static FileSystem fs;
    static String dir;

    interface Work {
        void run(int writer) throws Exception;
    }

    static void onThreads(int writers, Work work) throws Exception {
        List<Thread> threads = new ArrayList<>();
        for (int w = 0; w < writers; w++) {
            int writer = w;
            threads.add(new Thread(() -> {
                try {
                    work.run(writer);
                } catch (Throwable e) {
                    e.printStackTrace();
                    Runtime.getRuntime().halt(1);
                }
            }));
        }
        for (Thread t : threads) t.start();
        for (Thread t : threads) t.join();
    }

    static Path path(int writer, int i) {
        return new Path(dir + "/" + String.format("%02d-%06d-8b046a4f-40a4-4c23-b52c-19", writer, i));
    }

    static void write(Path path, int size, byte[] piece, boolean hsync) throws Exception {
        if (fs.exists(path)) throw new IllegalStateException(path + " exists");
        FSDataOutputStream out = fs.create(path, false);
        for (int left = size; left > 0; left -= piece.length) {
            out.write(piece, 0, Math.min(left, piece.length));
        }
        if (hsync) out.hsync();
        out.close();
    }

    public static void main(String[] args) throws Exception {
        Configuration conf = new Configuration();
        conf.set("dfs.replication", "3");
        fs = FileSystem.get(URI.create(args[0]), conf);
        dir = args[1];
        int writers = Integer.parseInt(args[3]);
        int each = Integer.parseInt(args[4]);
        if (args[2].equals("delete")) {
            onThreads(writers, w -> {
                for (int i = 0; i < each; i++) fs.delete(path(w, i), false);
            });
            return;
        }
        int warm = Integer.parseInt(args[5]);
        String[] sizes = args[6].split(",");
        int piece = Integer.parseInt(args[7]);
        boolean hsync = Boolean.parseBoolean(args[8]);
        long every = Long.parseLong(args[9]);
        byte[] data = new byte[piece];
        onThreads(writers, w -> {
            for (int i = 0; i < warm; i++) {
                Path path = new Path(dir + "/warm-" + w + "-" + i);
                write(path, Integer.parseInt(sizes[0]), data, hsync);
            }
        });
        long[][] took = new long[writers][each];
        long begun = System.nanoTime();
        onThreads(writers, w -> {
            for (int i = 0; i < each; i++) {
                long from = System.nanoTime();
                write(path(w, i), Integer.parseInt(sizes[(w * each + i) % sizes.length]), data, hsync);
                took[w][i] = (System.nanoTime() - from) / 1000;
                long rest = every - took[w][i] / 1000;
                if (every > 0 && rest > 0) Thread.sleep(rest);
            }
        });
        long all = (System.nanoTime() - begun) / 1000;
        StringBuilder text = new StringBuilder();
        for (long[] ofWriter : took) for (long t : ofWriter) text.append("one ").append(t).append('\n');
        System.out.print(text.append("all ").append(all).append('\n'));
        System.out.flush();
    }
}
