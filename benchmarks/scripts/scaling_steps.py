"""One of some processes that belong to several groups at once and serve steps: SOCKET RANK GROUPS LOADS.

GROUPS is JSON: for each group's name the addresses of its members, which are the first processes; they share memory if
the name begins with "memory". Loads are those of gradient_steps.py, over hopsml's own collective; each "GROUP LOAD" is
a method. A function traced for one group is used with another: rank and size are read when it runs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

from benchmarks.scripts import gradient_steps, turns
from benchmarks.scripts.gradient_steps import SECRET, Step
from hopsml.collective import Group


def form(rank: int, name: str, addresses: list[str]) -> Group:
    """Join the group ``name`` as this rank."""
    hosts = ["here"] * len(addresses) if name.startswith("memory") else None
    return Group.form(rank, addresses, secret=SECRET, hosts=hosts)


def main() -> None:
    """Serve until the server sends 0."""
    path, number, described, listed = sys.argv[1:]
    rank, loads = int(number), listed.split(",")
    groups = {name: form(rank, name, given) for name, given in json.loads(described).items() if rank < len(given)}
    next(iter(groups.values())).make_default()
    from hopsml.training.tensorflow.distribution.collective_strategy import CollectiveStrategy

    way = gradient_steps.of_strategy(CollectiveStrategy())
    made: dict[str, Step] = {}

    def steps(group: Group, load: str) -> turns.Steps:
        def times(count: int) -> list[float]:
            group.make_default()
            if load not in made:
                made[load] = gradient_steps.tensorflow_step(way, load)
            return turns.one_by_one(made[load])(count)

        return times

    ways: dict[str, Callable[[int], list[float]]] = {
        f"{name} {load}": steps(group, load) for name, group in groups.items() for load in loads
    }
    turns.serve_all(path, rank, ways)
    os._exit(0)


if __name__ == "__main__":
    main()
