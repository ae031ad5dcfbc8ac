"""Process that fuzzes one target with atheris until the time is over, guided by the coverage of hopsml's code.

    PYTHONPATH=.cache/fuzz/site .venv/bin/python -m tools.fuzz.fuzzer TARGET FOLDER SECONDS RUNS

An undocumented exception does not end it: the shortest input of each kind is written to FOLDER/findings/TARGET, with its
traceback. An input that takes longer than ``INPUT_S`` or more memory than ``INPUT_MB`` ends it, with an exit status
other than 0.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from pathlib import Path

import psutil

from tools.fuzz.target import Finding, Target, check

INPUT_S = 10  # seconds for one input
INPUT_MB = 256  # memory in addition to that of the process before the first input
MOST_BYTES = 16 << 10  # of an input
PACKAGES = ["hopsml", "yaml", "websockets", "zipfile", "json"]  # instrumented: hopsml, and what parses for it in Python


class Findings:
    """Findings of a target, of which the shortest input of each kind is stored."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lengths: dict[str, int] = {}

    def add(self, found: Finding) -> None:
        """Store a finding unless a shorter input of the same kind is known."""
        if len(found.data) >= self._lengths.get(found.signature, MOST_BYTES + 1):
            return
        self._lengths[found.signature] = len(found.data)
        name = hashlib.sha256(found.signature.encode()).hexdigest()[:12]
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / f"{name}.input").write_bytes(found.data)
        record = {"signature": found.signature, "error": found.error, "traceback": found.trace}
        (self._folder / f"{name}.json").write_text(json.dumps(record, indent=1))


def instrumented(name: str) -> Target:
    """Import the code of a target with instrumentation, and return the target."""
    import atheris

    with atheris.instrument_imports(include=PACKAGES):
        from tools.fuzz.targets import TARGETS

        return TARGETS[name]()


def main(name: str, folder: Path, seconds: int, runs: int) -> None:
    """Fuzz a target until the time is over; libFuzzer then ends the process.

    Args:
        name: Name of the target.
        folder: Folder of the corpus and of the findings.
        seconds: Time limit; 0: none.
        runs: Number of executions; -1: any.
    """
    import atheris

    logging.disable(logging.CRITICAL)
    target, findings = instrumented(name), Findings(folder / "findings" / name)
    corpus = folder / "corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
        check(target, seed)  # imports within readers belong to no input's time and memory

    def one_input(data: bytes) -> None:
        if (found := check(target, data)) is not None:
            findings.add(found)

    used_mb = psutil.Process().memory_info().rss >> 20
    options = [
        f"-max_total_time={seconds}", f"-runs={runs}", f"-timeout={INPUT_S}", f"-rss_limit_mb={used_mb + INPUT_MB}",
        f"-max_len={MOST_BYTES}", f"-artifact_prefix={folder}/findings/{name}-", "-print_final_stats=1",
    ]  # fmt: skip
    atheris.Setup([sys.argv[0], *options, str(corpus)], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
