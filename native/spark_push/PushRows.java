package io.hopsml;

import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.types.StructType;

/**
 * Sends the rows of a DataFrame to the stages of hopsml's agents, from the JVM itself: without Python, and with one
 * copy of a row's memory where Spark's own conversion to Arrow sets each value separately.
 *
 * <p>Made once for a DataFrame, on the driver: the plan, and so the partitions, are the same for all jobs.
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

  /** Returns the number of partitions of the executed plan; computes it up to the last shuffle. */
  public int partitions() {
    return rows.getNumPartitions();
  }

  /**
   * Begins to send some partitions to the stages, as a job of the calling thread's group.
   *
   * @param name of the DataFrame
   * @param stages in the format of {@link Stage#parse}
   * @param partitions their numbers, separated by commas
   * @return the job, with the result of {@link PushTask} for each partition
   */
  public PushJob push(String name, String stages, String partitions) throws Exception {
    return PushJob.begin(rows, new PushTask(name, stages, schema), partitions);
  }
}
