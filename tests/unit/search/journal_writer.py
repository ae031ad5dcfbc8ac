"""Program that searches and writes an event log until it is killed: python -m tests.unit.search.journal_writer FILE."""

from __future__ import annotations

import sys
from pathlib import Path

from hopsml.search.dispatch import journal
from hopsml.search.dispatch.dispatch import Dispatch
from hopsml.search.dispatch.spec import SearchSpec
from tests.helpers.search.searching import Counting, Halving
from tests.unit.search.simulator import Simulator, Work

TRIALS = 100_000


def work_of(config: dict) -> Work:
    """Some steps, of which some trials fail the last one."""
    return Work(
        0.1 + config["x"] % 7 / 10, [float(config["x"] % 13)] * 6, "failed" if config["x"] % 11 == 5 else "finished"
    )


def main(path: Path) -> None:
    """Write the lines that come with an event before anything follows from it."""
    simulator = Simulator(Dispatch(SearchSpec(TRIALS), Counting(), Halving()), work_of).join(4)
    with path.open("w") as file:
        file.write(journal.version_line() + "\n")

        def keep(lines: list[str]) -> None:
            file.writelines(line + "\n" for line in lines)
            file.flush()

        simulator.keep = keep
        simulator.run()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
