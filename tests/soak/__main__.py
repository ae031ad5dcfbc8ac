"""python -m tests.soak [--minutes M] [--parts PART ...] [--out FILE]: run all parts concurrently, and report growth.

A line for each round and part is written to stderr. The last line on standard output is {"grows": [...]}: each entry names a
growing quantity and its growth per unit of work. The exit status is 1 if anything grows, 2 if there are too few samples.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.soak.growth import FEWEST, WARM_UP, Tolerance, growth
from tests.soak.parts import PARTS, Part, Sample, deadline

LEAST_ROUNDS = next(rounds for rounds in itertools.count() if rounds - int(rounds * WARM_UP) >= FEWEST)
MOST_ROUNDS = 600  # samples that are evaluated; of more only every second, third ... one
# Tolerated growth per unit of work, and in total. Python's objects are counted exactly; a process gets memory from the
# system in pieces, and returns it late.
TOLERANCES = {
    "objects": Tolerance(2_500, 150_000),
    "rss": Tolerance(10_000, 12_000_000),
    "descriptors": Tolerance(0.02, 2),
    "threads": Tolerance(0.02, 2),
    "files": Tolerance(0.05, 6),
    "folders": Tolerance(0.05, 4),
}


def judged(samples: Iterable[Sample]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the growing quantities, and those with too few samples for a decision."""
    series: dict[tuple[str, str, str], list[Sample]] = {}
    for sample in samples:
        series.setdefault((sample.what, sample.quantity, sample.unit), []).append(sample)
    grows, untold = [], []
    for (what, quantity, unit), found in sorted(series.items()):
        chosen = found[:: -(-len(found) // MOST_ROUNDS)]
        if len(chosen) < LEAST_ROUNDS:
            untold.append(f"{what}: {quantity}: {len(chosen)} samples")
        work, values = [one.work for one in chosen], [one.value for one in chosen]
        if (grown := growth(work, values, TOLERANCES[quantity])) is not None:
            entry = {"what": what, "quantity": quantity, "unit": unit}
            grows.append({**entry, "each": round(grown.each, 3), "altogether": round(grown.altogether, 3)})
    return grows, untold


class Player:
    """Runs one part in a separate thread until ``is_over``, for at least the rounds that a decision needs."""

    def __init__(self, name: str, part: Part, is_over: Callable[[], bool]) -> None:
        self.name, self._part, self._is_over = name, part, is_over
        self.samples: list[Sample] = []
        self.lines: list[str] = []
        self.problem: BaseException | None = None
        self.thread = threading.Thread(target=self._play, name=f"soak-{name}")

    def _play(self) -> None:
        rounds = 0
        try:
            while rounds < LEAST_ROUNDS or not self._is_over():
                began = time.monotonic()
                found = list(self._part.round())
                self.samples += found
                rounds += 1
                if rounds == LEAST_ROUNDS // 2:
                    self._part.lines()
                shown = ", ".join(f"{one.what} {one.quantity} {one.value:.0f}" for one in found)
                print(f"{self.name} {rounds} ({time.monotonic() - began:.1f} s): {shown}", file=sys.stderr, flush=True)
            self.lines = self._part.lines()
        except BaseException as problem:  # noqa: BLE001 reported by the main thread
            self.problem = problem
        finally:
            self._part.end()


def play(parts: dict[str, Part], minutes: float) -> list[Player]:
    """Run all parts concurrently. Raises the exception that ended one of them."""
    is_over = deadline(minutes)
    players = [Player(name, part, is_over) for name, part in parts.items()]
    for player in players:
        player.thread.start()
    for player in players:
        player.thread.join()
    for player in players:
        if player.problem is not None:
            raise player.problem
    return players


def main(words: list[str]) -> int:
    """Run the soak with command-line arguments, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default %(default)s)")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--out", type=Path, help="a file for all samples, as JSON")
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="hopsml-soak-") as folder:
        players = play({name: PARTS[name](Path(folder, name)) for name in given.parts}, given.minutes)
    samples = [sample for player in players for sample in player.samples]
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps([asdict(sample) for sample in samples]))
    grows, untold = judged(samples)
    for player in players:
        print(f"objects of {player.name} that have grown most:", *player.lines, sep="\n    ", file=sys.stderr)
    for line in untold:
        print(f"too few samples for a decision: {line}; use more --minutes", file=sys.stderr)
    print(json.dumps({"grows": grows}), flush=True)
    return 1 if grows else 2 if untold else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
