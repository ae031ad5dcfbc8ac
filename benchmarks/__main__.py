"""Command line of the benchmarks: python -m benchmarks NAME... [--quick] [--json FILE]."""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
import time
from pathlib import Path

from benchmarks import machine, merge
from benchmarks.figures import Report
from benchmarks.launched import end_in_order
from benchmarks.options import Options
from benchmarks.peers import NAMES as PEERS

log = logging.getLogger(__name__)

KNOWN = (*PEERS, "torchrun", "ray-tune", "optuna")
BENCHMARKS = (
    *("step", "launch", "memory", "checkpoint", "teardown", "recovery", "commit", "scale"),
    *("collective", "regroup", "network", "encryption", "models", "scaling", "tuning"),
    *("frameworks", "servers", "search", "predict", "data", "large_batch"),
    *("serving", "service"),
)


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure hopsml beside its peers. 'all' runs every benchmark but merge, which has options of its own.",
    )
    parser.add_argument("names", nargs="+", choices=(*BENCHMARKS, "all"), metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--quick", action="store_true", help="few rounds: a first look, not a figure to be quoted")
    parser.add_argument("--rounds", type=int, help="instead of each benchmark's own number")
    parser.add_argument("--peers", default="", help=f"only these, with commas between: {', '.join(KNOWN)}")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser


def main(words: list[str]) -> int:
    """Run the named benchmarks; return 1 if one of them failed to finish, else 0.

    A missed goal does not change the exit status; the table reports it.
    """
    if words[:1] == ["merge"]:
        merge.main(words[1:])
        return 0
    given = arguments().parse_args(words)
    chosen = tuple(peer for peer in given.peers.split(",") if peer)
    if unknown := set(chosen) - set(KNOWN):
        arguments().error(f"--peers: {', '.join(sorted(unknown))} not known; there are {', '.join(KNOWN)}")
    if given.rounds is not None and given.rounds < 1:
        arguments().error(f"--rounds {given.rounds}: it must be 1 or more")
    end_in_order()
    began = time.monotonic()
    report = Report(machine=machine.facts())
    broken: list[str] = []
    options = Options(given.quick, given.rounds, chosen, say)
    for name in BENCHMARKS if "all" in given.names else dict.fromkeys(given.names):
        say(f"{name} begins after {time.monotonic() - began:.0f} s")
        try:
            report.add(importlib.import_module(f"benchmarks.{name}").run(options))
        except Exception as error:
            log.exception("benchmark %s broke off; what the others measure is not lost with it", name)
            report.notes.append(f"{name} BROKE OFF: {str(error)[:300]}")
            broken.append(name)
        keep(report, given.json)
    say(f"took {time.monotonic() - began:.0f} s")
    print(report.table(), flush=True)
    return 1 if broken else 0


def keep(report: Report, path: Path | None) -> None:
    """Write the figures measured so far, so that an interrupted run does not lose them."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(report.as_json(), encoding="utf-8")


def say(line: str) -> None:
    """Print a line of progress to standard error; the table goes to standard output."""
    print(f"bench: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
