"""Tests of a lane whose process has threads and cannot fork: its runners are fresh interpreters."""

from __future__ import annotations

import os
import pickle
import select
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from hopsml.cluster.shared.framing import FrameDecoder, framed
from hopsml.cluster.worker.context import Inbox, WorkerContext
from hopsml.search import messages
from hopsml.search.messages import RunTrial, ToDriver, TrialEnded
from hopsml.training.trials.lane import Lane
from hopsml.training.trials.runner import RunnerOptions
from tests.helpers.clock import END_S

pytestmark = pytest.mark.fast

LANE = textwrap.dedent(
    """
    import os, sys, threading
    from pathlib import Path
    from hopsml.cluster.worker.context import WorkerContext
    from hopsml.cluster.shared.framing import framed
    from hopsml.cluster.worker.context import Inbox
    from hopsml.training.trials.lane import Lane
    from hopsml.training.trials.runner import RunnerOptions

    folder = Path(sys.argv[1])
    if sys.argv[2] == "threads":
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    paths = {f"{name}_dir": folder / name for name in ("work", "events", "checkpoint", "export")}
    context = WorkerContext(
        run_id="app_1", generation=0, rank=0, world_size=1, local_rank=0, role="chief", run_url=str(folder), **paths,
        logdir=f"{folder}/events", say=lambda data: os.write(1, framed(data)), inbox=Inbox(0),
    )
    Lane(context, RunnerOptions((folder / "payload").read_bytes())).serve()
    """
)


@pytest.mark.parametrize("how", ["threads", "none"])
def test_trials_run_in_separate_interpreters_where_forking_is_unsafe(tmp_path: Path, how: str) -> None:
    def train(x: int) -> dict[str, Any]:
        name = sys.argv.pop()  # which the next trial has again
        return {"metric": x, "spawned": "hopsml.training.trials.runner" in sys.orig_argv, "name": name}

    (tmp_path / "work").mkdir()
    (tmp_path / "payload").write_bytes(cloudpickle.dumps((train, {})))
    command = [sys.executable, "-c", LANE, str(tmp_path), how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as lane:
        assert lane.stdin is not None and lane.stdout is not None
        for number in range(3):
            config = pickle.dumps({"x": number})
            lane.stdin.write(framed(messages.encode(RunTrial(number, 0, trial_id=f"t{number}", config=config))))
        frames, ends = FrameDecoder(), list[ToDriver]()
        while len(ends) < 3:
            received = [messages.decode_for_driver(frame) for frame in frames.feed(lane.stdout.read(1 << 16))]
            ends += [message for message in received if isinstance(message, TrialEnded)]
        lane.stdin.close()
        assert lane.wait(END_S) == 0
    values = [pickle.loads(end.outputs) for end in ends if isinstance(end, TrialEnded)]
    assert values == [{"metric": number, "spawned": how == "threads", "name": "train"} for number in range(3)]


def test_lane_does_not_block_on_a_runner_that_does_not_read_yet(tmp_path: Path) -> None:
    """A fresh interpreter may import a framework for a long time, while the slot serves other requests."""
    read_end, write_end = os.pipe()
    paths = {f"{name}_dir": tmp_path / name for name in ("work", "events", "checkpoint", "export")}
    context = WorkerContext(
        run_id="app_1", generation=0, rank=0, world_size=1, local_rank=0, role="chief", run_url=str(tmp_path), **paths,
        inbox=Inbox(read_end),
    )  # fmt: skip
    ours, theirs = socket.socketpair()
    with ours, theirs:
        lane = Lane(context, RunnerOptions(b""))
        lane._connection = ours
        lane._poll.register(ours.fileno(), select.POLLIN)
        trials = [RunTrial(number, 0, trial_id=f"t{number}", config=bytes(2 << 20)) for number in range(2)]
        for trial in trials:
            lane._give(trial)  # returns at once
        lane._end_messages()
        frames, received = FrameDecoder(), list[RunTrial]()
        while piece := theirs.recv(1 << 16):
            received += [messages.decode_for_lane(frame) for frame in frames.feed(piece)]  # type: ignore[misc]
            lane._push()
    assert received == trials
    os.close(write_end)
