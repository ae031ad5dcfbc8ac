package io.hopsml;

import java.io.Serializable;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.QueryExecution;
import scala.collection.Iterator;
import scala.runtime.AbstractFunction1;

/**
 * A DataFrame with one row of text for each partition, the result of a Python task that has sent the rows. Spark's own
 * API for a result in Python returns all of them only when the last one has arrived.
 */
public final class AnswerRows {
  private final RDD<InternalRow> rows;

  /** {@code execution}: {@code Dataset.queryExecution()}. */
  public AnswerRows(QueryExecution execution) {
    rows = execution.toRdd();
  }

  /** Returns the number of partitions of the executed plan. */
  public int partitions() {
    return rows.getNumPartitions();
  }

  /** Begins to compute some partitions, as a job of the calling thread's group. */
  public PushJob push(String partitions) throws Exception {
    return PushJob.begin(rows, new Answer(), partitions);
  }

  private static final class Answer extends AbstractFunction1<Iterator<InternalRow>, String> implements Serializable {
    private static final long serialVersionUID = 1L;

    @Override
    public String apply(Iterator<InternalRow> rows) {
      if (!rows.hasNext()) { // also asked because generated code computes a row only then
        throw new IllegalStateException("a task of data= has returned no result");
      }
      return rows.next().getUTF8String(0).toString();
    }
  }
}
