"""File names that encode the launch, generation and rank of a listening worker of a task; pure.

    <job's folder>/<try>/<task>/3.begun             the task's third launch has begun: earlier addresses are invalid
    <job's folder>/<try>/<task>/3-1-0-2.json        of that launch, in its generation 1, rank 0 of 2

One listing of a folder therefore shows whether all addresses are present, and no published file has to be deleted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

FOLDER, TASKS = "HOPSML_JOB_FOLDER", "HOPSML_JOB_TASKS"  # the folder of addresses; the tasks that have ports
OURS, PORT = "HOPSML_TASK_", "HOPSML_PORT_"  # prefixes of variables
_END = "_ADDRESSES"
_SAID = re.compile(r"([0-9]+)-([0-9]+)-([0-9]+)-([0-9]+)\.json")
_BEGUN = re.compile(r"([0-9]+)\.begun")


def variable(task: str) -> str:
    """Return the name of the variable for a task's addresses.

    It is unique among the tasks of a job, because their names contain no underscore.
    """
    return f"{OURS}{_upper(task)}{_END}"


def port_variable(port: str) -> str:
    """Return the name of the variable in which a worker finds the number of a port."""
    return f"{PORT}{_upper(port)}"


def _upper(name: str) -> str:
    """Return a name in the form used in variables."""
    return name.upper().replace("-", "_")


@dataclass(frozen=True, order=True, slots=True)
class ListeningPlace:
    """Identity of a listening worker of a task; those of the newest launch and newest generation are valid.

    ``launch`` grows with each start of the task's driver, ``generation`` with each time that its group is formed
    again.
    """

    launch: int
    generation: int
    rank: int
    size: int

    @property
    def file(self) -> str:
        """Name of the file that holds this worker's address."""
        return f"{self.launch}-{self.generation}-{self.rank}-{self.size}.json"


def begun(launch: int) -> str:
    """Return the name of the file that invalidates the addresses of earlier launches."""
    return f"{launch}.begun"


def newest(names: Iterable[str]) -> tuple[ListeningPlace, ...]:
    """Return the valid places among the files of a task's folder, in rank order.

    The set is complete if it has as many places as their ``size``.
    """
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
