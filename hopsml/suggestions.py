"""Suggests what somebody who misspelt a name has probably meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

LEAST = 0.7  # of difflib's ratio, where 1 is the same text: "worker" and "num_workers" have 0.71
SAME_WORDS = 0.8  # what a name counts for that has all words of the other: "scope" and "merge_scope" have 0.63
MARGIN = 0.06  # what is so much less like it than the best is not named beside it
MOST = 3
FEW = 6  # so many names can be read


def similar(name: str, known: Iterable[str], least: float = LEAST) -> list[str]:
    """Those of ``known`` that are spelt nearly as ``name``, in their order; at most three, and only the nearest.

    ``least``: how much alike, from 0 to 1; with 0.9 they are a letter or a hyphen apart.
    """
    wanted = _plain(name)
    ratios = {each: _likeness(wanted, _plain(each)) for each in known}
    best = max(ratios.values(), default=0.0)
    if best < least:
        return []
    return [each for each, ratio in ratios.items() if ratio >= best - MARGIN][:MOST]


def instead(name: str, known: Iterable[str], where_all_are: str) -> str:
    """The end of a message that says what there is instead of ``name``.

    "did you mean num_workers?" where something is spelt alike; all of ``known`` where these are few; else where they can be
    read (``where_all_are``: a sentence's end such as "help(launch) lists them").
    """
    names = list(known)
    if found := similar(name, names):
        return f"did you mean {' or '.join(found)}?"
    return f"there are: {', '.join(names)}" if 0 < len(names) <= FEW else where_all_are


def _likeness(wanted: str, known: str) -> float:
    """Similarity of two names, from 0 to 1."""
    ratio = difflib.SequenceMatcher(None, wanted, known).ratio()
    return max(ratio, SAME_WORDS) if set(wanted.split("_")) <= set(known.split("_")) else ratio


def _plain(name: str) -> str:
    """The name in lower case with underscores: numWorkers and num-workers as num_workers."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).replace("-", "_").lower()
