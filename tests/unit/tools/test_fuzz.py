"""Tests of the fuzz targets: a fixed number of inputs of each, and findings, which a faulty reader must cause."""

from __future__ import annotations

import json
import logging
import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tools.fuzz import __main__ as command
from tools.fuzz.target import Finding, Target, check
from tools.fuzz.targets import TARGETS

pytestmark = pytest.mark.fast

EXECUTIONS = 200
_TOKENS = (
    b"null", b"true", b"-1", b"0", b"1e999", b"NaN", b"[]", b"{}", b'""', b"\\ud800", b"\x00", b"\xff", b"\x80", b"\n",
    b"9" * 30, b"9" * 5000, b"[" * 200, b'{"a":' * 50, b"18446744073709551616", "ℵ".encode(), b"..", b"/",
)  # fmt: skip


def mutations(seeds: Sequence[bytes], count: int, seed: int) -> Iterator[bytes]:
    """Yield the seeds, then random changes of them; the same ones for the same arguments, at most ``count`` in all."""
    chance = random.Random(seed)
    yield from seeds[:count]
    for _ in range(count - len(seeds)):
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.choice((1, 1, 1, 2, 4, 8))):
            _mutate(data, seeds, chance)
        yield bytes(data)


def _mutate(data: bytearray, seeds: Sequence[bytes], chance: random.Random) -> None:
    """Change some bytes: a bit, a byte, a removed or repeated piece, an inserted token, a piece of another seed."""
    at = chance.randrange(len(data) + 1)
    end = min(len(data), at + chance.choice((1, 1, 2, 4, 16, 64)))
    match chance.randrange(6):
        case 0 if at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        case 1 if at < len(data):
            data[at] = chance.randrange(256)
        case 2:
            del data[at:end]
        case 3:
            data[at:at] = data[at:end]
        case 4:
            data[at:end] = chance.choice(_TOKENS)
        case _:
            other = chance.choice(seeds)
            begin = chance.randrange(len(other) + 1)
            data[at:end] = other[begin : begin + chance.choice((1, 4, 16, 64))]


@pytest.fixture
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("name", list(TARGETS))
def test_reader_returns_or_raises_a_documented_error(
    name: str, quiet: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    target = TARGETS[name]()
    target.read(target.seeds[0])
    found = [check(target, data) for data in mutations(target.seeds, EXECUTIONS, seed=20261129)]
    faults = {one.signature: (one.data, one.trace) for one in found if one is not None}
    assert not faults, "\n\n".join(f"{data!r}\n{trace}" for data, trace in faults.values())


def _faulty(data: bytes) -> str:
    return data.decode()


def test_undocumented_error_is_a_finding_with_its_place_and_input() -> None:
    target = Target(_faulty, (KeyError,), (b"abc",))
    found = [one for data in mutations(target.seeds, 500, seed=1) if (one := check(target, data)) is not None]
    assert found and {one.signature for one in found} == {found[0].signature}
    assert found[0].signature.startswith("UnicodeDecodeError at test_fuzz.py:_faulty:")
    assert max(one.data for one in found) >= b"\x80" and "_faulty" in found[0].trace
    assert check(Target(_faulty, (ValueError,), ()), b"\xff") is None


def test_mutations_are_the_same_each_time_and_begin_with_the_seeds() -> None:
    seeds = (b"first", b"second")
    one, again = (list(mutations(seeds, 100, seed=3)) for _ in range(2))
    assert one == again and len(one) == 100 and tuple(one[:2]) == seeds
    assert one != list(mutations(seeds, 100, seed=4))


def test_closing_line_names_findings_and_processes_that_ended_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    findings = tmp_path / "findings" / "frames"
    findings.mkdir(parents=True)
    done = "stat::number_of_executed_units: 123\n"
    assert command._outcome("frames", 0, done, findings) == command.Outcome("frames", 123, ())
    finding = Finding("framing.py:_size:30", "KeyError: 1", b"x", "")
    (findings / "a.json").write_text(json.dumps({"signature": finding.signature}))
    found = command._outcome("frames", 0, done, findings)
    assert found.faults == ("KeyError at framing.py:_size:30",)
    (findings / "a.json").unlink()
    assert "status 1" in command._outcome("frames", 1, "ImportError: x", findings).faults[0]
    (tmp_path / "findings" / "frames-timeout-1").write_bytes(b"x")
    assert command._outcome("frames", 70, done, findings).faults == ("frames-timeout-1",)

    monkeypatch.setattr(command, "ensure", lambda: tmp_path)
    monkeypatch.setattr(
        command, "fuzz", lambda name, seconds, runs: found if name == "frames" else command.Outcome(name, 5, ())
    )
    assert command.main(["--targets", "frames job-file"]) == 1
    closing = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert closing == {
        "targets": 2,
        "executions": {"frames": 123, "job-file": 5},
        "failed": ["frames: KeyError at framing.py:_size:30"],
    }
    assert command.main(["--targets", "job-file"]) == 0
