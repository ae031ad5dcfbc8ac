package io.hopsml;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.spark.FutureAction;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import scala.collection.Iterator;
import scala.concurrent.Await;
import scala.concurrent.duration.Duration;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractFunction0;
import scala.runtime.AbstractFunction1;
import scala.runtime.AbstractFunction2;
import scala.runtime.BoxedUnit;

/** One job in progress, with the results of its tasks as they arrive. */
public final class PushJob extends AbstractFunction2<Object, String, BoxedUnit> {
  private final BlockingQueue<String> answers = new LinkedBlockingQueue<>();
  private FutureAction<BoxedUnit> action;

  private PushJob() {}

  /** Begins the job, in the calling thread's job group; {@code partitions}: their numbers, separated by commas. */
  static PushJob begin(RDD<InternalRow> rows, AbstractFunction1<Iterator<InternalRow>, String> task, String partitions) {
    List<Object> numbers = new ArrayList<>();
    for (String number : partitions.split(",")) {
      numbers.add(Integer.valueOf(number));
    }
    PushJob job = new PushJob();
    AbstractFunction0<BoxedUnit> nothing =
        new AbstractFunction0<>() {
          @Override
          public BoxedUnit apply() {
            return BoxedUnit.UNIT;
          }
        };
    job.action = rows.sparkContext().submitJob(rows, task, CollectionConverters.asScala(numbers).toSeq(), job, nothing);
    return job;
  }

  /** Called by Spark's scheduler for each partition, once. */
  @Override
  public BoxedUnit apply(Object number, String answer) {
    answers.add(answer);
    return BoxedUnit.UNIT;
  }

  /** Returns true if {@link #next} will return nothing more. */
  public boolean isOver() {
    return action.isCompleted() && answers.isEmpty();
  }

  /** Returns the results that have arrived; waits at most this long for the first. */
  public List<String> next(long milliseconds) throws InterruptedException {
    List<String> found = new ArrayList<>();
    String first = answers.poll(milliseconds, TimeUnit.MILLISECONDS);
    if (first != null) {
      found.add(first);
      answers.drainTo(found);
    }
    return found;
  }

  /** Throws the error with which the job has failed. */
  public void finish() throws Exception {
    Await.result(action, Duration.Inf());
  }
}
