package io.hopsml;

import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.types.StructType;

/**
 * Brings the rows of a DataFrame to the stages beside hopsml's agents, from the JVM itself: without Python, and with one copy of a
 * row's memory where Spark's own way to Arrow sets each value by itself.
 *
 * <p>Made once for a DataFrame, on the driver: the plan, and so the partitions, stay the same for all jobs.
 */
public final class PushRows {
  private final RDD<InternalRow> rows;
  private final StructType schema;

  /** {@code execution}: {@code Dataset.queryExecution()}, whose class has moved between releases. */
  public PushRows(QueryExecution execution) {
    String refusal = Columns.refusal(execution.analyzed().schema());
    if (refusal != null) {
      throw new IllegalArgumentException(refusal);
    }
    schema = execution.analyzed().schema();
    rows = execution.toRdd();
  }

  /** Of the plan as it is carried out; what needs a shuffle is computed up to it. */
  public int partitions() {
    return rows.getNumPartitions();
  }

  /**
   * Begins to bring some partitions to the stages, as a job of the calling thread's group.
   *
   * @param name of the DataFrame
   * @param stages as {@link Stage#parse} takes them
   * @param partitions their numbers, with commas between
   * @return the job; for each partition it has what {@link PushTask} answers
   */
  public PushJob push(String name, String stages, String partitions) {
    return PushJob.begin(rows, new PushTask(name, stages, schema), partitions);
  }
}
