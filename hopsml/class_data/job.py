"""Spark application that loads the classes for ``hopsml.class_data`` by a context and jobs like those of agents."""

from __future__ import annotations

from collections.abc import Iterator


def run_task(index: int, values: Iterator[int]) -> Iterator[str]:
    """Run a minimal task on one partition."""
    from pyspark import TaskContext

    TaskContext.get()
    yield str(index + sum(values))


def main() -> None:
    """Start a context, run two jobs, read their status, and stop the context."""
    from pyspark import SparkContext

    context = SparkContext()
    context.setJobGroup("class-data", "class data", interruptOnCancel=True)
    for _ in range(2):
        context.parallelize(range(1), 1).mapPartitionsWithIndex(run_task).collect()
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
