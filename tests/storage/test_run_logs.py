"""The log of a rank is that of all generations of its group."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hopsml.cli.logs import logs
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


def test_every_generation_in_order(run: RunDir) -> None:
    assert b"".join(run_logs.pieces(run, 0)).decode() == (
        "==> rank 0, generation 0 <==\nfirst\n==> rank 0, generation 2 <==\nthird\n==> rank 0, generation 10 <==\nlast\n"
    )
    assert b"".join(run_logs.pieces(run, 0, generation=2)) == b"third\n"
    assert b"".join(run_logs.pieces(run, 1)) == b"other\n", "one generation: nothing is added"


def test_a_log_that_is_not_there_is_said(run: RunDir) -> None:
    with pytest.raises(ArgumentError, match="app_1 has no log of rank 1 of generation 7; what there is lies in"):
        list(run_logs.pieces(run, 1, 7))
    assert run_logs.of_rank(RunDir("/nowhere"), 0) == []


def test_the_command_and_the_magic_print_all_of_them(run: RunDir, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    from hopsml.notebook import magics

    logs(run.url)
    sys.stdout.flush()
    printed = capfdbinary.readouterr().out
    magics.logs(run.url)
    sys.stdout.flush()
    assert printed == capfdbinary.readouterr().out == b"".join(run_logs.pieces(run, 0))
