"""Tests of the local engine on folders with missing or incomplete files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hopsml.core import processes
from hopsml.core.states import Lifecycle
from hopsml.core.tracebacks import VARIABLE
from hopsml.engines import local_driver
from hopsml.engines.local_driver import ENDED, OUTPUT, ROOM, RUNNING, DriverOrder
from hopsml.service.engine import local
from tests.helpers import clock

pytestmark = pytest.mark.fast


def test_folder_with_missing_or_incomplete_files_is_polled_without_error(tmp_path: Path) -> None:
    (tmp_path / RUNNING).write_text("{}")
    assert local._seen(tmp_path) is None
    (tmp_path / RUNNING).write_text(" " * ROOM)
    assert local._seen(tmp_path) is None
    (tmp_path / ENDED).write_text(json.dumps({"status": 3, "problem": ""}))
    seen = local._seen(tmp_path)
    assert seen is not None and (seen.state, seen.diagnostics) == (Lifecycle.FAILED, "exit status 3")
    (tmp_path / OUTPUT).write_text("ValueError: wrong\n\nRemedy: correct the cause above\n")
    seen = local._seen(tmp_path)
    assert seen is not None and seen.diagnostics == "exit status 3: ValueError: wrong"


@pytest.mark.parametrize(("status", "was_interrupted"), [(130, True), (-2, True), (1, False), (-9, False)])
def test_exit_status_of_an_interrupt_is_recognized(tmp_path: Path, status: int, was_interrupted: bool) -> None:
    (tmp_path / ENDED).write_text(json.dumps({"status": status, "problem": ""}))
    seen = local._seen(tmp_path)
    assert seen is not None and seen.was_interrupted == was_interrupted


RUN_FAILED = """
hopsml digits-1_1: step 7  loss 0.5
hopsml: run digits-1_1: rank 0 of 2 on host node3 failed first: ValueError: wrong

Its traceback:
Traceback (most recent call last):
  File "train.py", line 3, in train
ValueError: wrong

Log of rank 0: hdfs:///Projects/demo/Experiments/digits-1_1/logs/g0-rank0.log
Run directory: hdfs:///Projects/demo/Experiments/digits-1_1
Remedy: correct the cause above; `hopsml runs logs hdfs:///P/demo/Experiments/digits-1_1 --rank 0` shows the whole log.
"""
HINT = "hopsml: the traceback with hopsml's own frames is in /home/u/1.txt; HOPSML_TRACEBACK=full shows it here"
RAISED = """
Traceback (most recent call last):
  File "a.py", line 6, in <module>
    f()
KeyError: 'x'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "a.py", line 8, in <module>
    raise ValueError("no such table: clicks\\n  of:\\nproduction") from e
ValueError: no such table: clicks
  of:
production
"""


@pytest.mark.parametrize(
    ("printed", "cause"),
    [
        ("", ""),
        ("hopsml: there is no such file\n", "there is no such file"),
        ("hopsml: only a note\nTraceback (most recent call last):\nKeyError: 'lr'\n", "KeyError: 'lr'"),
        (f"Traceback (most recent call last):\nKeyError: 'lr'\n{HINT}\n", "KeyError: 'lr'"),
        (f"KeyError: 'lr'\nhopsml: {VARIABLE}=full shows the frames of hopsml as well\n", "KeyError: 'lr'"),
        (f"{RAISED}{HINT}\n", "ValueError: no such table: clicks"),
        (f"{HINT}\nafterwards\n", "afterwards"),
        (RUN_FAILED, "run digits-1_1: rank 0 of 2 on host node3 failed first: ValueError: wrong"),
        (
            "hopsml: only a note\n" + RUN_FAILED,
            "run digits-1_1: rank 0 of 2 on host node3 failed first: ValueError: wrong",
        ),
    ],
)
def test_last_output_line_gives_the_cause_without_the_remedy(printed: str, cause: str) -> None:
    assert local.end_reason_line(printed) == cause


def test_exit_status_is_recorded_on_a_full_disk(tmp_path: Path) -> None:
    fills = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"  # no file grows from now on
        "import os, sys; from pathlib import Path; from hopsml.engines.local_driver import DriverOrder, main\n"
        "main(Path(sys.argv[1]), DriverOrder(['sh', '-c', 'exit 3'], os.environ))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", fills, str(tmp_path)], env=environment, check=True)
    deadline = clock.awake() + 20
    while not (tmp_path / ENDED).exists():
        assert clock.awake() < deadline
        time.sleep(0.01)
    running = json.loads((tmp_path / RUNNING).read_text())
    assert running["driver"] and (tmp_path / RUNNING).stat().st_size == ROOM
    seen = local._seen(tmp_path)
    assert seen is not None and seen.state == Lifecycle.FAILED


def test_program_with_a_name_cut_within_a_character_is_ended(tmp_path: Path) -> None:
    program, folder = tmp_path / ("a" * 14 + "ä.sh"), tmp_path / "job"
    program.write_text("#!/bin/sh\nsleep 600\n")
    program.chmod(0o700)
    folder.mkdir()
    local_driver.start(folder, DriverOrder([str(program)], os.environ))
    clock.wait_until(lambda: (seen := local._seen(folder)) is not None and seen.state is Lifecycle.RUNNING)
    supervisor = json.loads((folder / RUNNING).read_text())["pid"]
    try:
        local_driver.signal_driver(folder, signal.SIGKILL)
        clock.wait_until(lambda: (folder / ENDED).exists())
    finally:
        for pid in processes.descendants_of(supervisor):
            processes.kill_quietly(pid, signal.SIGKILL)
    seen = local._seen(folder)
    assert seen is not None and seen.state is Lifecycle.STOPPED
