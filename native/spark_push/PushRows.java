package io.hopsml;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.spark.SparkContext;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.types.StructType;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag$;

/**
 * Brings the rows of a DataFrame to the stages beside hopsml's agents, from the JVM itself: without Python, and with one copy of a
 * row's memory where Spark's own way to Arrow sets each value by itself.
 *
 * <p>Made once for a DataFrame, on the driver: the plan, and so the partitions, stay the same for all jobs.
 */
public final class PushRows {
  private final SparkContext context;
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
    context = rows.sparkContext();
  }

  /** Of the plan as it is carried out; what needs a shuffle is computed up to it. */
  public int partitions() {
    return rows.getNumPartitions();
  }

  /**
   * Brings some partitions to the stages.
   *
   * @param name of the DataFrame
   * @param stages as {@link Stage#parse} takes them
   * @param partitions their numbers, with commas between
   * @return for each what {@link PushTask} answers
   */
  public List<String> push(String name, String stages, String partitions) {
    List<Object> numbers = new ArrayList<>();
    for (String number : partitions.split(",")) {
      numbers.add(Integer.valueOf(number));
    }
    Object answers =
        context.runJob(
            rows,
            new PushTask(name, stages, schema),
            CollectionConverters.asScala(numbers).toSeq(),
            ClassTag$.MODULE$.apply(String.class));
    return Arrays.asList((String[]) answers);
  }
}
