"""Tests that the log of a rank covers all generations of its group."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hopsml.cli.watch import logs
from hopsml.errors import ArgumentError
from hopsml.storage import run_logs
from hopsml.storage.run_dir import RunDir

pytestmark = pytest.mark.fast


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    folder = tmp_path / "Experiments" / "app_1" / "logs"
    folder.mkdir(parents=True)
    (folder.parent / "run.json").write_text("{}")
    for name, text in (
        ("g0-rank0", "first"),
        ("g2-rank0", "third\n"),
        ("g10-rank0", "last\n"),
        ("g2-rank1", "other\n"),
    ):
        (folder / f"{name}.log").write_text(text)
    (folder / "g0-rank0.system.jsonl").write_text("{}\n")
    return RunDir(str(folder.parent))


def test_log_of_a_rank_contains_every_generation_in_order(run: RunDir) -> None:
    assert b"".join(run_logs.read_rank_logs(run, 0)).decode() == (
        "==> rank 0, generation 0 <==\nfirst\n==> rank 0, generation 2 <==\nthird\n==> rank 0, generation 10 <==\nlast\n"
    )
    assert b"".join(run_logs.read_rank_logs(run, 0, generation=2)) == b"third\n"
    assert b"".join(run_logs.read_rank_logs(run, 1)) == b"other\n", "one generation: nothing is added"


def test_missing_log_is_reported_with_rank_and_generation(run: RunDir) -> None:
    with pytest.raises(
        ArgumentError,
        match=r"no log of rank 1 of generation 7; its logs of this rank are of generation \d+, in",
    ):
        list(run_logs.read_rank_logs(run, 1, 7))
    with pytest.raises(ArgumentError, match="has no log of rank 7; its logs are of rank 0 to 1, in "):
        list(run_logs.read_rank_logs(run, 7))
    assert run_logs.logs_of_rank(RunDir("/nowhere"), 0) == []


def test_run_without_logs_names_logs_of_nested_runs(run: RunDir) -> None:
    whole = RunDir(str(Path(run.url).parent))
    with pytest.raises(ArgumentError, match=rf"the runs within it have logs: hopsml runs logs '.*{run.url}'$"):
        list(run_logs.read_rank_logs(whole, 0))


def test_run_without_workers_names_command_that_shows_error(tmp_path: Path) -> None:
    with pytest.raises(
        ArgumentError, match=r"has no log of rank 0; none of its workers .* hopsml runs status app_2 shows"
    ):
        list(run_logs.read_rank_logs(RunDir(str(tmp_path / "app_2")), 0))


def test_logs_command_and_magic_print_all_generations(run: RunDir, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    from hopsml.notebook import magics

    logs(run.url)
    sys.stdout.flush()
    printed = capfdbinary.readouterr().out
    magics.logs(run.url)
    sys.stdout.flush()
    assert printed == capfdbinary.readouterr().out == b"".join(run_logs.read_rank_logs(run, 0))


def files_of_generations(count: int, ranks: int = 3) -> list[tuple[str, float]]:
    """Logs and samples of so many generations, a second apart."""
    kinds = ("log", "system.jsonl")
    return [
        (f"g{number}-rank{rank}.{kind}", float(number))
        for number in range(count)
        for rank in range(ranks)
        for kind in kinds
    ]


def test_logs_of_generations_between_the_first_and_the_newest_are_surplus() -> None:
    files = [*files_of_generations(300), ("g7-rank0.core", 0.0), ("note.txt", 0.0)]
    surplus = run_logs.surplus_log_names(files, begun=299)
    left = {name for name, _ in files} - {*surplus}
    assert len(left) == 6 * 51 + 2 and {"g0-rank2.log", "g250-rank0.system.jsonl", "note.txt"} <= left
    assert "g249-rank0.log" in surplus and "g1-rank2.system.jsonl" in surplus
    assert run_logs.surplus_log_names(files_of_generations(51), begun=50) == []
    assert run_logs.surplus_log_names([], begun=0) == []


def test_logs_that_may_still_be_written_are_not_surplus() -> None:
    hour = run_logs.QUIET_S
    files = [("g0-rank0.log", 9 * hour), ("g4-rank1.log", 0.0), ("g4-rank1.system.jsonl", 9 * hour - 5)]
    files += [("g5-rank1.log", 0.0), ("g6-rank1.log", 8.5 * hour), ("g7-rank1.log", 9 * hour)]
    assert run_logs.surplus_log_names(files, begun=0, kept=1) == ["g5-rank1.log"]
    assert run_logs.surplus_log_names(files, begun=7, kept=1) == [
        *("g4-rank1.log", "g4-rank1.system.jsonl", "g5-rank1.log", "g6-rank1.log")
    ]


def test_surplus_logs_are_deleted_from_the_run(run: RunDir) -> None:
    assert run_logs.delete_surplus_logs(run, begun=10, kept=1) == 2
    assert sorted(path.name for path in Path(run.logs).iterdir()) == [
        *("g0-rank0.log", "g0-rank0.system.jsonl", "g10-rank0.log")
    ]
    assert run_logs.delete_surplus_logs(RunDir(f"{run.url}-none"), begun=10) == 0
