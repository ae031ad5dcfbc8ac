"""``hopsml runs status|metrics|logs|follow|ls`` over a search, from the files of its directory."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from hopsml.search.contract import Suggestion
from hopsml.search.dispatch import journal
from hopsml.search.dispatch.dispatch import Dispatch
from hopsml.search.dispatch.events import AttemptBegan, AttemptEnded, LaneJoined, ValuesReported
from hopsml.search.dispatch.spec import SearchSpec
from hopsml.storage import segments
from hopsml.storage.run_dir import RunDir, to_json
from hopsml.tracking import provenance
from tests.helpers.command_line import Cli
from tests.helpers.search.searching import Counting

pytestmark = pytest.mark.fast


class WideSearcher(Counting):
    """Searcher whose configurations do not fit into a line of a terminal."""

    def ask(self, number: int) -> Any:
        super().ask(number)
        return Suggestion({f"a_parameter_with_a_long_name_{place}": number + 0.5 for place in range(4)})


class RecordedSearch:
    """Recorded search of six trials on two lanes: one has ended, two run."""

    def __init__(self, project: Path) -> None:
        self.root = project / "Experiments" / "app_1"
        self.directory = RunDir(f"file://{self.root}")
        self.dispatch = Dispatch(SearchSpec(6, "min", "loss"), WideSearcher())
        self.root.mkdir(parents=True)
        search = {"version": 1, "direction": "min", "metric": "loss", "total": 6, "folder": "trials"}
        record = {
            "verb": "search",
            "search": search,
            "started": time.time(),
            "driver_process": provenance.process_identity(),
        }
        self.directory.write_run(record)
        first = [journal.version_line(), json.dumps(["session", provenance.process_identity()])]
        self.writer, _ = segments.register_writer(f"file://{self.root}/journal", first)
        self.writer.add([json.dumps(["name", number, f"id-{number}"]) for number in range(6)])
        for lane in range(2):
            self.dispatch.handle(LaneJoined(lane), 0.0)
        for event in (
            AttemptBegan(0, 1),
            AttemptBegan(1, 1),
            ValuesReported(0, 1, 0, 0.75),
            ValuesReported(1, 1, 0, 0.5),
            ValuesReported(1, 1, 1, 0.3),
        ):
            self.dispatch.handle(event, 1.0)
        self.end(0, 0.25)
        self.dispatch.handle(AttemptBegan(2, 1), 3.0)
        self.keep()

    def keep(self) -> None:
        self.writer.add(journal.fact_lines(self.dispatch.take_facts()))
        best = self.dispatch.best()
        assert best is not None
        (self.root / "best.json").write_bytes(to_json(best))

    def end(self, number: int, value: float) -> None:
        self.dispatch.handle(AttemptEnded(number, 1, "finished", value), 2.0)
        folder = self.root / "trials" / f"id-{number}"
        folder.mkdir(parents=True)
        (folder / "output.log").write_text(f"trial {number} speaks\n")


@pytest.fixture
def search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedSearch:
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"file://{tmp_path}")
    return RecordedSearch(tmp_path)


def test_status_of_a_search_has_trial_counts_and_the_best_trial(search: RecordedSearch, cli: Cli) -> None:
    shown = cli("runs", "status", "app_1")
    for words in ("RUNNING", "1 of 6 ended, 2 running, ", "0.25 (min), trial id-0", "id-1  step 1  loss=0.3", "_0=0.5"):
        assert words in shown.out, shown.out + shown.err
    assert all(len(line) <= 80 for line in shown.out.splitlines() if "file://" not in line), shown.out
    facts = json.loads(cli("runs", "status", "app_1", "--json").out)
    assert (facts["trials"]["planned"], facts["trials"]["over"], facts["trials"]["running"]) == (6, 1, 2)
    assert facts["best"]["value"] == 0.25 and facts["best"]["trial_id"] == "id-0"
    assert [one["trial_id"] for one in facts["trials_running"]] == ["id-1", "id-2"]


def test_running_trials_of_a_cancelled_search_are_not_listed_as_running(search: RecordedSearch, cli: Cli) -> None:
    search.directory.write_status({"state": "CANCELLED", "seconds": 3.0, "error": "enough"})
    facts = json.loads(cli("runs", "status", "app_1", "--json").out)
    assert (facts["trials"]["waiting"], facts["trials_running"]) == (3, []), "one had only been asked for"


def test_metrics_of_a_search_are_the_reports_of_its_trials(search: RecordedSearch, cli: Cli) -> None:
    head, *rows = cli("runs", "metrics", "app_1").out.splitlines()
    assert head.split() == ["trial", "number", "step", "loss"]
    assert [row.split() for row in rows] == [
        ["id-0", "0", "0", "0.75"],
        ["id-1", "1", "0", "0.5"],
        ["id-1", "1", "1", "0.3"],
    ]
    (newest,) = cli("runs", "metrics", "app_1", "--json", "--last", "1").out.splitlines()
    assert json.loads(newest) == {"trial": "id-1", "number": 1, "step": 1, "loss": 0.3}


def test_logs_of_a_search_are_the_outputs_of_its_trials(search: RecordedSearch, cli: Cli) -> None:
    assert cli("runs", "logs", "app_1").out == "==> trial 0, id-0, completed: output.log <==\ntrial 0 speaks\n"


def test_ls_shows_the_best_value_of_a_running_search(search: RecordedSearch, cli: Cli) -> None:
    assert "loss=0.25 so far" in cli("runs", "ls").out


def test_follow_shows_the_progress_of_a_search(search: RecordedSearch, cli: Cli) -> None:
    search.directory.write_status({"state": "FINISHED", "seconds": 3.0})
    shown = cli("runs", "follow", "app_1")
    assert shown.status == 0 and "trials 1 of 6 ended" in shown.err and "best loss 0.25" in shown.err
    assert "hopsml runs logs app_1" in shown.err


def test_event_log_is_read_incrementally(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "LONG_BYTES", 8)  # a new segment every few lines
    reader = segments.SegmentReader(str(tmp_path))
    assert reader.read_new_lines() == []
    for number in (1, 2):
        writer, _ = segments.register_writer(str(tmp_path), [f"writer {number}"])
        found = reader.read_new_lines()
        for line in range(5):
            writer.add([str(line)])
            found += reader.read_new_lines() if line % 2 else []
        assert [*found, *reader.read_new_lines()] == [f"writer {number}", *"01234"]
