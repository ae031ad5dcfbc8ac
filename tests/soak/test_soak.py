"""Tests that the soak finds planted growth, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.clock import END_S
from tests.soak.__main__ import LEAST_ROUNDS, judged, play
from tests.soak.measured import Process
from tests.soak.parts import Sample, Service, files

ROOT = Path(__file__).resolve().parents[2]


class Leaking:
    """Part whose process leaks one resource per round."""

    def __init__(self, folder: Path, kind: str) -> None:
        self._files, self._kind, self._rounds = folder / "files", kind, 0
        self._files.mkdir(parents=True)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = Process(kind, folder / "measured", "tests.soak.leaking", str(self._files), **pipes)

    def round(self) -> Iterator[Sample]:
        stdin, stdout = self._process.popen.stdin, self._process.popen.stdout
        assert stdin is not None and stdout is not None
        for _ in range(4):
            stdin.write(f"{self._kind}\n")
            stdin.flush()
            assert stdout.readline() == "done\n"
        self._rounds += 4
        for quantity, value in {**self._process.measure(), **files(self._files)}.items():
            yield Sample(self._kind, quantity, "line", self._rounds, value)

    def lines(self) -> list[str]:
        return self._process.lines()

    def end(self) -> None:
        for pipe in (self._process.popen.stdin, self._process.popen.stdout):
            assert pipe is not None
            pipe.close()
        assert self._process.popen.wait(END_S) == 0


@pytest.mark.local
def test_each_kind_of_planted_growth_is_found_and_named(tmp_path: Path) -> None:
    kinds = ("nothing", "objects", "descriptors", "threads", "files")
    players = play({kind: Leaking(tmp_path / kind, kind) for kind in kinds}, minutes=0)
    grows, untold = judged(sample for player in players for sample in player.samples)
    assert untold == []
    found = {(one["what"], one["quantity"]): one["each"] for one in grows if one["quantity"] != "rss"}
    assert {("objects", "objects"), ("descriptors", "descriptors"), ("threads", "threads"), ("files", "files")} == {
        *found
    }
    assert 42_000 < found["objects", "objects"] < 43_000
    assert {value for (_, quantity), value in found.items() if quantity != "objects"} == {1.0}
    (line,) = (player.lines[0] for player in players if player.name == "objects")
    assert line.startswith("tests/soak/leaking.py:")


@pytest.mark.fast
def test_too_few_rounds_give_no_decision() -> None:
    samples = [Sample("a", "threads", "run", number, number) for number in range(LEAST_ROUNDS)]
    assert judged(samples) == ([{"what": "a", "quantity": "threads", "unit": "run", "each": 1, "altogether": 3}], [])
    assert judged(samples[1:]) == ([], [f"a: threads: {LEAST_ROUNDS - 1} samples"])


@pytest.mark.chaos
@pytest.mark.variant
@pytest.mark.timeout(900)
def test_short_soak_finds_no_growth() -> None:
    command = ["make", "-o", ".venv/.complete", "-o", ".cache/native/built", "soak", "SOAK_MINUTES=1"]
    known = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(command, cwd=ROOT, env=known, capture_output=True, text=True, timeout=880)
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"grows": []}


@pytest.mark.chaos
@pytest.mark.variant
@pytest.mark.timeout(900)
@pytest.mark.parametrize("planted", ["objects", "descriptors"])
def test_growth_of_a_server_with_its_jobs_is_found(tmp_path: Path, planted: str) -> None:
    (player,) = play({"service": Service(tmp_path, planted)}, minutes=0)
    grows, _ = judged(player.samples)
    assert ("server", planted) in {(one["what"], one["quantity"]) for one in grows}
