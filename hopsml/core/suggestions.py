"""Suggestions of similar names for a misspelt one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

LEAST = 0.7  # least similarity by difflib's ratio, where 1 is equality: "worker" and "num_workers" have 0.71
# least similarity if all words of the given name occur in the other: "scope" and "merge_scope" have a ratio of 0.63
SAME_WORDS = 0.8
MARGIN = 0.06  # names that are less similar than the best one by more than this are left out
MOST = 3
FEW = 6  # most names that are all listed


def similar_names(name: str, known: Iterable[str], least: float = LEAST) -> list[str]:
    """Return the names among ``known`` that are most similar to ``name``, in their order; at most three.

    Args:
        name: the misspelt name.
        known: the existing names.
        least: least similarity, from 0 to 1; with 0.9 names differ by a letter or a hyphen.
    """
    wanted = _plain(name)
    ratios = {each: _likeness(wanted, _plain(each)) for each in known}
    best = max(ratios.values(), default=0.0)
    if best < least:
        return []
    return [each for each, ratio in ratios.items() if ratio >= best - MARGIN][:MOST]


def suggestion_text(name: str, known: Iterable[str], where_all_are: str) -> str:
    """Return the end of an error message that suggests existing names in place of ``name``.

    It is "did you mean num_workers?" if a name is similar; else the list of all names if they are few; else
    ``where_all_are``.

    Args:
        name: the misspelt name.
        known: the existing names.
        where_all_are: end of a sentence, such as "help(launch) lists them".
    """
    names = list(known)
    if found := similar_names(name, names):
        return f"did you mean {' or '.join(found)}?"
    return f"there are: {', '.join(names)}" if 0 < len(names) <= FEW else where_all_are


def _likeness(wanted: str, known: str) -> float:
    """Return the similarity of two names, from 0 to 1."""
    ratio = difflib.SequenceMatcher(None, wanted, known).ratio()
    return max(ratio, SAME_WORDS) if set(wanted.split("_")) <= set(known.split("_")) else ratio


def _plain(name: str) -> str:
    """Convert a name to lower case with underscores: numWorkers and num-workers to num_workers."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).replace("-", "_").lower()
