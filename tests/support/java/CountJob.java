import static org.apache.flink.api.common.typeinfo.PrimitiveArrayTypeInfo.BYTE_PRIMITIVE_ARRAY_TYPE_INFO;

import java.util.Arrays;
import java.util.Random;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.source.util.ratelimit.RateLimiterStrategy;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.connector.datagen.source.GeneratorFunction;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.util.Collector;

/**
 * Numbers go by key into state, and each is checked against what the state says came before it: a
 * number that is lost or comes twice, and bytes that are not those written, fail the job with
 * STATE MISMATCH. Arguments: keys, numbers per second, parallelism.
 */
public class CountJob {
    /** The source splits the numbers evenly: stream s begins at s << STREAM_BITS. */
    static final int STREAM_BITS = 40, STREAMS = 2;

    public static void main(String[] args) throws Exception {
        long keys = Long.parseLong(args[0]);
        StreamExecutionEnvironment env = StreamExecutionEnvironment.getExecutionEnvironment();
        GeneratorFunction<Long, Long> number = i -> i;
        DataGeneratorSource<Long> source =
                new DataGeneratorSource<>(
                        number,
                        (long) STREAMS << STREAM_BITS,
                        RateLimiterStrategy.perSecond(Double.parseDouble(args[1])),
                        Types.LONG);
        env.fromSource(source, WatermarkStrategy.noWatermarks(), "numbers")
                .setParallelism(STREAMS)
                .uid("numbers")
                .keyBy(i -> i % keys, Types.LONG)
                .process(new Check(keys))
                .setParallelism(Integer.parseInt(args[2]))
                .uid("check")
                .sinkTo(new DiscardingSink<>())
                .setParallelism(1)
                .uid("end");
        env.execute("count");
    }

    static class Check extends KeyedProcessFunction<Long, Long, Long> {
        final long keys;
        transient MapState<Integer, Long> last;
        transient ValueState<byte[]> payload;

        Check(long keys) {
            this.keys = keys;
        }

        @Override
        public void open(OpenContext context) {
            last = getRuntimeContext().getMapState(new MapStateDescriptor<>("last", Types.INT, Types.LONG));
            payload = getRuntimeContext()
                    .getState(new ValueStateDescriptor<>("payload", BYTE_PRIMITIVE_ARRAY_TYPE_INFO));
        }

        @Override
        public void processElement(Long i, Context context, Collector<Long> out) throws Exception {
            int stream = (int) (i >> STREAM_BITS);
            long start = (long) stream << STREAM_BITS;
            Long previous = last.get(stream);
            boolean follows = previous == null ? i - start < keys : i == previous + keys;
            if (!follows) {
                throw new IllegalStateException("STATE MISMATCH: " + i + " after " + previous);
            }
            byte[] found = payload.value();
            if (!Arrays.equals(found, expected(context.getCurrentKey()))) {
                throw new IllegalStateException("STATE MISMATCH: the bytes of key " + context.getCurrentKey());
            }
            last.put(stream, i);
            payload.update(expected(context.getCurrentKey()));
        }

        /** What the payload must be, as `last` is now: none if it is empty. */
        byte[] expected(long key) throws Exception {
            long sum = 0;
            boolean any = false;
            for (long i : last.values()) {
                sum += i;
                any = true;
            }
            byte[] bytes = new byte[200 + (int) (key % 101)];
            new Random(key * 31 + sum).nextBytes(bytes);
            return any ? bytes : null;
        }
    }
}
