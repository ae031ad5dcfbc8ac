"""What ``hopsml.class_data`` has Spark run: a context, and jobs as the agents' are, so that their classes are loaded."""

from __future__ import annotations

from collections.abc import Iterator


def body(index: int, values: Iterator[int]) -> Iterator[str]:
    """As short as a task can be."""
    from pyspark import TaskContext

    TaskContext.get()
    yield str(index + sum(values))


def main() -> None:
    """Start a context, run two jobs, look at the status, stop in order."""
    from pyspark import SparkContext

    context = SparkContext()
    context.setJobGroup("class-data", "class data", interruptOnCancel=True)
    for _ in range(2):
        context.parallelize(range(1), 1).mapPartitionsWithIndex(body).collect()
    tracker = context.statusTracker()
    for job in tracker.getJobIdsForGroup("class-data"):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info else ():
            tracker.getStageInfo(stage)
    tracker.getActiveStageIds()
    context._jsc.sc().statusTracker().getExecutorInfos()
    context.getConf().getAll()
    context.cancelJobGroup("class-data")
    context.stop()


if __name__ == "__main__":
    main()
