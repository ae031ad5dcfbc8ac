"""Tests of messages and remedies for runs that have not started, and for failed ones."""

from __future__ import annotations

import pytest

from hopsml.cluster.driver import run_texts
from hopsml.cluster.driver.active_run import ActiveRun, RunRequest
from hopsml.cluster.driver.run_state import RunState
from hopsml.cluster.driver.run_texts import error_of, waiting_text, why_missing
from hopsml.cluster.gang.events import ConcludeRun, Phase
from hopsml.cluster.gang.pool import Pool
from hopsml.cluster.shared.spec import AnyGroup, ElasticGroup, FixedGroup, RunSpec
from hopsml.cluster.shared.worker_events import FailureReport
from hopsml.core.processes import KERNEL_KILL
from tests.helpers.cluster.simulated import SimulatedBackend

pytestmark = pytest.mark.fast

KERAS = """  File "keras/src/backend/tensorflow/optimizer.py", line 134, in _distributed_tf_update_step
    distribution.extended.update(
AssertionError
"""
COLUMN = """  File "train.py", line 5, in train
    F.col("a")
  File "/venv/lib/python3.11/site-packages/pyspark/sql/functions/builtin.py", line 112, in _invoke_function
    assert SparkContext._active_spark_context is not None
AssertionError
"""
OWN_ASSERTION = """  File "/venv/lib/python3.11/site-packages/pyspark/sql/udf.py", line 5, in wrapper
    return f(*args)
  File "train.py", line 5, in train
    assert rows
AssertionError
"""
INPUT = """    name = input("name? ")
           ^^^^^^^^^^^^^^^
EOFError: EOF when reading a line
"""


@pytest.mark.parametrize(
    ("cause", "traceback", "words"),
    [
        ("AssertionError", KERAS, ["outside of the strategy's scope", "with strategy.scope():"]),
        (
            "ValueError: Variable (w) was not created in the distribution strategy scope of (x)",
            "",
            ["strategy.scope()"],
        ),
        ("AssertionError", "    assert len(x) == 3\nAssertionError", []),
        (
            "CollectiveMismatch: members called different operations: rank 1 all_reduce of 4; rank 0 all_reduce of 3",
            "",
            ["same operations in the same order", "hopsml.all_gather"],
        ),
        ("Command 'python a.py' died with <Signals.SIGABRT: 6>.", "", ["destroy_process_group"]),
        ("no (Command 'sh a' returned non-zero exit status 134)", "", ["destroy_process_group"]),
        ("no (Command 'sh a' returned non-zero exit status 13)", "", []),
        ("ValueError: a bad value", KERAS, []),  # within a step, and about something else
        ("EOFError: EOF when reading a line", INPUT, ["a worker has no keyboard", "args="]),
        ("TypeError: 'Dataset' object is not subscriptable", "", ["for batch in rows.batch(1024)", "args="]),
        ("UnimplementedError: Graph execution error: Cast string to float is not supported", "", ["StringIndexer"]),
        (
            "the agent on h (executor e) was lost: its connection broke, since the executor or the agent in it was killed. "
            "Spark reports for executor 0: Command exited with code 137",
            "",
            ["spark.executor.memoryOverhead", "experiment.resume(run)", "min_workers="],
        ),
        (
            "PySparkRuntimeError: [SESSION_OR_CONTEXT_NOT_EXISTS] SparkContext or SparkSession should be created first.",
            "",
            ["outside of Spark's tasks", "data={...}", "f.func(...)"],
        ),
        ("AssertionError", COLUMN, ["outside of Spark's tasks", "data={...}"]),
        ("AttributeError: 'NoneType' object has no attribute '_jvm'", COLUMN, ["outside of Spark's tasks"]),
        ("AssertionError", OWN_ASSERTION, []),
        (
            "TypeError: ParameterServerStrategyV2.__init__() missing 1 required positional argument: 'cluster_resolver'",
            "",
            ["hopsml.tensorflow.strategy()", "hopsml.tensorflow.ServerLoop"],
        ),
        ("EOFError: Ran out of input", "    pickle.load(file)\nEOFError: Ran out of input", []),
        (
            "ModuleNotFoundError: No module named 'here.sub'",
            "",
            ["'here' is installed here, but not on h1", "--ship-environment auto"],
        ),
        ("ModuleNotFoundError: No module named 'xgboost'", "", ["'xgboost' is not on h1", "pip install", "--py-files"]),
        ("ValueError: no", "", []),
        ("MemoryError: Unable to allocate 8.00 PiB for an array", "", ["than h1 has left", "data=", "memoryOverhead"]),
        ("RuntimeError: DefaultCPUAllocator: can't allocate memory", "", ["smaller batch"]),
        (
            f"killed by SIGKILL: {KERNEL_KILL}: oom_kill in /x went from 0 to 1; its memory limit is 512 MB",
            "",
            ["than h1 has left", "fewer workers on a host"],
        ),
        (
            "killed by SIGKILL: whether the kernel sent it for lack of memory is unknown, since no file can be read",
            "",
            [],
        ),
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "", ["the GPU has less", "nvidia-smi"]),
        (
            "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
            "",
            ["no GPU of h1", "torch.cuda.is_available()"],
        ),
        ("AssertionError: Torch not compiled with CUDA enabled", "", ["no GPU of h1"]),
        (
            "when the function of rank 0 had returned: PeerLost: rank 0 has ended the group: the training function has "
            "ended, while this one was in all_reduce 'gradients of Linear: weight to bias'",
            "",
            ["has returned", "same number of batches", "hopsml.elastic.Sampler"],
        ),
        ("OSError: [Errno 28] No space left on device: '/tmp/x'", "", ["a disk of h1 is full", "TMPDIR"]),
        ("ResourceExhaustedError: /tmp/x; No space left on device [Op:SaveV2]", "", ["a disk of h1 is full", "TMPDIR"]),
        ("OutOfRangeError: /tmp/x; File too large [Op:SaveV2]", "", ["on h1 reached the largest size", "ulimit -f"]),
        ("OSError: [Errno 27] File too large", "", ["on h1 reached the largest size", "ulimit -f"]),
        (
            "ValueError: Unrecognized data type: x=Dataset(source=<StagedRows>, ...) (of type ...)",
            "",
            ["rows.tensorflow("],
        ),
    ],
)
def test_remedy_of_a_failure_follows_from_cause_and_traceback(cause: str, traceback: str, words: list[str]) -> None:
    text = run_texts.remedy(cause, traceback, "h1", here=lambda module: module == "here")
    assert bool(text) == bool(words)
    for word in words:
        assert word in text


def test_is_here_is_true_for_importable_modules_only() -> None:
    assert run_texts.is_importable("json") and run_texts.is_importable("hopsml.cluster")
    assert not run_texts.is_importable("no_such_module") and not run_texts.is_importable("no_such_module.below")


@pytest.mark.parametrize(
    ("cause", "words"), [("EOFError: EOF", "has no keyboard"), ("ValueError: 3", "correct the cause")]
)
def test_error_ends_with_remedy_and_log_command(cause: str, words: str) -> None:
    report = FailureReport(cause, INPUT, log="/runs/r/logs/g0-rank0.log")
    outcome = ConcludeRun(Phase.FAILED, error="worker", reason=cause, rank=0)
    error = error_of(outcome, RunState("r", 2), "/runs/r", report, "h1", "")
    last = str(error).splitlines()[-1]
    assert last.startswith("Remedy: ") and words in last
    assert last.endswith("`hopsml runs logs /runs/r --rank 0` shows the whole log.")


def waiting_run(group: AnyGroup) -> ActiveRun:
    request = RunRequest("run", RunSpec(group=group), payload=b"", run_url="file:///nowhere")
    return ActiveRun(request, RunState("run", group.size))


@pytest.mark.parametrize(("group", "wanted"), [(FixedGroup(size=2), 2), (ElasticGroup(size=4, min_size=3), 3)])
def test_missing_agents_without_a_known_cause_are_reported_as_ended_requests(group: AnyGroup, wanted: int) -> None:
    outcome, backend = ConcludeRun(Phase.FAILED, "start"), SimulatedBackend(2)
    text = why_missing(waiting_run(group), outcome, Pool(), backend, ())
    assert text.startswith(f"0 of {wanted} agents are connected; the requested agents have ended")
    assert why_missing(waiting_run(group), outcome, Pool(), backend, ("other",)).endswith("connected; other holds some")


@pytest.mark.parametrize(
    ("group", "wanted"), [(FixedGroup(size=2), "2"), (ElasticGroup(size=4, min_size=3), "at least 3")]
)
def test_waiting_text_names_other_work_of_the_application(group: AnyGroup, wanted: str) -> None:
    text = waiting_text(waiting_run(group), Pool())
    assert text == f"waiting for executors: 0 of {wanted} agents are connected"
    held = "other Spark jobs of this application hold slots: stage 3 (collect at train.py:7)"
    assert waiting_text(waiting_run(group), Pool(), held) == f"{text}; {held}"


SILENT = "the agent on 10.0.0.2 (executor e) was lost: no message for 10 s"
BLACK_HOLE = "preflight: the slot of agent a2 on h (10.0.0.2/1): network: between it and a1: did not answer within 3 s"


def test_error_of_a_silent_worker_names_the_network_and_min_workers() -> None:
    state = RunState("run", 2)
    text = str(
        error_of(ConcludeRun(Phase.FAILED, "worker", SILENT, "b", 1), state, "file:///run", None, "10.0.0.2", "")
    )
    assert "network between the driver and 10.0.0.2 was interrupted for more than 10 s" in text
    assert "heartbeat_timeout=" in text and "min_workers=" in text


@pytest.mark.parametrize("error", ["worker", "start"])
def test_error_repeats_the_network_problem_found_by_the_preflight(error: str) -> None:
    state = RunState("run", 2)
    state.notes += ["something else", BLACK_HOLE]
    text = str(error_of(ConcludeRun(Phase.FAILED, error, "hangs", "b", 1), state, "file:///run", None, "", ""))
    assert text.count("Seen before: ") == 1 and BLACK_HOLE in text
