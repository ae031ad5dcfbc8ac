"""YAML reader of job files, which processes events one by one, so that too large or too deep files are refused early.

It accepts safe values only: no second document, no tags, no duplicate keys, and few aliases. The line of each value is
recorded. Unquoted scalars follow the core schema of YAML 1.2, in which ``on``, ``yes`` and ``1:30`` are text:

    null   ~, null, or nothing        number  12, -3, 0x1f, 0o17, 1.5, 1e-4
    truth  true, false                text    everything else, and everything in quotes

Numbers with a leading zero are refused, as YAML 1.1 reads them as octal and 1.2 as decimal. So are infinite numbers and
NaN.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml

from hopsml.service.spec import limits

_NULL = {"", "~", "null", "Null", "NULL"}
_TRUTH = {**dict.fromkeys(("true", "True", "TRUE"), True), **dict.fromkeys(("false", "False", "FALSE"), False)}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")
_REAL = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_LONGEST = 40  # most characters of a number, as Python converts very long ones slowly

Scalar = str | int | float | bool | None


def parse_scalar(text: str) -> Scalar:
    """Return the value of an unquoted scalar. Raises ValueError for an ambiguous or unbounded number."""
    if text in _NULL:
        return None
    if text in _TRUTH:
        return _TRUTH[text]
    if _LEADING_ZERO.fullmatch(text):
        raise ValueError(
            f"{text:.40}: some YAML parsers read a leading zero as octal, others do not; remove it, write 0o17 for "
            "octal, or quote it as text"
        )
    if _NOT_FINITE.fullmatch(text):
        raise ValueError(f"{text}: a number must be finite: write the largest that makes sense, or quotes for text")
    if _INTEGER.fullmatch(text) or _BASED.fullmatch(text):
        return int(_bounded(text), 0)
    if _REAL.fullmatch(text):
        if not math.isfinite(number := float(_bounded(text))):
            raise ValueError(f"{text}: a number must be finite: write a smaller one, or quotes for text")
        return number
    return text


def _bounded(text: str) -> str:
    """Return the text of a number, if it is not too long. Raises ValueError."""
    if len(text) > _LONGEST:
        raise ValueError(f"{text:.40}...: a number has at most {_LONGEST} characters: write quotes for text")
    return text


Path = tuple[str | int, ...]
# Counted while reading: the rest of a file beyond a limit is not read.
_MOST: dict[Path, int] = {("tasks",): limits.TASKS, ("labels",): limits.LABELS}
_TEXT_TAGS = (None, "!", "tag:yaml.org,2002:str")
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Problem(NamedTuple):
    """A mistake in a job file.

    Attributes:
        line: Line of the mistake, from 1 on.
        path: Path of the field.
        text: Value, rule and remedy.
    """

    line: int
    path: Path
    text: str


class UnreadableFileError(Exception):
    """Error that ends the reading of a file; its argument is the ``Problem``."""


class _Node(NamedTuple):
    """A value of the document, with its size."""

    value: Any
    size: int  # values and keys; each alias counts as the values it refers to


@dataclass
class Document:
    """Content of a job file as it was read.

    Attributes:
        value: The value; None if the file could not be read to its end.
        lines: Line of each path.
        problems: Mistakes that were found.
    """

    value: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def line(self, path: Path) -> int:
        """Return the line of a field; if the field is absent, that of the nearest enclosing one."""
        while path not in self.lines and path:
            path = path[:-1]
        return self.lines.get(path, 1)


def read_document(content: bytes) -> Document:
    """Read the YAML content of a job file; mistakes are in the result's ``problems``.

    If the content cannot be read to its end, ``value`` is None and the last problem is the cause.

    Args:
        content: Bytes of the file.
    """
    document = Document()
    try:
        text = _decoded(content)
        events = yaml.parse(text, Loader=_Loader)
        document.value = _Reader(events, document).whole()
    except UnreadableFileError as stop:
        document.problems.append(stop.args[0])
    except yaml.YAMLError as error:
        document.problems.append(_syntax(error))
    return document


def _decoded(content: bytes) -> str:
    """Decode a file as UTF-8. Raises UnreadableFileError if it is too large or not UTF-8."""
    if len(content) > limits.FILE_BYTES:
        raise UnreadableFileError(
            Problem(
                1,
                (),
                f"the file has {len(content)} bytes; a job file has at most {limits.FILE_BYTES}: data belongs in files of "
                "the workspace",
            )
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        byte = content[error.start]
        raise UnreadableFileError(
            Problem(line, (), f"byte 0x{byte:02x}: a job file is UTF-8: save it so in your editor")
        ) from None


def _syntax(error: yaml.YAMLError) -> Problem:
    """Convert a syntax error of the YAML parser."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line = mark.line + 1 if mark is not None else 1
    words = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error).partition("\n")[0]
    if "cannot start any token" in words:
        words += " (a tab? YAML is indented with blanks; text with @, ` or % in front stands in quotes)"
    return Problem(line, (), f"this is not YAML: {words}; correct the line, or the one above it")


class _Reader:
    """Builder of a value from a stream of YAML events."""

    def __init__(self, events: Iterator[yaml.Event], document: Document) -> None:
        self._events = events
        self._document = document
        self._anchors: dict[str, _Node] = {}
        self._aliases = 0
        self._nodes = 0

    def whole(self) -> Any:
        """Return the value of the only document. Raises UnreadableFileError."""
        found: _Node | None = None
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                if found is not None:
                    raise self._stop(
                        event, (), "a second document (---): a job file has one; write a file for each job"
                    )
                found = self._node(next(self._events), (), 0)
        if found is None or found.value is None:
            raise UnreadableFileError(Problem(1, (), "the file is empty: a job has at least a name and tasks"))
        return found.value

    def _node(self, event: yaml.Event, path: Path, depth: int) -> _Node:
        """Return the value that begins with an event; check the limits of depth, size and anchors."""
        self._document.lines[path] = _line(event)
        if depth > limits.DEPTH:
            raise self._stop(
                event, path[:3], f"it is nested {depth} levels deep; {limits.DEPTH} are allowed: flatten it"
            )
        if isinstance(event, yaml.AliasEvent):
            return self._aliased(event, path)
        self._count(1, event, path)
        if isinstance(event, yaml.ScalarEvent):
            found = _Node(self._scalar(event, path), 1)
        elif isinstance(event, yaml.SequenceStartEvent):
            self._check_tag(event, path)
            found = self._sequence(path, depth)
        else:
            self._check_tag(event, path)
            found = self._mapping(path, depth)
        if anchor := getattr(event, "anchor", None):
            self._anchors[anchor] = found
            if len(self._anchors) > limits.ANCHORS:
                raise self._stop(event, path, f"more than {limits.ANCHORS} anchors (&name): write the values out")
        return found

    def _aliased(self, event: yaml.AliasEvent, path: Path) -> _Node:
        """Return the value that an alias refers to."""
        self._aliases += 1
        if self._aliases > limits.ALIASES:
            raise self._stop(event, path, f"more than {limits.ALIASES} aliases (*name): write the values out")
        if (found := self._anchors.get(anchor := event.anchor or "")) is None:
            raise self._stop(event, path, f"*{anchor:.40} refers to no anchor above it; write &{anchor:.40} there")
        self._count(found.size, event, path)
        return found

    def _count(self, nodes: int, event: yaml.Event, path: Path) -> None:
        """Count values. Raises UnreadableFileError if the file has too many."""
        self._nodes += nodes
        if self._nodes > limits.NODES:
            raise self._stop(
                event,
                path[:3],
                f"the file has more than {limits.NODES} values, including those that aliases repeat; make it smaller",
            )

    def _sequence(self, path: Path, depth: int) -> _Node:
        """Return the list that has begun."""
        values: list[Any] = []
        size = 1
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            found = self._node(event, (*path, len(values)), depth + 1)
            values.append(found.value)
            size += found.size
        return _Node(values, size)

    def _mapping(self, path: Path, depth: int) -> _Node:
        """Return the mapping that has begun, without duplicate keys."""
        values: dict[str, Any] = {}
        size = 1
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._key(event, path)
            if len(values) == _MOST.get(path):
                raise self._stop(
                    event, path, f"more than {len(values)} are given, and no more are allowed; request fewer"
                )
            place = (*path, key)
            if key in values:
                before = self._document.line(place)
                self._problem(event, place, f"it stands there twice, first in line {before}: remove one of them")
            found = self._node(next(self._events), place, depth + 1)
            self._document.lines[place] = _line(event)
            values[key] = found.value
            size += found.size + 1
        return _Node(values, size)

    def _key(self, event: yaml.Event, path: Path) -> str:
        """Return the text of a mapping's key."""
        self._count(1, event, path)
        if not isinstance(event, yaml.ScalarEvent):
            raise self._stop(event, path, "a list, a table or an alias as a field's name: a name is text")
        if event.value == "<<" and event.implicit[0]:
            raise self._stop(event, path, "<<: fields are not merged here: write them out")
        value = self._scalar(event, (*path, event.value[:64]))
        if isinstance(value, str):
            return value
        if value is not None or event.value:
            remedy = f'write "{event.value:.40}" in quotes'
        else:
            remedy = "write a name in front of the colon"
        self._problem(event, path, f"{event.value[:40] or 'nothing'} as a field's name: a name is text: {remedy}")
        return event.value

    def _scalar(self, event: yaml.ScalarEvent, path: Path) -> Scalar:
        """Return the value of a scalar."""
        self._check_tag(event, path)
        if len(event.value) > limits.TEXT:
            raise self._stop(
                event, path, f"a value of {len(event.value)} characters; {limits.TEXT} are allowed: put it into a file"
            )
        if control := next((one for one in event.value if _is_control(one)), None):
            self._problem(
                event, path, f"the character U+{ord(control):04X} stands in it: text has none such: leave it out"
            )
            return "".join(one for one in event.value if not _is_control(one))
        if not event.implicit[0]:  # quoted, or tagged as text
            return event.value
        try:
            return parse_scalar(event.value)
        except ValueError as error:
            self._problem(event, path, str(error))
            return event.value

    def _check_tag(self, event: yaml.Event, path: Path) -> None:
        """Refuse tags, other than that of text."""
        tag = getattr(event, "tag", None)
        if tag not in _TEXT_TAGS or (tag and not isinstance(event, yaml.ScalarEvent)):
            shown = tag.replace("tag:yaml.org,2002:", "!!")
            raise self._stop(event, path, f"the tag {shown:.60}: a job file has plain values only: leave the tag out")

    def _problem(self, event: yaml.Event, path: Path, text: str) -> None:
        """Record a mistake that does not end the reading."""
        self._document.problems.append(Problem(_line(event), path, text))

    def _stop(self, event: yaml.Event, path: Path, text: str) -> UnreadableFileError:
        """Return an exception for a mistake that ends the reading."""
        return UnreadableFileError(Problem(_line(event), path, text))


def _line(event: yaml.Event) -> int:
    """Return the line of an event, from 1 on."""
    return event.start_mark.line + 1 if event.start_mark is not None else 1


def _is_control(letter: str) -> bool:
    """Return True for control characters, except tab and line feed, and for surrogates."""
    return letter not in "\t\n" and unicodedata.category(letter) in ("Cc", "Cs")
