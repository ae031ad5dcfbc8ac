"""Texts about a run for users: how many agents it waits for, the error with which it ends, and its remedy."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Iterable

from hopsml.cluster.driver.active_run import ActiveRun
from hopsml.cluster.driver.backends.base import FAILED_AT_LAUNCH, Backend
from hopsml.cluster.driver.run_state import RunState
from hopsml.cluster.gang.events import ConcludeRun, Phase
from hopsml.cluster.gang.pool import Pool
from hopsml.cluster.shared.worker_events import FailureReport
from hopsml.core import tracebacks
from hopsml.core.processes import KERNEL_KILL
from hopsml.errors import CoordinatorLost, NotEnoughSlots, RunCancelled, RunError, StartTimeout, WorkerFailed

# Functions in which Keras 3's optimizer asserts without a message, and which call it; its own lines may be missing in
# the traceback.
_LATE_UPDATE = ("_distributed_tf_update_step", "backend_update_step")
_LATE_MODEL = (
    "was not created in the distribution strategy scope",
    "Trying to create optimizer slot variable under the scope",
    "under the scope of tf.distribute.Strategy",
)
_ROWS_TO_KERAS = "ValueError: Unrecognized data type: x=Dataset(source="  # hopsml.data's, passed to fit unconverted
_SILENT = re.compile(
    r"^the agent on .* (?:was lost|is gone): (?:no message|read no message|no sign of life|took no message) for ([\d.]+) s"
)
_KILLED = re.compile(r"^the agent on .* (?:was lost|is gone): its connection broke")
_OF_NETWORK = re.compile(r"^preflight: .*: network: ")
_MEMORY = re.compile(
    r"^MemoryError|^(std::)?bad_alloc|[Cc]an(no|')t allocate memory|OOM when allocating|" + re.escape(KERNEL_KILL)
)
_NO_SPARK = "[SESSION_OR_CONTEXT_NOT_EXISTS]"  # PySpark's condition for its functions and UDFs in a worker
# the same in functions that only assert it: col, lit and expr, and those of Spark 3
_SPARK_ASSERTS = re.compile(r"^AssertionError$|^AttributeError: 'NoneType' object has no attribute '_j")
_NO_RESOLVER = re.compile(r"ParameterServerStrategy.*missing .*'cluster_resolver'")  # TensorFlow 1 read TF_CONFIG
_SUBSCRIPT = "TypeError: 'Dataset' object is not subscriptable"  # of hopsml.data
# ENOSPC and EDQUOT, EFBIG; TensorFlow writes the path, a semicolon and the system's text
_FULL_DISK = re.compile(r"^OSError: \[Errno (28|122)\]|Error: .*; (No space left on device|Disk quota exceeded)")
_FILE_SIZE = re.compile(r"^OSError: \[Errno 27\]|Error: .*; File too large")
_GPU_MEMORY = re.compile(r"CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY|OOM when allocating .*\bGPU\b")
_NO_GPU = re.compile(
    r"no NVIDIA driver|not compiled with CUDA|No CUDA GPUs are available|CUDA driver version is insufficient"
)
_OF_COMMAND = re.compile(r"\bCommand '.*' (died with|returned non-zero exit status) ")
_ABORTED_COMMAND = re.compile(r"\bCommand '.*' (died with <Signals\.SIGABRT|returned non-zero exit status 134\b)")
_RETURNED = "has ended the group: the training function has ended"
_MISSING = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")


def is_importable(module: str) -> bool:
    """Return True if this interpreter could import the module; at most the packages that contain it are imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def is_network_finding(note: str) -> bool:
    """Return True if a run's note is a finding of the preflight check between two of its hosts."""
    return _OF_NETWORK.match(note) is not None


def remedy(cause: str, traceback: str, host: str, here: Callable[[str], bool] = is_importable) -> str:
    """Return the remedy for a worker's error as a sentence without its full stop; "" if the error is self-explanatory.

    Args:
        cause: Cause of the failure, as text.
        traceback: The worker's traceback.
        host: Host on which the worker ran.
        here: Function that returns True if the driver could import a module.
    """
    if found := _MISSING.match(cause):
        return _missing(found[1].partition(".")[0], host, here)
    if cause.startswith("EOFError") and re.search(r"\binput\(", traceback):
        return (
            "a worker has no keyboard, so input() cannot read; call input() in the driver before the run, and pass "
            "the value with args="
        )
    if cause.startswith(_ROWS_TO_KERAS):
        return (
            "Keras needs a TensorFlow dataset: call model.fit(rows.tensorflow('features', 'label')) with the names "
            "of the columns, after rows.batch(...)"
        )
    if _NO_SPARK in cause or (_SPARK_ASSERTS.match(cause) and _fails_in_pyspark(traceback)):
        return (
            "a training function runs outside of Spark's tasks and cannot use its session, functions or UDFs: apply them to "
            "the DataFrame before the run, and pass it by data={...}; call the Python function of a UDF `f` as f.func(...)"
        )
    if _NO_RESOLVER.search(cause):
        return (
            "TensorFlow 2 has no such strategy without a cluster: build it by hopsml.tensorflow.strategy(), and train with "
            "hopsml.tensorflow.ServerLoop(model, batches).run(steps) in experiment.parameter_server"
        )
    if _SUBSCRIPT in cause:
        return (
            "rows are read in batches: for batch in rows.batch(1024), whose columns are batch['name']; compute values over "
            "a whole DataFrame by Spark before the run, and pass them by args="
        )
    if "Cast string to " in cause:
        return (
            "a column of text is used as a number: convert it before the run, for instance by Spark's StringIndexer, or use "
            "a layer for text, such as keras.layers.StringLookup"
        )
    if silent := _SILENT.search(cause):
        return (
            f"the network between the driver and {host} was interrupted for more than {silent[1]} s, or that host "
            "was suspended; check its link, routes and firewall. A group of fixed size ends with the first lost "
            "worker; with min_workers= instead of num_workers= the others continue after heartbeat_timeout= seconds"
        )
    if _GPU_MEMORY.search(cause):
        return (
            "the GPU has less free memory than the worker needs: use a smaller batch on each worker or lower precision, and "
            "see with nvidia-smi that no other process uses this GPU"
        )
    if _NO_GPU.search(cause):
        return (
            f"this worker has no GPU of {host} that torch can use; choose the device by torch.cuda.is_available(), or run "
            "on hosts with GPUs, whose drivers `hopsml doctor` checks"
        )
    if cause.startswith("CollectiveMismatch") and "different operations" in cause:
        return (
            "all workers must call the same operations in the same order, with arrays of the same size and type: pad or "
            "cut the array on the rank that differs, use hopsml.all_gather for arrays of different lengths, "
            "and let no condition depend on the rank around a collective call"
        )
    if _ABORTED_COMMAND.search(cause):
        return (
            "if it is a PyTorch program that had done its work, call torch.distributed.destroy_process_group() at its end: "
            "without this call a thread of gloo may abort the process while it exits"
        )
    if _RETURNED in cause:
        return (
            "a worker has returned from the training function while others still trained; let all of them make the same "
            "number of steps: give each the same number of batches, as hopsml.elastic.Sampler does"
        )
    if _MEMORY.search(cause):
        return (
            f"the worker needs more memory than {host} has left for it: read the data in parts (data=, or files inside the "
            "function) instead of whole arrays, use a smaller batch or fewer workers on a host, or give executors more "
            "memory (spark.executor.memory, spark.executor.memoryOverhead)"
        )
    if _FULL_DISK.search(cause):
        return (
            f"a disk of {host} is full: delete files there, or choose another disk for the worker's folder by TMPDIR or "
            "spark.local.dir"
        )
    if _FILE_SIZE.search(cause):
        return (
            f"a file on {host} reached the largest size that is allowed there: raise the limit of the session that starts "
            "the workers (ulimit -f), or choose a file system without such a limit by TMPDIR or spark.local.dir"
        )
    if _KILLED.search(cause):
        return (
            "find what ended the executor (if it was memory: more of it by spark.executor.memoryOverhead), and continue "
            "from the newest checkpoint by experiment.resume(run); with min_workers= instead of num_workers= the others "
            "continue"
        )
    is_bare = cause == "AssertionError" and any(line in traceback for line in _LATE_UPDATE)
    if is_bare or any(words in cause for words in _LATE_MODEL):
        return (
            "the model, its optimizer or a metric was created outside of the strategy's scope; build and compile the "
            "model inside `with strategy.scope():`, and call fit there or after it"
        )
    return ""


def _fails_in_pyspark(traceback: str) -> bool:
    """Return True if the innermost frame of a traceback is in PySpark."""
    files = re.findall(r'^ +File "([^"]+)"', traceback, re.MULTILINE)
    return bool(files) and "/pyspark/" in files[-1]


def _missing(module: str, host: str, here: Callable[[str], bool]) -> str:
    """Return the remedy for a module that a worker could not import."""
    if not here(module):
        return (
            f"'{module}' is not on {host}, and the driver cannot import it either: pip install what is a package "
            f"into {sys.prefix}; your own modules must be in the folder of the script, or be shipped by hopsml "
            "submit --py-files"
        )
    return (
        f"'{module}' is installed here, but not on {host}; ship packages with the environment (hopsml submit "
        "--ship-environment auto, or ship_environment: auto in the profile) and your own modules with hopsml submit "
        "--py-files, or install them on every node"
    )


TAIL_LINES = 30


# largest number of agent requests about which the cluster is queried: a growing run may have one for each agent
MOST_REQUESTS = 4


_CONNECTING = (
    "its process connects to the other members of its group. A firewall between the hosts must open the ports of the "
    "workers (HOPSML_PORT_RANGE limits them to a range)"
)
_PREPARING = "its process imports modules, or loads the function and its arguments"


def waiting_text(run: ActiveRun, pool: Pool, other_work: str = "") -> str:
    """Return the display's text of a waiting run: how many agents are connected, how many it needs, what holds slots.

    Args:
        run: The run.
        pool: The agents of the application.
        other_work: Other work of the application that holds slots; "" if there is none.
    """
    connected, wanted = run.gang.agent_counts(_connected_count(run, pool))
    held = f"; {other_work}" if other_work else ""
    return f"waiting for executors: {connected} of {wanted} agents are connected{held}"


def _connected_count(run: ActiveRun, pool: Pool) -> int:
    """Return how many idle agents the run can use."""
    return pool.agents.idle_count_of(False) + min(pool.agents.idle_count_of(True), run.request.bare)


def why_missing(run: ActiveRun, outcome: ConcludeRun, pool: Pool, backend: Backend, others: Iterable[str]) -> str:
    """Return why a run could not begin in time, as text for its error.

    Args:
        run: The run.
        outcome: Its end.
        pool: The agents of the application.
        backend: Source of agents, which is queried about missing ones.
        others: Ids of the runs that continue.
    """
    if run.placements:
        forming = {member.rank for member in run.gang.members.values() if getattr(member, "forms", 0)}
        return "; ".join(
            f"rank {rank} on {run.state.members[rank].host} has not started the training function: "
            f"{_CONNECTING if rank in forming else _PREPARING}"
            for rank, _ in outcome.missing
        )
    held = [f"{run_id} holds some" for run_id in others]
    request_ids = sorted({request_id for request_id, _ in pool.expected})
    reasons = list(
        dict.fromkeys(
            ("of those without a GPU: " if pool.expected.is_bare(request_id) else "") + backend.why_missing(request_id)
            for request_id in request_ids[:MOST_REQUESTS]
        )
    )
    connected = _connected_count(run, pool)
    why = [*reasons, *held] or [
        "the requested agents have ended, and no others were requested; see the log of the driver"
    ]
    return f"{connected} of {run.gang.spec.minimum} agents are connected; " + "; ".join(why)


def error_of(
    outcome: ConcludeRun, state: RunState, run_url: str, failure: FailureReport | None, host: str, missing: str
) -> RunError | None:
    """Return the error for an outcome, with rank, host, cause, traceback, log and remedy; None for a run that finished.

    Args:
        outcome: The run's end.
        state: Its state.
        run_url: URL of the run directory.
        failure: Report of the agent of the failed rank, if there is one.
        host: Host of that rank.
        missing: The text of ``why_missing``.
    """
    if outcome.phase is Phase.FINISHED:
        return None
    if outcome.error == "worker":
        return _worker_failed(outcome, state, run_url, failure, host)
    if outcome.error == "start":
        remedy = "allow more time with start_timeout=, or request fewer workers with num_workers="
        lines = [f"run {state.run_id}: {outcome.reason}. {missing}. Remedy: {remedy}.", *_network_findings(state)]
        return StartTimeout("\n".join(lines), run_url)
    if outcome.error == "minimum":
        remedy = "allow more time with min_workers_timeout=, or continue later with experiment.resume()"
        return NotEnoughSlots(f"run {state.run_id}: {outcome.reason}. Remedy: {remedy}; {run_url}", run_url)
    if outcome.error == "storage":
        remedy = "check that the workers can reach the store, then continue with experiment.resume()"
        return RunError(f"run {state.run_id}: {outcome.reason}. Remedy: {remedy}; {run_url}", run_url)
    if outcome.error == "driver":
        return RunError(f"run {state.run_id}: {outcome.reason}\nRun directory: {run_url}", run_url)
    if outcome.error == "slots":
        return NotEnoughSlots(f"run {state.run_id}: {outcome.reason}", run_url)
    if outcome.error == "cancelled":
        return RunCancelled(f"run {state.run_id} was cancelled: {outcome.reason}", run_url)
    if outcome.error == "application" and not outcome.reason.startswith(FAILED_AT_LAUNCH):
        remedy = (
            "start a new Spark session (after the loss of its JVM in a new process), and call "
            f"experiment.resume({run_url!r})"
        )
        return CoordinatorLost(f"run {state.run_id} was ended: {outcome.reason}. Remedy: {remedy}.", run_url)
    return CoordinatorLost(f"run {state.run_id} could not be launched: {outcome.reason}", run_url)


def _network_findings(state: RunState) -> list[str]:
    """Return a line for each network fault that the preflight check found: they usually cause the later errors."""
    return [f"Seen before: {note}" for note in state.notes if is_network_finding(note)]


def _worker_failed(
    outcome: ConcludeRun, state: RunState, run_url: str, failure: FailureReport | None, host: str
) -> WorkerFailed:
    """Return the error for a failed worker, with its traceback or the end of its log."""
    traceback = tracebacks.with_source(failure.traceback) if failure else ""
    log = failure.log if failure else ""
    lines = [f"run {state.run_id}: rank {outcome.rank} of {state.size} on host {host} failed first: {outcome.reason}"]
    if "\n  File " in traceback:  # else it has no frames, and is the reason once more
        lines += ["", "Its traceback:", traceback.rstrip()]
    elif failure and failure.log_tail.strip() and (not traceback or _OF_COMMAND.search(outcome.reason)):
        tail = failure.log_tail.rstrip().splitlines()[-TAIL_LINES:]
        lines += ["", f"The last lines of its log ({len(tail)}):", *tail]
    if log:
        lines += ["", f"Log of rank {outcome.rank}: {log}"]
    lines.append(f"Run directory: {run_url}")
    lines += _network_findings(state)
    if outcome.rank >= 0:
        advice = remedy(outcome.reason, traceback, host) or "correct the cause above"
        lines.append(f"Remedy: {advice}; `hopsml runs logs {run_url} --rank {outcome.rank}` shows the whole log.")
    return WorkerFailed(
        "\n".join(lines),
        rank=outcome.rank,
        host=host,
        cause=outcome.reason,
        remote_traceback=traceback,
        log=log,
        log_tail=failure.log_tail if failure else "",
        run_dir=run_url,
    )
