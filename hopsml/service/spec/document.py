"""Job files as YAML: read event by event, so that what is too large or too deep is refused before anything is made of it.

Safe values only, no second document, no tags, no key twice, few aliases; each value is known with its line.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml

from hopsml.service.spec import limits, scalars

Path = tuple[str | int, ...]
# What is counted while it is read: the rest of a file that goes beyond it is not looked at.
_MOST: dict[Path, int] = {("tasks",): limits.TASKS, ("labels",): limits.LABELS}
_TEXT_TAGS = (None, "!", "tag:yaml.org,2002:str")
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Problem(NamedTuple):
    """A mistake of a file: its line from 1 on, the field, and value, rule and remedy in words."""

    line: int
    path: Path
    text: str


class Unreadable(Exception):
    """The file cannot be read further; its argument is the Problem that is why."""


class _Node(NamedTuple):
    value: Any
    size: int  # values and keys, aliases counted with what they stand for


@dataclass
class Document:
    """What was read: the value, lines by path, and problems that did not end the reading."""

    value: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def line(self, path: Path) -> int:
        """The line of a field; of the nearest one around it where it is not there."""
        while path not in self.lines and path:
            path = path[:-1]
        return self.lines.get(path, 1)


def read(content: bytes) -> Document:
    """Read YAML. Where it cannot be read to its end, ``value`` is None and the last problem says why."""
    document = Document()
    try:
        text = _decoded(content)
        events = yaml.parse(text, Loader=_Loader)
        document.value = _Reader(events, document).whole()
    except Unreadable as stop:
        document.problems.append(stop.args[0])
    except yaml.YAMLError as error:
        document.problems.append(_syntax(error))
    return document


def _decoded(content: bytes) -> str:
    if len(content) > limits.FILE_BYTES:
        raise Unreadable(
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
        raise Unreadable(
            Problem(line, (), f"byte 0x{byte:02x}: a job file is UTF-8: save it so in your editor")
        ) from None


def _syntax(error: yaml.YAMLError) -> Problem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line = mark.line + 1 if mark is not None else 1
    words = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error).partition("\n")[0]
    if "cannot start any token" in words:
        words += " (a tab? YAML is indented with blanks; text with @, ` or % in front stands in quotes)"
    return Problem(line, (), f"this is not YAML: {words}; correct the line, or the one above it")


class _Reader:
    """Builds the value of a stream of YAML's events."""

    def __init__(self, events: Iterator[yaml.Event], document: Document) -> None:
        self._events = events
        self._document = document
        self._anchors: dict[str, _Node] = {}
        self._aliases = 0
        self._nodes = 0

    def whole(self) -> Any:
        """The only document's value."""
        found: _Node | None = None
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                if found is not None:
                    raise self._stop(
                        event, (), "a second document (---): a job file has one; write a file for each job"
                    )
                found = self._node(next(self._events), (), 0)
        if found is None or found.value is None:
            raise Unreadable(Problem(1, (), "the file is empty: a job has at least a name and tasks"))
        return found.value

    def _node(self, event: yaml.Event, path: Path, depth: int) -> _Node:
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
        self._aliases += 1
        if self._aliases > limits.ALIASES:
            raise self._stop(event, path, f"more than {limits.ALIASES} aliases (*name): write the values out")
        if (found := self._anchors.get(anchor := event.anchor or "")) is None:
            raise self._stop(event, path, f"*{anchor:.40} stands for nothing above it: write &{anchor:.40} there")
        self._count(found.size, event, path)
        return found

    def _count(self, nodes: int, event: yaml.Event, path: Path) -> None:
        self._nodes += nodes
        if self._nodes > limits.NODES:
            raise self._stop(
                event,
                path[:3],
                f"the file has more than {limits.NODES} values, those that aliases stand for among them: make it smaller",
            )

    def _sequence(self, path: Path, depth: int) -> _Node:
        values: list[Any] = []
        size = 1
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            found = self._node(event, (*path, len(values)), depth + 1)
            values.append(found.value)
            size += found.size
        return _Node(values, size)

    def _mapping(self, path: Path, depth: int) -> _Node:
        values: dict[str, Any] = {}
        size = 1
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._key(event, path)
            if len(values) == _MOST.get(path):
                raise self._stop(
                    event, path, f"more than {len(values)} are given, and no more are allowed: ask for fewer"
                )
            if key in values:
                before = self._document.line((*path, key))
                self._problem(event, (*path, key), f"it stands there twice, first in line {before}: remove one of them")
            found = self._node(next(self._events), (*path, key), depth + 1)
            self._document.lines[(*path, key)] = _line(event)
            values[key] = found.value
            size += found.size + 1
        return _Node(values, size)

    def _key(self, event: yaml.Event, path: Path) -> str:
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

    def _scalar(self, event: yaml.ScalarEvent, path: Path) -> scalars.Scalar:
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
        if not event.implicit[0]:  # in quotes, or said to be text by its tag
            return event.value
        try:
            return scalars.plain(event.value)
        except ValueError as error:
            self._problem(event, path, str(error))
            return event.value

    def _check_tag(self, event: yaml.Event, path: Path) -> None:
        tag = getattr(event, "tag", None)
        if tag not in _TEXT_TAGS or (tag and not isinstance(event, yaml.ScalarEvent)):
            shown = tag.replace("tag:yaml.org,2002:", "!!")
            raise self._stop(event, path, f"the tag {shown:.60}: a job file has plain values only: leave the tag out")

    def _problem(self, event: yaml.Event, path: Path, text: str) -> None:
        self._document.problems.append(Problem(_line(event), path, text))

    def _stop(self, event: yaml.Event, path: Path, text: str) -> Unreadable:
        return Unreadable(Problem(_line(event), path, text))


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark is not None else 1


def _is_control(letter: str) -> bool:
    return letter not in "\t\n" and unicodedata.category(letter) in ("Cc", "Cs")
