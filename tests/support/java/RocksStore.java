import java.io.File;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Random;
import org.rocksdb.*;

/**
 * A RocksDB in a given directory, with buffers so small that many files come and go.
 *
 * <pre>
 * exercise DIR MODE   writes, flushes, compacts, checkpoints, reopens and verifies; MODE: plain, direct, mmap
 * write DIR FROM      synced batches from number FROM on, for ever; prints each batch that was acknowledged
 * reopen DIR MODE     what `exercise` left is there
 * verify DIR N C      every number below N is there, and the newest checkpoint, C or later, is whole
 * </pre>
 *
 * Number i is stored under key(i mod KEYS), so that most writes supersede an older one.
 */
public class RocksStore {
    static final int KEYS = 20_000;
    static final int BATCH = 200;
    /** How many `exercise` writes. */
    static final long NUMBERS = 60_000;

    public static void main(String[] args) throws Exception {
        Path dir = Path.of(args[1]);
        RocksDB.loadLibrary();
        switch (args[0]) {
            case "exercise" -> exercise(dir, args[2]);
            case "write" -> write(dir, Long.parseLong(args[2]));
            case "reopen" -> reopen(dir, args[2], NUMBERS);
            case "verify" -> verify(dir, Long.parseLong(args[2]), Long.parseLong(args[3]));
            default -> throw new IllegalArgumentException(args[0]);
        }
    }

    static Options options(String mode) {
        Options o = new Options()
                .setCreateIfMissing(true)
                .setParanoidChecks(true)
                .setWriteBufferSize(128 << 10)
                .setMaxWriteBufferNumber(3)
                .setTargetFileSizeBase(64 << 10)
                .setMaxBytesForLevelBase(512 << 10)
                .setLevel0FileNumCompactionTrigger(4)
                .setMaxBackgroundJobs(2)
                .setKeepLogFileNum(2)
                .setCompressionType(CompressionType.NO_COMPRESSION);
        switch (mode) {
            case "plain" -> o.setBytesPerSync(32 << 10).setWalBytesPerSync(32 << 10);
            case "direct" -> o.setUseDirectReads(true).setUseDirectIoForFlushAndCompaction(true);
            case "mmap" -> o.setAllowMmapReads(true).setAllowMmapWrites(true);
            default -> throw new IllegalArgumentException(mode);
        }
        return o;
    }

    static byte[] key(long k) {
        return String.format("key-%08d", k).getBytes(StandardCharsets.UTF_8);
    }

    /** The number, and bytes that follow from it. */
    static byte[] value(long i) {
        byte[] tail = new byte[100 + (int) (i % 57)];
        new Random(i).nextBytes(tail);
        byte[] number = (i + " ").getBytes(StandardCharsets.UTF_8);
        byte[] all = Arrays.copyOf(number, number.length + tail.length);
        System.arraycopy(tail, 0, all, number.length, tail.length);
        return all;
    }

    static long number(byte[] value) {
        String text = new String(value, StandardCharsets.ISO_8859_1);
        return Long.parseLong(text.substring(0, text.indexOf(' ')));
    }

    static void exercise(Path dir, String mode) throws Exception {
        long numbers = NUMBERS;
        int checkpoints = 5;
        try (Options o = options(mode);
                RocksDB db = RocksDB.open(o, dir.resolve("db").toString());
                WriteOptions fast = new WriteOptions();
                FlushOptions wait = new FlushOptions().setWaitForFlush(true)) {
            for (int c = 1; c <= checkpoints; c++) {
                long from = numbers * (c - 1) / checkpoints, to = numbers * c / checkpoints;
                for (long i = from; i < to; i++) {
                    db.put(fast, key(i % KEYS), value(i));
                }
                if (c % 2 == 0) {
                    db.flush(wait);
                }
                if (c % 3 == 0) {
                    db.compactRange();
                }
                checkpoint(db, dir.resolve("checkpoint-" + to));
            }
            check(db, numbers, true);
        }
        try (Options o = options(mode); RocksDB db = RocksDB.open(o, dir.resolve("db").toString())) {
            check(db, numbers, true);
            db.verifyChecksum();
        }
        for (int c = 1; c <= checkpoints; c++) {
            long to = numbers * c / checkpoints;
            try (Options o = options(mode);
                    RocksDB db = RocksDB.openReadOnly(o, dir.resolve("checkpoint-" + to).toString())) {
                check(db, to, true);
                db.verifyChecksum();
            }
        }
        // The one may go without harm to the others that share its files.
        delete(dir.resolve("db").toFile());
        delete(dir.resolve("checkpoint-" + numbers / checkpoints).toFile());
        reopen(dir, mode, numbers);
        System.out.println("exercised " + mode);
    }

    static void reopen(Path dir, String mode, long numbers) throws Exception {
        try (Options o = options(mode);
                RocksDB db = RocksDB.open(o, dir.resolve("checkpoint-" + numbers).toString())) {
            check(db, numbers, true);
            db.verifyChecksum();
        }
    }

    static void write(Path dir, long from) throws Exception {
        try (Options o = options("plain");
                RocksDB db = RocksDB.open(o, dir.resolve("db").toString());
                WriteOptions sync = new WriteOptions().setSync(true)) {
            for (long i = from, n = 1; ; n++) {
                try (WriteBatch batch = new WriteBatch()) {
                    for (int b = 0; b < BATCH; b++, i++) {
                        batch.put(key(i % KEYS), value(i));
                    }
                    db.write(sync, batch);
                }
                System.out.println("acknowledged " + i);
                if (n % 50 == 0) {
                    checkpoint(db, dir.resolve("checkpoint-" + i));
                    System.out.println("checkpoint " + i);
                }
            }
        }
    }

    static void verify(Path dir, long n, long checkpoint) throws Exception {
        long newest = -1;
        File[] files = dir.toFile().listFiles((d, name) -> name.matches("checkpoint-[0-9]+"));
        for (File f : files) {
            newest = Math.max(newest, Long.parseLong(f.getName().substring("checkpoint-".length())));
        }
        if (newest < checkpoint) {
            throw new IllegalStateException("LOST: the newest checkpoint is " + newest + ", not " + checkpoint);
        }
        if (newest >= 0) {
            try (Options o = options("plain");
                    RocksDB db = RocksDB.openReadOnly(o, dir.resolve("checkpoint-" + newest).toString())) {
                check(db, newest, true);
                db.verifyChecksum();
            }
        }
        try (Options o = options("plain"); RocksDB db = RocksDB.open(o, dir.resolve("db").toString())) {
            long last = check(db, n, false);
            db.verifyChecksum();
            System.out.println("verified " + last);
        }
    }

    /**
     * All numbers below n are there (or superseded by a later one) with the right bytes, and
     * nothing else; if it must be exact, no later one is. Returns how many there are.
     */
    static long check(RocksDB db, long n, boolean exact) throws Exception {
        long end = 0, keys = 0;
        try (RocksIterator all = db.newIterator()) {
            for (all.seekToFirst(); all.isValid(); all.next(), keys++) {
                long i = number(all.value());
                if (!Arrays.equals(all.key(), key(i % KEYS)) || !Arrays.equals(all.value(), value(i))) {
                    throw new IllegalStateException("WRONG BYTES for " + i);
                }
                end = Math.max(end, i + 1);
            }
            all.status();
        }
        if (end < n || exact && end != n || end % BATCH != 0) {
            throw new IllegalStateException("LOST: " + end + " numbers, not " + n);
        }
        if (keys != Math.min(end, KEYS)) {
            throw new IllegalStateException("LOST: " + keys + " keys of " + end + " numbers");
        }
        for (long i = Math.max(0, end - KEYS); i < end; i++) {
            byte[] found = db.get(key(i % KEYS));
            if (found == null || number(found) != i) {
                throw new IllegalStateException("LOST: " + i + ", found " + (found == null ? null : number(found)));
            }
        }
        return end;
    }

    static void checkpoint(RocksDB db, Path path) throws RocksDBException {
        try (Checkpoint c = Checkpoint.create(db)) {
            c.createCheckpoint(path.toString());
        }
    }

    static void delete(File file) throws Exception {
        File[] children = file.listFiles();
        if (children != null) {
            for (File child : children) {
                delete(child);
            }
        }
        Files.delete(file.toPath());
    }
}
