package io.hopsml;

import java.io.IOException;
import java.io.Serializable;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.List;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.VectorLoader;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.dictionary.DictionaryProvider.MapDictionaryProvider;
import org.apache.arrow.vector.ipc.ArrowFileWriter;
import org.apache.arrow.vector.ipc.message.ArrowRecordBatch;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.StructType;
import scala.collection.Iterator;
import scala.runtime.AbstractFunction1;

/** One task: writes its partition as an Arrow file to a stage. */
final class PushTask extends AbstractFunction1<Iterator<InternalRow>, String> implements Serializable {
  private static final long serialVersionUID = 1L;
  private static final long SHARD_BYTES = 16L << 20; // of a record batch, which a worker reads as a whole
  private static final int SHARD_ROWS = 1 << 20;

  private final String name;
  private final String stages;
  private final StructType schema;

  PushTask(String name, String stages, StructType schema) {
    this.name = name;
    this.stages = stages;
    this.schema = schema;
  }

  /** Returns partition, attempt, stage, then rows:bytes of each record batch, separated by blanks. */
  @Override
  public String apply(Iterator<InternalRow> rows) {
    TaskContext task = TaskContext.get();
    Stage stage = Stage.choose(Stage.parse(stages), task.partitionId(), task.attemptNumber());
    List<String> batches = new ArrayList<>();
    try (Delivery delivery = stage.open(name, task.partitionId(), task.taskAttemptId())) {
      write(rows, delivery, batches);
      delivery.finish();
    } catch (IOException error) {
      throw new UncheckedIOException("the rows of data='" + name + "' cannot be kept at " + stage.url + ": " + error.getMessage(), error);
    }
    String head = task.partitionId() + " " + task.taskAttemptId() + " " + stage.url;
    return batches.isEmpty() ? head : head + " " + String.join(" ", batches);
  }

  private void write(Iterator<InternalRow> rows, Delivery delivery, List<String> batches) throws IOException {
    try (BufferAllocator allocator = new RootAllocator();
        Columns columns = new Columns(schema, allocator);
        VectorSchemaRoot root = VectorSchemaRoot.create(columns.schema(), allocator);
        ArrowFileWriter writer = new ArrowFileWriter(root, new MapDictionaryProvider(), delivery.channel())) {
      VectorLoader loader = new VectorLoader(root);
      writer.start();
      while (rows.hasNext()) {
        do {
          columns.add(rows.next());
        } while (columns.bytes() < SHARD_BYTES && columns.rows() < SHARD_ROWS && rows.hasNext());
        batches.add(columns.rows() + ":" + columns.bytes());
        try (ArrowRecordBatch batch = columns.batch()) {
          loader.load(batch);
        }
        writer.writeBatch();
        root.clear();
      }
      writer.end();
    }
  }
}
