"""Selection and validation of the metric's value, shared by all components of a search."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from hopsml.core import suggestions

METRIC = "metric"  # name of a metric that is returned as a plain number


def name_of(asked: str, given: Collection[str] = ()) -> str:
    """Return the name of the metric: ``asked`` if set, else the only name in ``given``, else "metric".

    Args:
        asked: name that the user gave; "" for none. It need not be in ``given``.
        given: names in what a function has reported or returned.
    """
    return asked or (next(iter(given)) if len(given) == 1 else METRIC)


BATCH = "batch_"  # prefix of values within an epoch, as Keras's TensorBoard callback has it
_SAME_WORD = 0.8  # least similarity of a misspelt word to the right one
_SHORT = 5  # letters; shorter words that differ are different metrics: mse and mae, auc and acc
_LOSS, _LIKE_LOSS = "loss", 0.75  # the one short word that is no abbreviation, and the least similarity of a slip in it


def is_batch_metric(name: str) -> bool:
    """Return True for the name of a value within an epoch: ``batch_loss``, whose value of the epoch is ``loss``."""
    return name.startswith(BATCH) and len(name) > len(BATCH)


def epoch_metrics(names: Iterable[str]) -> list[str]:
    """Return the names of a report without those of values within an epoch."""
    return [name for name in names if not is_batch_metric(name)]


def unknown_metric_hint(asked: str, known: Collection[str]) -> str:
    """Return a hint for a name that is not among the known ones: the most similar one, and all of them."""
    meant = suggestions.similar_names(asked, known, least=0.5)[:1]
    return f"({', '.join(map(repr, known)) or 'nothing'})" + "".join(f"; did you mean {one!r}?" for one in meant)


def is_misspelt(asked: str, known: str) -> bool:
    """Return True if ``asked`` is certainly the name ``known`` with a slip, and not the name of another metric."""
    ours, others = (re.split(r"[^a-z0-9]+", name.lower()) for name in (asked, known))
    if "".join(ours) == "".join(others):
        return asked != known
    return len(ours) == len(others) and all(map(_is_same_word, ours, others))


def _is_same_word(one: str, other: str) -> bool:
    """Return True for equal words, and for words that differ by a slip in their letters.

    In short words, which may be abbreviations, a slip is a doubled letter, or in four letters two swapped neighbours.
    """
    if one == other:
        return True
    if re.findall(r"\d", one) != re.findall(r"\d", other):
        return False
    ratio = difflib.SequenceMatcher(None, one, other).ratio()
    if min(len(one), len(other)) >= _SHORT:
        return ratio >= _SAME_WORD
    if _LOSS in (one, other):
        return ratio >= _LIKE_LOSS
    shortest = min(len(one), len(other))
    is_doubled = shortest > 1 and _without_doubles(one) == _without_doubles(other)
    return is_doubled or (shortest > 3 and _is_swapped(one, other))


def _without_doubles(word: str) -> str:
    """Return a word in which repeated letters occur once."""
    return re.sub(r"(.)\1+", r"\1", word)


def _is_swapped(one: str, other: str) -> bool:
    """Return True if two words of the same length differ by two neighbouring letters in the other order."""
    if len(one) != len(other):
        return False
    at = [place for place, (mine, theirs) in enumerate(zip(one, other, strict=True)) if mine != theirs]
    return len(at) == 2 and at[1] == at[0] + 1 and one[at[0]] == other[at[1]] and one[at[1]] == other[at[0]]


class MetricCheck:
    """Check of a metric's name against what trials or a run report, until it has been reported or returned.

    Args:
        asked: name that the user gave; "" for none.
        is_needed: True if it must be reported because a stopper compares it.
    """

    def __init__(self, asked: str, is_needed: bool = False) -> None:
        self._asked, self._is_needed = asked, is_needed
        self._is_open = bool(asked)
        self._seen: dict[str, None] = {}
        self._first_steps: dict[tuple[int, str], int] = {}

    def found(self) -> None:
        """Record that a trial has reported or returned the metric."""
        self._is_open = False
        self._first_steps.clear()

    def problem(self, trial: int, step: int, names: Iterable[str]) -> str:
        """Return why the metric cannot be found, from a report without it; empty as long as it may still come.

        A misspelt name is found at the first report. A stopper's metric is missing if a trial has reported the same
        values at two steps, but never the metric.
        """
        epoch = epoch_metrics(names)
        if not self._is_open or not epoch:
            return ""
        self._seen |= dict.fromkeys(epoch)
        firsts = [self._first_steps.setdefault((trial, name), step) for name in epoch]
        may_follow = self._asked.startswith("val_") and self._asked[4:] in self._seen  # not after each epoch
        is_missing = self._is_needed and min(firsts) < step and not may_follow
        if not is_missing and not any(is_misspelt(self._asked, name) for name in self._seen):
            return ""
        return f"the metric {self._asked!r} is not among the reported values {unknown_metric_hint(self._asked, self._seen)}"

    def problem_of_result(self, names: Collection[str]) -> str:
        """Return why the metric cannot be found, from the names of a returned dict without it.

        Empty unless it is a misspelt one of these names: what a function returns may depend on its configuration.
        """
        if not self._is_open or not any(is_misspelt(self._asked, name) for name in names):
            return ""
        return f"the metric {self._asked!r} is not among the returned values {unknown_metric_hint(self._asked, names)}"


def finite_or_none(value: Any) -> float | None:
    """Return the value if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


_SAME = 1e-6  # relative difference below which a returned and a reported value are the same


def differing_reports(returned: Mapping[str, Any], reported: Mapping[str, Any]) -> str:
    """Return a note on returned numbers that differ from the last report of the same name; "" if there are none.

    Args:
        returned: values that a function returned, by name.
        reported: values that it reported last.
    """
    found = [
        f"{name}: {returned[name]:.6g} was returned, {reported[name]:.6g} was reported last"
        for name in returned
        if name in reported and _differ(returned[name], reported[name])
    ]
    if not found:
        return ""
    return (
        f"{'; '.join(found)}; the returned value is the result. If it was measured on other data, such as a test set, "
        "return it under a name of its own"
    )


def nan_values(returned: Mapping[str, Any]) -> str:
    """Return a note on returned values that are NaN; "" if there are none."""
    names = [name for name, value in returned.items() if isinstance(value, float) and math.isnan(value)]
    verb = "is" if len(names) == 1 else "are"
    return f"{', '.join(names)} {verb} NaN: the training may have diverged, or its data contain NaN" if names else ""


def _differ(returned: Any, reported: Any) -> bool:
    """Return True for two finite numbers that are not the same."""
    one, other = finite_or_none(returned), finite_or_none(reported)
    return one is not None and other is not None and not math.isclose(one, other, rel_tol=_SAME)


def why_no_value(asked: str, outputs: Any, value: Any) -> tuple[str, bool]:
    """Explain why a trial that returned has no score.

    Args:
        asked: name of the metric that the user gave; "" for none.
        outputs: what the trial's function returned.
        value: the metric's value that was derived from it.

    Returns:
        The error message, and whether the fault lies in the code rather than in the numbers.
    """
    key, found = name_of(asked), value
    if isinstance(outputs, dict):
        key = name_of(asked, outputs)
        if key not in outputs:
            names = unknown_metric_hint(key, outputs)
            return (
                f"the metric {key!r} is not in what the function returned {names}: return it, or name one of those",
                True,
            )
        found = outputs[key]
    elif outputs is not None and found is None:
        found = outputs
    if found is None:
        return f"the function neither returned nor reported the metric {key!r}: a search needs it", True
    if isinstance(found, float) and not math.isfinite(found):
        return f"the metric {key!r} is {found}, which is no finite number", False
    return f"the metric {key!r} is {found!r:.100}, a {type(found).__name__}: it must be a number", True
