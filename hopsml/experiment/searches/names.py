"""Names of trials' folders, assigned when a trial is first seen, and stored in the event log."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hopsml.search.dispatch.journal import divided
from hopsml.search.space.space import trial_id

_KEY = "name"
NameOf = Callable[[Mapping[str, Any], int, int], str]  # configuration, number, earlier uses of the name -> name


def by_id(config: Mapping[str, Any], number: int, repeat: int) -> str:
    """Return Maggy's id of the configuration; another one for each repetition of it."""
    return trial_id(config, repeat)


class Names:
    """Names of trials by number; ``config_of`` returns a trial's configuration while it has not changed yet."""

    def __init__(self, config_of: Callable[[int], Mapping[str, Any]], name_of: NameOf = by_id) -> None:
        self._config_of, self._name_of = config_of, name_of
        self._names: list[str] = []
        self._taken: set[str] = set()
        self._new: list[str] = []

    def of(self, number: int) -> str:
        """Return the name of a trial; trials before it get theirs first, so that the order of calls has no effect."""
        while len(self._names) <= number:
            self._give(len(self._names))
        return self._names[number]

    def given(self, number: int) -> str:
        """Return the name of a trial, "" if it has none yet; for any thread."""
        return self._names[number] if number < len(self._names) else ""

    def _give(self, number: int) -> None:
        config, repeat = self._config_of(number), 0
        while (name := self._name_of(config, number, repeat)) in self._taken:  # two trials never share a folder
            repeat += 1
        self._add(name)
        self._new.append(json.dumps([_KEY, number, name]))

    def _add(self, name: str) -> None:
        self._names.append(name)
        self._taken.add(name)

    def new_lines(self) -> list[str]:
        """Return lines for the event log: the names that were assigned since the last call."""
        lines, self._new = self._new, []
        return lines

    def take_over(self, lines: Iterable[str]) -> list[str]:
        """Take the names from an event log's lines, and return the other lines."""
        found, others = divided(lines, _KEY)
        for _, number, name in found:
            if number == len(self._names):
                self._add(name)
        return others
