"""Resources of a cluster that a job uses, including a driver per task, as each task is an application."""

from __future__ import annotations

from dataclasses import dataclass

from hopsml.service.spec.job import JobSpec
from hopsml.service.spec.task import Task

DRIVER_MIB = 1024  # Spark's default, spark.driver.memory
_OVERHEAD, _LEAST_OVERHEAD_MIB = 0.1, 384  # overhead that Spark adds to a driver's memory: spark.driver.memoryOverhead


@dataclass(frozen=True)
class Size:
    """Resources that are used at the same time; ``slots`` is the number of workers."""

    slots: int = 0
    cores: int = 0
    gpus: int = 0
    memory_mib: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(
            self.slots + other.slots,
            self.cores + other.cores,
            self.gpus + other.gpus,
            self.memory_mib + other.memory_mib,
        )


def workers(task: Task, count: int) -> Size:
    """Return the resources of a number of a task's workers."""
    one = task.resources
    return Size(count, count * one.cores, count * one.gpus, count * one.memory_mib)


def driver(memory_mib: int = DRIVER_MIB) -> Size:
    """Return the resources of a task's driver with Spark's overhead; it uses a container but no slot."""
    return Size(0, 1, 0, memory_mib + max(_LEAST_OVERHEAD_MIB, int(memory_mib * _OVERHEAD)))


def fewest(job: JobSpec, driver_mib: int = DRIVER_MIB) -> Size:
    """Return the resources that a job needs to start."""
    return sum((workers(task, task.fewest) + driver(driver_mib) for task in job.tasks.values()), Size())


def most(job: JobSpec, driver_mib: int = DRIVER_MIB) -> Size:
    """Return the most resources that a job can use."""
    return sum((workers(task, task.most) + driver(driver_mib) for task in job.tasks.values()), Size())


def summary(job: JobSpec, driver_mib: int = DRIVER_MIB) -> str:
    """Return a line of text with tasks, slots, cores, GPUs and memory; ranges for elastic tasks."""
    low, high = fewest(job, driver_mib), most(job, driver_mib)
    tasks = ", ".join(f"{name} {_range(task.fewest, task.most)}" for name, task in list(job.tasks.items())[:10])
    tasks += ", ..." if len(job.tasks) > 10 else ""
    drivers = "its driver" if len(job.tasks) == 1 else f"{len(job.tasks)} drivers"
    return (
        f"{job.name}: {_count(len(job.tasks), 'task')} ({tasks}), {_range(low.slots, high.slots)} "
        f"{'slot' if high.slots == 1 else 'slots'}, {_range(low.gpus, high.gpus)} {'GPU' if high.gpus == 1 else 'GPUs'}, "
        f"{_range(low.cores, high.cores)} cores and {_memory(low, high)} with {drivers}"
    )


def _range(low: int, high: int) -> str:
    """Return a number, or a range of numbers, as text."""
    return str(low) if low == high else f"{low} to {high}"


def _count(number: int, thing: str) -> str:
    """Return a number with a noun, in singular or plural."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _memory(low: Size, high: Size) -> str:
    """Return a range of memory sizes in GiB as text."""
    first, last = f"{low.memory_mib / 1024:.1f}", f"{high.memory_mib / 1024:.1f}"
    return f"{first} GiB" if first == last else f"{first} to {last} GiB"
