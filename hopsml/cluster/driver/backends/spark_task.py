"""The Spark task that runs an agent: what it does, which of Spark's settings concern it, and why it has failed."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Callable, Iterator
from importlib import metadata

from hopsml.cluster.agent.network import Bootstrap

CONTAINER_ENDS = {  # org.apache.hadoop.yarn.api.records.ContainerExitStatus, and a shell's exit status after a signal
    -100: "YARN released the container, or its node was lost",
    -101: "the disks of its node failed",
    -102: "YARN preempted the container for another queue or application",
    -103: "YARN ended the container for its virtual memory: set yarn.nodemanager.vmem-check-enabled to false, or raise "
    "spark.executor.memoryOverhead",
    -104: "YARN ended the container for its physical memory: raise spark.executor.memoryOverhead (Python processes "
    "use this memory, not spark.executor.memory)",
    -105: "Spark requested the end of the container",
    -106: "the ResourceManager ended the container",
    -107: "the application had ended",
    137: "SIGKILL, sent by the kernel for lack of memory (see dmesg of the node), by the NodeManager (see its log), "
    "or by a user",
    143: "SIGTERM, sent by the NodeManager, for instance for preemption or a decommissioned node (see its log), or "
    "by a user",
}
PYTHON_CRASHED = "Python worker exited unexpectedly"
MOST_REASON = 600  # characters of Spark's message
_THRESHOLD = "spark.speculation.task.duration.threshold"
_EXCLUSIONS = ("spark.excludeOnFailure.enabled", "spark.excludeOnFailure.taskAndStage.enabled")


def max_task_failures(master: str, setting: Callable[[str, str], str]) -> int:
    """Return how often a Spark task may fail until Spark ends its job, and with it all other agents of the request.

    If Spark excludes machines after a failure it is 1: there might be no other machine for the agent.

    Args:
        master: Spark's master URL.
        setting: Function of a key and a default, as ``SparkConf.get``.
    """
    if any(_is_true(setting, key) for key in _EXCLUSIONS):
        return 1
    local = re.fullmatch(r"local(?:\[[^,\]]*(?:,\s*(\d+)\s*)?\])?", master.strip())
    if local:  # which ignores the setting
        return int(local[1] or 1)
    return int(setting("spark.task.maxFailures", "4"))


def _is_true(setting: Callable[[str, str], str], key: str) -> bool:
    """Return True if the setting is true."""
    return setting(key, "false").strip().lower() == "true"


def needs_own_job(most: int, setting: Callable[[str, str], str]) -> bool:
    """Return True if each agent needs a Spark job for itself, instead of one job for all agents of a request.

    Spark never starts a speculative copy of the only task of a job; of several tasks it would copy those that run
    longest, and end one of the two when the other ends. If a task may fail only once, its failure ends its whole job.

    Args:
        most: Number of failures of a task that end its job (``max_task_failures``).
        setting: Function of a key and a default, as ``SparkConf.get``.
    """
    return most <= 1 or _is_true(setting, "spark.speculation")


def why_settings_refused(setting: Callable[[str, str], str]) -> str:
    """Return why agents cannot run with Spark's settings, with the remedy; "" if they can."""
    if _is_true(setting, "spark.speculation") and setting(_THRESHOLD, ""):
        return (
            f"with {_THRESHOLD} Spark starts a second copy of each agent, and ends one of the two when the other ends. "
            f"Remove {_THRESHOLD}; spark.speculation itself may stay true"
        )
    return ""


def agent_body(bootstrap: Bootstrap, most: int) -> Callable[[int, Iterator[int]], Iterator[str]]:
    """Return the function of a Spark task, which runs an agent and yields its final message."""
    import msgspec

    # Of plain values, which executors with another hopsml can unpickle to report that.
    data, is_bare = msgspec.msgpack.encode(bootstrap), bootstrap.bare
    drivers = {"hopsml": str(sys.modules["hopsml"].__version__), "numpy": metadata.version("numpy").partition(".")[0]}

    def body(index: int, _: Iterator[int]) -> Iterator[str]:
        import os
        from importlib import import_module, metadata

        from pyspark import TaskContext

        # The user's function has not arrived: unpickling it with other versions fails in obscure ways.
        ours = {"hopsml": import_module("hopsml").__version__, "numpy": metadata.version("numpy").partition(".")[0]}
        for name, wanted in drivers.items():
            if ours[name] != wanted:
                raise RuntimeError(
                    f"the executors have {name} {ours[name]}, the driver has {name} {wanted}; install the driver's "
                    "version on every node, or ship an environment with spark.archives"
                )

        # No further import: if hopsml is missing, the error must name it, and not one of the packages that it needs.
        from hopsml.cluster.agent.agent import DISMISSED, NEVER_JOINED, run_agent
        from hopsml.cluster.agent.network import decode_bootstrap

        task = TaskContext.get()
        gpus = task.resources().get("gpu") if task and not is_bare else None
        # The Python workers of one executor are forked from one daemon.
        executor = os.environ.get("CONTAINER_ID") or f"{socket.gethostname()}/{os.getppid()}"
        # Counted from 0. The last attempt is not used: its loss would end the job with all other agents.
        attempt = task.attemptNumber() if task is not None else 0
        is_final = attempt >= max(1, most - 1)
        last_message = run_agent(
            decode_bootstrap(data),
            index,
            executor,
            tuple(gpus.addresses) if gpus else (),
            task.taskAttemptId() if task else -1,
            is_final,
            is_again=attempt > 0,
        )
        # Spark restarts only tasks that have failed: a slot whose agent was disconnected must not remain empty.
        was_lost = not last_message.startswith((DISMISSED, NEVER_JOINED) if attempt == 0 else DISMISSED)
        if was_lost and attempt + 1 < most:
            raise RuntimeError(f"this hopsml agent was lost: {last_message}")
        yield last_message

    return body


def why_executor_lost(error: str) -> str:
    """Return why a failed task's executor was lost, with the meaning of its exit status; "" if it was not lost."""
    found = re.search(r"ExecutorLostFailure \(executor (\S+) .*?Reason: (.*)", error, re.DOTALL)
    if found is None:
        return (
            "Spark reports that its Python process crashed; its executor is running" if PYTHON_CRASHED in error else ""
        )
    executor, reason = found[1], " ".join(found[2].split())[:MOST_REASON]
    if "disassociated" in reason:  # Spark got no reason, and lists possible ones
        return f"Spark lost executor {executor} without a reason: {reason.partition('.')[0]}"
    number = re.search(r"[Ee]xit (?:status|code)(?: is)?:? (-?\d+)|exited with code (-?\d+)", reason)
    status = int(number[1] or number[2]) if number else None
    if status is None and "physical memory" in reason:
        status = -104
    elif status is None and "virtual memory" in reason:
        status = -103
    elif status is None and "preempted" in reason:
        status = -102
    meaning = CONTAINER_ENDS.get(status) if status is not None else None
    means = f" (exit status {status}: {meaning})" if meaning else ""
    return f"Spark reports for executor {executor}: {reason}{means}"
