"""What is said by a file's name alone: which launch, generation and rank of a task listens. Pure.

    <job's folder>/<try>/<task>/3.begun             the third launch of the task has begun: what earlier ones said is void
    <job's folder>/<try>/<task>/3-1-0-2.json        of it, in its generation 1, rank 0 of 2

So one listing of a folder says whether all are there, and nothing that was said has to be taken back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

FOLDER, TASKS = "HOPSML_JOB_FOLDER", "HOPSML_JOB_TASKS"  # where tasks say so; which ones have ports
OURS, PORT = "HOPSML_TASK_", "HOPSML_PORT_"  # of variables
_END = "_ADDRESSES"
_SAID = re.compile(r"([0-9]+)-([0-9]+)-([0-9]+)-([0-9]+)\.json")
_BEGUN = re.compile(r"([0-9]+)\.begun")


def variable(task: str) -> str:
    """The variable of a task's addresses. No two tasks of a job have the same: their names have no underscore."""
    return f"{OURS}{_upper(task)}{_END}"


def port_variable(port: str) -> str:
    """The variable in which a worker finds the number of a port."""
    return f"{PORT}{_upper(port)}"


def _upper(name: str) -> str:
    return name.upper().replace("-", "_")


@dataclass(frozen=True, order=True, slots=True)
class ListeningPlace:
    """Which worker of a task: of the newest launch and the newest generation those of all ranks count.

    ``launch``: grows with each start of the task's driver; ``generation``: with each time that its group is formed anew.
    """

    launch: int
    generation: int
    rank: int
    size: int

    @property
    def file(self) -> str:
        """Name of the file in which it says where it listens."""
        return f"{self.launch}-{self.generation}-{self.rank}-{self.size}.json"


def begun(launch: int) -> str:
    """Name of the file that voids what earlier launches have said."""
    return f"{launch}.begun"


def newest(names: Iterable[str]) -> tuple[ListeningPlace, ...]:
    """Of the files of a task's folder those that count, in rank order; all are there where there are as many as its size."""
    places, launches = set(), {0}
    for name in names:
        if said := _SAID.fullmatch(name):
            place = ListeningPlace(*map(int, said.groups()))
            places.add(place)
            launches.add(place.launch)
        elif started := _BEGUN.fullmatch(name):
            launches.add(int(started[1]))
    of_launch = [place for place in places if place.launch == max(launches)]
    generation = max((place.generation for place in of_launch), default=0)
    return tuple(sorted(place for place in of_launch if place.generation == generation))
