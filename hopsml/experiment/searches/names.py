"""How trials are called: the names of their folders, given when a trial is first seen, and kept in the journal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hopsml.search.dispatch.journal import divided
from hopsml.search.space.trial_id import trial_id

_KEY = "name"
NameOf = Callable[[Mapping[str, Any], int, int], str]  # configuration, number, how often the name was taken -> name


def by_id(config: Mapping[str, Any], number: int, repeat: int) -> str:
    """Maggy's id of the configuration; another one where it was tried before."""
    return trial_id(config, repeat)


class Names:
    """Names by number. ``config_of`` gives a trial's configuration while it has not changed yet."""

    def __init__(self, config_of: Callable[[int], Mapping[str, Any]], name_of: NameOf = by_id) -> None:
        self._config_of, self._name_of = config_of, name_of
        self._names: list[str] = []
        self._taken: set[str] = set()
        self._new: list[str] = []

    def of(self, number: int) -> str:
        """The name of a trial; those before it get theirs as well, so that order makes no difference."""
        while len(self._names) <= number:
            self._give(len(self._names))
        return self._names[number]

    def given(self, number: int) -> str:
        """The name of a trial, "" as long as it has none; for any thread."""
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
        """For the journal: the names that were given since the last call."""
        lines, self._new = self._new, []
        return lines

    def take_over(self, lines: Iterable[str]) -> list[str]:
        """Take the names out of a journal's lines; the other lines."""
        found, others = divided(lines, _KEY)
        for _, number, name in found:
            if number == len(self._names):
                self._add(name)
        return others
