"""Tests of runs from cells of real kernels, on local workers: output, and failures.

Each test takes a second or more for its kernel's or its workers' start, so they are among the slower ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import clock
from tests.helpers.cluster.workloads import Trace, living, traces, wait_until
from tests.helpers.leaks import not_of_this_test
from tests.integration.notebook.kernels import Kernel, environment, kernel

pytestmark = pytest.mark.tensorflow

GONE_S = 10.0
SETUP = """
import hopsml
from hopsml import experiment
from tests.helpers.cluster import workloads
"""
STEPS = """
def train(lr):
    for step in range(1, 6):
        hopsml.report(step=step, loss=lr / step)
        print("line", step * factor, flush=True)
    return {"accuracy": 0.5 * factor}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with environment(tmp_path_factory.mktemp("notebook")) as folder:
        yield folder


@pytest.fixture(scope="module")
def notebook(project: Path) -> Iterator[Kernel]:
    with kernel() as started:
        assert not started.run(SETUP).error
        yield started


def all_processes(found: list[Trace]) -> list[int]:
    return [pid for trace in found for pid in (trace.worker, trace.child, trace.server, trace.agent)]


# -- what is shown


def test_run_is_one_display_updated_in_place_and_its_cell_can_be_run_again(notebook: Kernel) -> None:
    notebook.run(STEPS)
    notebook.run("factor = 1")
    call = "result = experiment.collective_all_reduce(train, args={'lr': 0.5}, name='digits', num_workers=2)"
    first = notebook.run(call)
    assert not first.error and first.text == ""  # the display instead of lines
    assert first.display[0].startswith("digits (local-") and "WAITING" in first.display[0]
    last = first.display[-1]
    for part in ("): FINISHED, ", "step 5", "loss 0.1", "result: accuracy 0.5", "line 5", "run directory: file://"):
        assert part in last, last
    assert [line.split()[1] for line in last.splitlines() if line[:2] in ("0 ", "1 ")] == ["FINISHED", "FINISHED"]
    notebook.run("factor = 2")  # another cell: the name is captured as it is now
    again = notebook.run(call)
    assert "result: accuracy 1" in again.display[-1] and "line 10" in again.display[-1]
    assert set(again.displays).isdisjoint(first.displays)


def test_submitted_run_is_updated_in_its_cell_while_other_cells_run(notebook: Kernel, tmp_path: Path) -> None:
    code = f"run = experiment.submit(workloads.report_steps, args={{'folder': {str(tmp_path)!r}}}, num_workers=1)"
    begun = notebook.run(code)
    other = notebook.run("print('another cell')")
    notebook.until(begun, lambda: "step 4" in begun.display[-1])
    (tmp_path / "go-on").touch()
    notebook.run("run.result(600)")
    assert "result: metric 5" in begun.display[-1] and other.text == "another cell\n" and not other.displays


FAIL = """
def fail():
    print('before', workloads.my_rank())
    if workloads.my_rank(): {}['no such layer']
    workloads.time.sleep(600)
"""
OWN_FRAMES = ("hopsml/experiment", "hopsml/cluster", "concurrent/futures", "threading.py")


def test_failed_cell_shows_its_error_once_without_internal_frames(notebook: Kernel) -> None:
    notebook.run(FAIL)
    cell = notebook.run("experiment.collective_all_reduce(fail, num_workers=2)")
    assert cell.error == "WorkerFailed" and "rank 1" in cell.message and cell.text == ""
    for part in (
        "rank 1 of 2 on host 127.0.0.1",
        "KeyError: 'no such layer'",
        "in fail",
        "    if workloads.my_rank(): {}['no such layer']",  # the source line, which the worker does not have
        "Log of rank 1: file://",
        "----> 1 ",
    ):
        assert part in cell.traceback, cell.traceback
    assert not [frame for frame in OWN_FRAMES if frame in cell.traceback], cell.traceback
    assert len(cell.traceback.splitlines()) <= 17
    assert "HOPSML_TRACEBACK=full" in cell.traceback.splitlines()[-1], "with the file that has all frames"
    last = cell.display[-1]
    assert ": FAILED, " in last and "end of the log of rank 1:\n  before 1\n" in last
    assert "KeyError" not in last and "Traceback" not in last, last


def test_failure_not_shown_as_an_error_is_shown_in_the_display(notebook: Kernel) -> None:
    notebook.run(FAIL)
    cell = notebook.run("run = experiment.submit(fail, num_workers=2)\nrun.exception(60)\nNone")
    for part in ("FAILED, ", "rank 1 on 127.0.0.1: KeyError: 'no such layer'", "end of the log of rank 1", "  before 1",
                 "  KeyError: 'no such layer'"):  # fmt: skip
        assert part in cell.display[-1], cell.display[-1]
    assert not cell.error
    later = notebook.run("run.result()")  # another cell shows everything, and the first one is unchanged
    assert "KeyError: 'no such layer'" in later.traceback and not [own for own in OWN_FRAMES if own in later.traceback]
    assert "KeyError" in cell.display[-1]


def test_invalid_call_shows_one_sentence_and_all_frames_on_request(notebook: Kernel) -> None:
    wrong = "experiment.collective_all_reduce(lambda: 1, num_worker=2)"
    cell = notebook.run(wrong)
    assert cell.error == "ArgumentTypeError" and len(cell.traceback.splitlines()) <= 7, cell.traceback
    assert not [frame for frame in OWN_FRAMES if frame in cell.traceback]
    notebook.run("%xmode Verbose")
    assert "hopsml/experiment" in notebook.run(wrong).traceback
    notebook.run("%xmode Context")


def test_search_without_a_successful_trial_shows_its_error_once(notebook: Kernel) -> None:
    notebook.run("def bad(x): raise ValueError(f'no {x}')\nspace = experiment.Searchspace(x=('INTEGER', [1, 3]))")
    cell = notebook.run("experiment.search(bad, space, searcher='random', num_trials=2, direction='max', retries=0)")
    assert cell.error == "RunError" and "ValueError: no " in cell.traceback, cell
    assert not [frame for frame in OWN_FRAMES if frame in cell.traceback], cell.traceback
    assert ": FAILED, " in cell.display[-1] and "ValueError" not in cell.display[-1], cell.display[-1]


def test_large_captured_objects_are_noted(notebook: Kernel) -> None:
    notebook.run("import numpy as np\ntable = np.ones(400_000)\ndef use(): return float(table.sum())")
    last = notebook.run("experiment.collective_all_reduce(use, num_workers=1)").display[-1]
    assert "note: use and what it captures take 3.1 MiB, which every worker receives: " in last
    assert "table" in last and "numpy.ndarray" in last and "result: metric 4e+05" in last


def test_lines_replace_the_display_on_request_and_within_capture(notebook: Kernel) -> None:
    notebook.run("def one(): return 1\nimport os\nos.environ['HOPSML_PROGRESS'] = 'lines'")
    cell = notebook.run("experiment.collective_all_reduce(one, num_workers=1).value")
    notebook.run("del os.environ['HOPSML_PROGRESS']")
    assert not cell.displays and ": RUNNING\n" in cell.text and cell.results[-1]["text/plain"] == "1"
    quiet = notebook.run("%%capture kept\nexperiment.collective_all_reduce(one, num_workers=1)")
    assert not quiet.displays and not quiet.text
    assert ": RUNNING\n" in notebook.run("print(kept.stderr)").text


# -- trouble


def test_interrupt_cancels_the_run_and_the_kernel_remains_usable(notebook: Kernel, tmp_path: Path) -> None:
    args = f"{{'folder': {str(tmp_path)!r}}}"
    cell = notebook.begin(f"experiment.collective_all_reduce(workloads.sleep_with_trace, args={args}, num_workers=2)")
    found = traces(tmp_path)
    notebook.until(cell, lambda: cell.displays and ": RUNNING, " in cell.display[-1])
    started_s = clock.awake()
    notebook.interrupt()
    notebook.until(cell, lambda: cell.is_over)
    assert clock.awake() - started_s < GONE_S and cell.error == "KeyboardInterrupt"
    assert "CANCELLED, " in cell.display[-1] and "interrupted by the user" in cell.display[-1]
    assert not [frame for frame in OWN_FRAMES if frame in cell.traceback], cell.traceback
    assert len(cell.traceback.splitlines()) <= 6
    assert not living([pid for trace in found for pid in (trace.worker, trace.child)])
    after = notebook.run("experiment.collective_all_reduce(lambda: 7, num_workers=2).value")
    assert after.results[-1]["text/plain"] == "7"


@pytest.mark.variant
def test_two_notebooks_run_at_once(notebook: Kernel, project: Path, tmp_path: Path) -> None:
    with kernel() as other:
        cells = []
        for own, its, one in (("a", "b", notebook), ("b", "a", other)):
            args = {"folder": str(tmp_path), "own": own, "other": its}
            one.run(SETUP)
            cells.append(
                one.begin(f"experiment.collective_all_reduce(workloads.meet, args={args}, num_workers=1).value")
            )
        notebook.until(cells[0], lambda: cells[0].is_over)
        other.until(cells[1], lambda: cells[1].is_over)
    assert [cell.results[-1]["text/plain"] for cell in cells] == ["'a'", "'b'"]


def test_disconnected_front_end_does_not_end_the_run(notebook: Kernel, tmp_path: Path) -> None:
    args = f"{{'folder': {str(tmp_path)!r}}}"
    code = f"left = experiment.collective_all_reduce(workloads.report_steps, args={args}, num_workers=1)"
    cell = notebook.begin(code)
    notebook.until(cell, lambda: cell.displays and "step 4" in cell.display[-1])
    notebook.client.stop_channels()
    (tmp_path / "go-on").touch()
    with not_of_this_test():
        notebook.connect()
    assert notebook.run("print(left.state, left.value)").text == "FINISHED 5\n"


def test_processes_of_a_killed_kernel_end_and_a_new_kernel_can_run(project: Path, tmp_path: Path) -> None:
    with kernel() as killed:
        killed.run(SETUP)
        args = f"{{'folder': {str(tmp_path)!r}}}"
        cell = killed.begin(f"experiment.collective_all_reduce(workloads.sleep_with_trace, args={args}, num_workers=2)")
        found = traces(tmp_path)
        assert len(living(all_processes(found))) == 8
        started_s = clock.awake()
        killed.kill()
        wait_until(lambda: not living(all_processes(found)), "the end of agents and workers", GONE_S)
        assert clock.awake() - started_s < GONE_S and not cell.is_over
        killed.restart()
        killed.run(SETUP)
        again = killed.run("experiment.collective_all_reduce(lambda: 7, num_workers=2).value")
        assert again.results[-1]["text/plain"] == "7"
        assert "LOST" in killed.run("%load_ext hopsml\n%runs").results[-1]["text/plain"]


@pytest.mark.variant
def test_kernel_shut_down_during_a_run_ends_it_in_order(project: Path, tmp_path: Path) -> None:
    with kernel() as closed:
        closed.run(SETUP)
        args = f"{{'folder': {str(tmp_path)!r}}}"
        closed.run(
            f"run = experiment.submit(workloads.sleep_with_trace, args={args}, num_workers=2)\nprint(run.run_id)"
        )
        (run_id,) = [line for cell in closed.cells.values() for line in cell.text.split()]
        found = traces(tmp_path)
        closed.manager.shutdown_kernel()  # waits for its end, and would kill it after a while
        assert not living(all_processes(found))
    status = json.loads((project / "Experiments" / run_id / "status.json").read_text())
    assert status["state"] == "CANCELLED" and "the application ends" in status["error"]
