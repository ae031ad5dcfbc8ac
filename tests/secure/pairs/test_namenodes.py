"""Runs with tokens whose NameNodes are killed or frozen: each continues, and loses nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hopsml import experiment
from hopsml.core import delegation_tokens as tokens
from hopsml.errors import RunError, StorageError
from hopsml.storage import checkpoints, filesystem, urls
from hopsml.storage.filesystem import for_url
from hopsml.storage.run_dir import RunDir
from tests.helpers import clock_shift
from tests.helpers import tokens as test_tokens
from tests.helpers.clock import END_S, wait_until
from tests.helpers.storage.outage_workload import BALLAST_BYTES, EVENTS, line_of, train_until
from tests.secure.pairs.conftest import active_namenode, make_whole
from tools.hadoop import spark

pytestmark = [pytest.mark.secure, pytest.mark.timeout(900)]

RENEW_S = 5.0
TOKENS_END = (
    r"the delegation tokens of this application end at .* and it has neither ticket nor keytab to obtain others; submit "
    r"with spark\.kerberos\.keytab and spark\.kerberos\.principal for a longer run"
)
# Whether a call is under way when a NameNode ends is chance; each note of an outage must be followed by one of its end.
PAIRS = (
    (
        r"checkpoints cannot be written; retrying(?: \(for .*\))?: step \d+: .*",
        r"checkpoints are written again(?:; \d+ (?:was|were) missed)?",
    ),
    (r"mirroring is behind: .*", r"mirroring is up to date again"),
)
Record = Callable[[str, object], None]
AHEAD = """
import json, os, sys, time
from pathlib import Path

from hopsml import experiment
from hopsml.errors import HopsmlError
from hopsml.yarn import ResourceManager
from tests.helpers.storage.outage_workload import train_until

local = Path(sys.argv[1])
(local / "stop").touch()
run = experiment.submit(
    train_until, args={"local": str(local)}, min_workers=1, max_workers=1, checkpoint_every_s=0.1, progress=False
)
value = run.result().value
(local / "now").touch()
ahead_s = time.time() - (local / "now").stat().st_mtime
experiment.shutdown()
os.environ["KRB5CCNAME"] = os.environ["TICKET"]
try:
    refused = str(ResourceManager.from_environment().nodes())
except HopsmlError as error:
    refused = str(error)
found = {"value": value, "run_dir": run.run_dir, "notes": list(run.state.notes), "ahead_s": ahead_s, "refused": refused}
print(json.dumps(found))
"""


def start(local: Path) -> Any:
    """Start a run of one elastic worker that stores a checkpoint as often as it can."""
    return experiment.submit(
        train_until, args={"local": str(local)}, min_workers=1, max_workers=1, checkpoint_every_s=0.1, progress=False
    )


def bytes_lost(run: Any, value: dict[str, int]) -> int:
    """Return how many bytes of a run's log, events and last checkpoint are not in HDFS."""
    steps = range(value["first"], value["last"] + 1)
    log = for_url(run.run_dir).read_bytes(f"{run.run_dir}/logs/g0-rank0.log")
    events = for_url(run.run_dir).read_bytes(f"{run.run_dir}/events/{EVENTS}")
    lost = sum(len(line_of(step)) for step in steps if line_of(step) not in log)
    lost += sum(len(line_of(step)) for step in steps if line_of(step) not in events)
    newest = checkpoints.latest_complete(run.directory.checkpoints)
    return lost + (0 if newest == value["last"] else BALLAST_BYTES)


def finish(run: Any, local: Path, record: Record) -> dict[str, int]:
    """End the run, and check that everything is stored."""
    (local / "stop").touch()
    value: dict[str, int] = run.result(END_S).value
    check_stored(run, value, record)
    return value


def check_stored(run: Any, value: dict[str, int], record: Record) -> None:
    """Check that a run has finished and stored everything."""
    lost = bytes_lost(run, value)
    record("bytes_lost", lost)
    status = json.loads(for_url(run.run_dir).read_bytes(f"{run.run_dir}/status.json"))
    assert lost == 0 and (status["state"], status["not_on_shared_storage"]) == ("FINISHED", {})


def newest(run: Any) -> int:
    """Return the step of the newest checkpoint in HDFS; 0 without one, or while HDFS does not tell."""
    try:
        return checkpoints.latest_complete(run.directory.checkpoints) or 0
    except StorageError:
        return 0


def unexpected_notes(run: Any) -> list[str]:
    """Return the notes that are neither the one about the tokens' end nor a pair of an outage and its end."""
    notes = [note for note in run.state.notes if not re.fullmatch(TOKENS_END, note)]
    for begins, ends in PAIRS:
        first = [note for note in notes if re.fullmatch(begins, note)]
        last = [note for note in notes if re.fullmatch(ends, note)]
        if first and last and notes.index(first[0]) < notes.index(last[-1]):
            notes = [note for note in notes if note not in (*first, *last)]
    return notes


@contextmanager
def killed(cluster: Any) -> Iterator[None]:
    """Kill the active NameNode; the other one takes over within the context or after it."""
    first = active_namenode(cluster)
    cluster.kill(first)
    yield
    wait_until(lambda: active_namenode(cluster) not in ("", first), "the other NameNode", END_S)


@contextmanager
def frozen(cluster: Any) -> Iterator[None]:
    """Freeze the active NameNode for 20 s, which is shorter than the controllers' patience."""
    first = active_namenode(cluster)
    began = time.monotonic()
    cluster.kill(first, signal.SIGSTOP)
    yield
    time.sleep(max(0.0, 20 - (time.monotonic() - began)))  # what is tried is the length of an outage
    cluster.kill(first, signal.SIGCONT)
    wait_until(lambda: active_namenode(cluster), "a NameNode", END_S)


@contextmanager
def both_down(cluster: Any) -> Iterator[None]:
    """Kill both NameNodes for 33 s, which is longer than a call of the storage may take."""
    began = time.monotonic()
    for name in ("nn1", "nn2"):
        cluster.kill(name)
    yield
    time.sleep(max(0.0, 33 - (time.monotonic() - began)))
    cluster.revive("nn1", "nn2")
    wait_until(lambda: active_namenode(cluster), "a NameNode", END_S)


OUTAGES = {"killed": killed, "frozen 20 s": frozen, "both down 33 s": both_down}


@pytest.mark.parametrize("how", OUTAGES)
def test_run_outlives_the_outage_of_a_namenode_during_the_renewal_of_its_tokens(
    how: str, secure_cluster: Any, token_file: Path, tmp_path: Path, record_property: Record
) -> None:
    with test_tokens.renewing(secure_cluster, token_file, RENEW_S) as failures:
        run = start(tmp_path)
        wait_until(lambda: newest(run), "a checkpoint", END_S)
        with OUTAGES[how](secure_cluster):
            before = len(failures)
            wait_until(lambda: len(failures) > before, "a renewal that fails", END_S)
        given = token_file.read_bytes()
        wait_until(lambda: token_file.read_bytes() != given, "the next renewal", END_S)
        seen = newest(run)
        wait_until(lambda: newest(run) > seen, "a later checkpoint", END_S)
        finish(run, tmp_path, record_property)
    assert unexpected_notes(run) == []
    if how == "frozen 20 s":
        assert len(run.state.notes) == 1, "the outage was shorter than a call may take"


def test_killed_namenode_costs_no_checkpoint_that_is_being_written(
    secure_cluster: Any, token_file: Path, tmp_path: Path, record_property: Record
) -> None:
    with test_tokens.renewing(secure_cluster, token_file, RENEW_S):
        run = start(tmp_path)
        folder = run.directory.checkpoints
        wait_until(lambda: newest(run), "a checkpoint", END_S)
        wait_until(
            lambda: [one for one in for_url(folder).list_dir(folder) if urls.is_temporary(one.url)], "an unfinished one"
        )
        with killed(secure_cluster):
            pass
        seen = newest(run)
        wait_until(lambda: newest(run) > seen, "a later checkpoint", END_S)
        finish(run, tmp_path, record_property)
        left = [one.url for one in filesystem.walk(folder) if urls.is_temporary(one.url)]
    assert unexpected_notes(run) == [] and left == []


def test_killed_namenode_costs_no_log_that_is_being_copied(
    secure_cluster: Any, token_file: Path, tmp_path: Path, record_property: Record
) -> None:
    with test_tokens.renewing(secure_cluster, token_file, RENEW_S):
        run = start(tmp_path)
        log = f"{run.run_dir}/logs/g0-rank0.log"
        wait_until(lambda: filesystem.exists(log), "the log", END_S)
        length = for_url(log).status(log).length
        wait_until(lambda: for_url(log).status(log).length > length, "the log to be copied again", END_S)
        with killed(secure_cluster):
            pass
        length = for_url(log).status(log).length
        wait_until(lambda: for_url(log).status(log).length > length, "the log to be copied once more", END_S)
        finish(run, tmp_path, record_property)
    assert unexpected_notes(run) == []


def test_run_starts_and_resumes_while_a_namenode_takes_over(
    secure_cluster: Any, token_file: Path, tmp_path: Path, record_property: Record
) -> None:
    with test_tokens.renewing(secure_cluster, token_file, RENEW_S):
        with killed(secure_cluster):
            run = start(tmp_path)
        wait_until(lambda: newest(run), "a checkpoint", END_S)
        run.cancel("to be resumed")
        with pytest.raises(RunError):
            run.result(END_S)
        assert unexpected_notes(run) == []
        saved = newest(run)
        make_whole(secure_cluster)
        (tmp_path / "stop").touch()  # it ends after its first step
        with killed(secure_cluster):
            result = experiment.resume(run.run_dir, progress=False)
        again = RunDir(result.run_dir)
        assert result.value == {"first": saved + 1, "last": saved + 1}
        lost = 0 if checkpoints.latest_complete(again.checkpoints) == saved + 1 else BALLAST_BYTES
        record_property("bytes_lost", lost)
        assert lost == 0 and (again.read_status() or {})["state"] == "FINISHED"


def test_run_on_a_host_whose_clock_is_600_s_ahead_stores_everything(
    secure_cluster: Any, token_file: Path, tmp_path: Path, record_property: Record
) -> None:
    """Tokens are not judged by the host's clock; a ticket is, and the message names the clocks."""
    if clock_shift.HINDRANCE:
        pytest.skip(clock_shift.HINDRANCE)
    tokens.write(token_file, test_tokens.obtain(secure_cluster))
    code = tmp_path / "ahead.py"
    code.write_text(AHEAD)
    ticket = {"TICKET": secure_cluster.kdc.environment("alice")["KRB5CCNAME"]}
    done = subprocess.run(
        [sys.executable, str(code), str(tmp_path)],
        env={**os.environ, **clock_shift.shifted(600, tmp_path), **ticket, "PYTHONPATH": str(spark.ROOT)},
        capture_output=True, text=True, timeout=END_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["ahead_s"] > 500
    run = SimpleNamespace(
        run_dir=found["run_dir"], directory=RunDir(found["run_dir"]), state=SimpleNamespace(notes=found["notes"])
    )
    check_stored(run, found["value"], record_property)
    assert unexpected_notes(run) == []
    assert "synchronise the clocks" in found["refused"]
