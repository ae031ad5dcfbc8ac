package io.hopsml;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.spark.FutureAction;
import org.apache.spark.SparkContext;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import scala.collection.Iterator;
import scala.collection.immutable.$colon$colon;
import scala.collection.immutable.Nil$;
import scala.concurrent.Await;
import scala.concurrent.duration.Duration;
import scala.runtime.AbstractFunction0;
import scala.runtime.AbstractFunction1;
import scala.runtime.AbstractFunction2;
import scala.runtime.BoxedUnit;

/** One job in progress, with the results of its tasks as they arrive. */
public final class PushJob extends AbstractFunction2<Object, String, BoxedUnit> {
  private final BlockingQueue<String> answers = new LinkedBlockingQueue<>();
  private FutureAction<?> action;

  private PushJob() {}

  /** Begins the job, in the calling thread's job group; {@code partitions}: their numbers, separated by commas. */
  static PushJob begin(RDD<InternalRow> rows, AbstractFunction1<Iterator<InternalRow>, String> task, String partitions)
      throws Exception {
    PushJob job = new PushJob();
    try {
      job.action =
          (FutureAction<?>) submitJob().invoke(rows.sparkContext(), rows, task, numbers(partitions), job, new Nothing());
    } catch (InvocationTargetException error) {
      throw error.getCause() instanceof Exception ? (Exception) error.getCause() : error;
    }
    return job;
  }

  /** Throws the reason why these classes do not fit the Spark or the Scala of this JVM; otherwise does nothing. */
  public static void check() throws Exception {
    submitJob();
    numbers("0");
    new PushJob();
    new Nothing();
  }

  /** Finds {@code SparkContext.submitJob}: the type of its parameter for a sequence depends on the version of Scala. */
  private static Method submitJob() throws NoSuchMethodException {
    for (Method method : SparkContext.class.getMethods()) {
      if (method.getName().equals("submitJob") && method.getParameterCount() == 5) {
        return method;
      }
    }
    throw new NoSuchMethodException("SparkContext.submitJob with five parameters");
  }

  /** Returns the numbers as a list of Scala's, which is a sequence in each version of Scala. */
  private static scala.collection.immutable.List<Object> numbers(String partitions) {
    @SuppressWarnings("unchecked")
    scala.collection.immutable.List<Object> found = (scala.collection.immutable.List<Object>) (Object) Nil$.MODULE$;
    String[] words = partitions.split(",");
    for (int index = words.length - 1; index >= 0; index--) {
      found = new $colon$colon<>(Integer.valueOf(words[index]), found);
    }
    return found;
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

  private static final class Nothing extends AbstractFunction0<BoxedUnit> {
    @Override
    public BoxedUnit apply() {
      return BoxedUnit.UNIT;
    }
  }
}
