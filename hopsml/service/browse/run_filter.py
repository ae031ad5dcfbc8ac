"""Filter of the list of runs, in the syntax that users type above the list; pure.

    digits state:failed user:ana lr>0.1 accuracy>=0.9 -name:old tag:good

All terms must match. A bare word is searched for in id, name, verb, user and cause; ``column:text`` in one column;
``tag:good`` matches a whole tag; ``name>value`` (also ``<``, ``>=``, ``<=``, ``=``, ``!=``) compares a column, an
argument or a metric. ``-`` before a term negates it; double quotes enclose a term with blanks.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hopsml.errors import ArgumentError

if TYPE_CHECKING:
    from hopsml.service.browse.run_row import RunRow

LONGEST = 500  # most characters of a filter
_TERMS = re.compile(r'(-?)((?:"[^"]*"|[^\s"])+)')
_COMPARISON = re.compile(r"([^<>=!:]+)(>=|<=|!=|=|>|<)(.+)", re.DOTALL)
_FIELDS = ("id", "name", "state", "verb", "user", "cause")
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
    "=": operator.eq,
    "!=": operator.ne,
}

Test = Callable[["RunRow"], bool]


def parsed(text: str) -> Test:
    """Parse a filter to a predicate of rows. Raises ArgumentError for more than ``LONGEST`` characters."""
    if len(text) > LONGEST:
        raise ArgumentError(f"a filter of {len(text)} characters: at most {LONGEST}; leave out some of its terms")
    tests = [_turned(_term(term.replace('"', "")), minus == "-") for minus, term in _TERMS.findall(text)]
    return lambda row: all(test(row) for test in tests)


def _turned(test: Test, turned: bool) -> Test:
    """Return the predicate, negated if ``turned`` is True."""
    return (lambda row: not test(row)) if turned else test


def _term(term: str) -> Test:
    """Return the predicate of one term of a filter."""
    compared = _COMPARISON.fullmatch(term)
    if compared:
        return _comparison(*compared.groups())
    field, colon, wanted = term.partition(":")
    if colon and field == "tag":
        return lambda row: wanted.lower() in (tag.lower() for tag in row.tags)
    if colon and field in _FIELDS:
        return _contains((field,), wanted.lower())
    return _contains(_FIELDS, term.lower())


def _contains(fields: tuple[str, ...], wanted: str) -> Test:
    """Return a predicate that searches columns for a text in lower case."""
    return lambda row: any(wanted in getattr(row, field).lower() for field in fields)


def _comparison(name: str, sign: str, wanted: str) -> Test:
    """Return a predicate that compares a value by number, or else by text."""
    compare = _OPERATORS[sign]
    try:
        number: float | None = float(wanted)
    except ValueError:
        number = None

    def test(row: RunRow) -> bool:
        value = _value(row, name)
        if isinstance(value, int | float) and not isinstance(value, bool) and number is not None:
            return compare(value, number)
        if value is None or sign not in ("=", "!="):
            return False
        return compare(str(value).lower(), wanted.lower())

    return test


def _value(row: RunRow, name: str) -> Any:
    """Return an argument, else a metric, else a column of a row."""
    if name in row.arguments:
        return row.arguments[name]
    if name in row.metrics:
        return row.metrics[name]
    if name == row.metric_name:
        return row.metric
    return getattr(row, name, None) if name in (*_FIELDS, "workers", "seconds", "started", "metric") else None
