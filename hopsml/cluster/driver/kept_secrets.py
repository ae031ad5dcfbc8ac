"""Secrets among what a function captures: kept out of its pickle, which is recorded, and sent to the workers beside it.

In the pickle a placeholder with a name stands for each: ``DB_PASSWORD``. Whoever repeats the run gives the values again.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CellType, FunctionType
from typing import Any

from hopsml import redact
from hopsml.errors import ArgumentError

VARIABLE = "HOPSML_SECRET_"  # + name: where a rerun finds a value
_MARK = "hopsml secret"
_BEFORE_LITERAL = re.compile(r"(\w+)['\"\]]*\s*(?::\s*[\w.\[\]| ]{1,24}=|[=:])\s*\w{0,2}['\"]$")
_ASSIGNS = "assword"  # as of a connection's ``host=db password=...``; a text of a data set may have any other such word
Value = str | bytes | int


@dataclass(frozen=True)
class Kept:
    """One secret that a payload needs. ``variable``: of the environment, from which it came; empty: from elsewhere."""

    name: str
    value: Value
    variable: str = ""

    def facts(self) -> dict[str, str]:
        """For the record: what is needed to give it again, and nothing of the value."""
        return {"name": self.name, "type": type(self.value).__name__, "variable": self.variable}


class Keeper:
    """Sees every object before it is pickled; of one pass over all of them."""

    def __init__(self, known: Mapping[str, str]) -> None:
        """``known``: value -> name of what is a secret already."""
        self._known = dict(known)
        self._pattern = redact.values_pattern(frozenset(known))
        self._short: dict[int, tuple[str, Value]] = {}  # id -> name and the object; too short to be known by its value
        self._types: dict[int, object] = {}  # annotations by their id: ``password: str`` names a type, not a password
        self._names: dict[Value, str] = {}  # of the secrets that were met
        self._looks: dict[type, Callable[[Any], Any] | None] = {
            str: self._of_text,
            bytes: self._of_text,
            int: self._of_short,
            dict: self._look_at,
            FunctionType: lambda function: self._look_at(_variables_of(function)),
        }
        self._found: dict[str, str] = {}  # value -> name of those that were not known when this began
        self._literals: dict[str, str] = {}  # the same of those that stand in the source

    @property
    def kept(self) -> dict[str, Value]:
        """Name -> value of all that was left out."""
        return {name: value for value, name in self._names.items()}

    @property
    def found(self) -> dict[str, str]:
        """Value -> name of those that were not known when this began; arguments and variables name them best."""
        return {**self._literals, **self._found}

    def placeholder(self, obj: object) -> Any:
        """What stands for this object, as pickle's ``persistent_id``; None for what is pickled as it is.

        It is called for every number of a list: what it does for most of them is one look into a dict.
        """
        kind = type(obj)
        if kind not in self._looks:
            reveals = kind is not CellType and callable(getattr(kind, "get_secret_value", None))
            self._looks[kind] = (lambda held: self._remember("secret", held)) if reveals else None
        look = self._looks[kind]
        return None if look is None else look(obj)

    def _look_at(self, names: Mapping[Any, object]) -> None:
        if id(names) in self._types:
            return
        if isinstance(types := names.get("__annotations__"), dict):
            self._types[id(types)] = types
        for name, value in names.items():
            if type(name) is str and value is not None and redact.names_a_secret(name):
                self._remember(name, value)

    def _remember(self, name: str, value: object) -> None:
        for inner, leaf in redact.leaves(name, value):
            text = leaf.decode("latin-1") if isinstance(leaf, bytes) else str(leaf)
            if isinstance(leaf, int) or not redact.is_telling(text):
                self._short[id(leaf)] = (inner, leaf)
            elif text not in self._known:
                self._found.setdefault(text, inner)

    def remember_literals(self, source: str) -> None:
        """Those of a function's source that stand under a secret's name."""
        for start, end in redact.spans(source, code=True):
            value = source[start:end]
            if redact.is_telling(value) and value not in self._known:
                name = _BEFORE_LITERAL.search(source[:start])
                self._literals.setdefault(value, name[1] if name else "secret")

    def _of_short(self, value: Value) -> Any:
        found = self._short.get(id(value)) if self._short else None
        return (_MARK, "whole", self._name(found[0], value)) if found else None

    def _of_text(self, value: str | bytes) -> Any:
        if self._short and id(value) in self._short:
            return self._of_short(value)
        if len(value) < redact.SHORTEST:
            return None
        text = value.decode("latin-1") if isinstance(value, bytes) else value
        has_known = self._pattern is not None and self._pattern.search(text) is not None
        if not has_known and (isinstance(value, bytes) or not _may_hold(text)):
            return None
        where = redact.spans(text, assignments=False)
        if _ASSIGNS in text:
            assigned = redact.spans(text)
            where = [span for span in assigned if span in where or redact.is_telling(text[slice(*span)])]
        if where == [(0, len(text))]:
            return _MARK, "whole", self._name(self._known.get(text, "secret"), value)
        pieces: list[tuple[bool, str]] = []
        at = 0
        for start, end in where:
            piece = text[start:end]
            pieces += [(False, text[at:start]), (True, self._name(self._known.get(piece, "secret"), piece))]
            at = end
        return (_MARK, type(value).__name__, (*pieces, (False, text[at:]))) if pieces else None

    def _name(self, wanted: str, value: Value) -> str:
        if value not in self._names:
            plain = re.sub(r"\W", "_", wanted).strip("_").upper() or "SECRET"
            taken, name, number = set(self._names.values()), plain, 1
            while name in taken:
                number += 1
                name = f"{plain}_{number}"
            self._names[value] = name
        return self._names[value]


def _may_hold(text: str) -> bool:
    """Whether a secret of a known shape may be in a text. It is asked of every string of a list, so it must be cheap."""
    if _ASSIGNS in text:
        return True
    if "://" in text:
        return "@" in text or "?" in text
    if len(text) < 16:
        return False
    is_query = "=" in text and ("?" in text or "&" in text)
    return is_query or "PRIVATE KEY" in text or "eyJ" in text or "AKIA" in text or "ASIA" in text or _has_prefix(text)


def _has_prefix(text: str) -> bool:
    return "gh" in text or "glpat-" in text or "hf_" in text or "xox" in text or "sk-" in text or "AIza" in text


def _variables_of(function: FunctionType) -> dict[str, object]:
    """What a function holds under names of its own: closure and defaults. Its globals are pickled as a dict."""
    found: dict[str, object] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not filled yet
            continue
    defaults = function.__defaults__ or ()
    named = function.__code__.co_varnames[: function.__code__.co_argcount]
    return found | dict(zip(named[len(named) - len(defaults) :], defaults, strict=False))


def left_in(payload: bytes, values: Mapping[str, str]) -> list[str]:
    """Names of those values that stand in the bytes all the same: in an array, or in what an object makes of itself."""
    return sorted({name for value, name in values.items() if value.encode(errors="replace") in payload})


class Sealed:
    """A payload with what was left out of it. Unpickled, it is what was in the payload, complete."""

    def __init__(self, payload: bytes, values: Mapping[str, Value]) -> None:
        self._payload, self._values = payload, dict(values)

    def __reduce__(self) -> tuple[Any, ...]:
        return opened, (self._payload, self._values)


def seal(payload: bytes, kept: Sequence[Kept]) -> bytes:
    """The bytes for a worker; the payload itself where nothing was left out."""
    return pickle.dumps(Sealed(payload, {one.name: one.value for one in kept})) if kept else payload


def opened(payload: bytes, values: Mapping[str, Value]) -> Any:
    """What was pickled; from now on this process masks the values in what it writes."""
    for name, value in values.items():
        redact.register(name, value)
    return _Unpickler(payload, values).load()


class _Unpickler(pickle.Unpickler):
    def __init__(self, payload: bytes, values: Mapping[str, Value]) -> None:
        super().__init__(io.BytesIO(payload))
        self._values = values

    def persistent_load(self, placeholder: Any) -> Any:
        """The value for a placeholder."""
        if not isinstance(placeholder, tuple) or len(placeholder) != 3 or placeholder[0] != _MARK:
            raise pickle.UnpicklingError(f"{placeholder!r:.80} is no placeholder of hopsml's")
        _, kind, what = placeholder
        if kind == "whole":
            return self._values[what]
        text = "".join(str(self._values[piece]) if is_secret else piece for is_secret, piece in what)
        return text.encode("latin-1") if kind == "bytes" else text


def given_again(
    recorded: Sequence[Mapping[str, str]], given: Mapping[str, str], environment: Mapping[str, str], what: str
) -> tuple[Kept, ...]:
    """The secrets of a recorded run, from the call, from HOPSML_SECRET_<NAME>, or from the variable that they came from.

    Raises ArgumentError naming those that are nowhere.
    """
    kept, missing = [], []
    for facts in recorded:
        name, variable = facts["name"], facts.get("variable", "")
        text = given.get(name, environment.get(VARIABLE + name, environment.get(variable) if variable else None))
        if text is None:
            missing.append(name)
        else:
            kept.append(Kept(name, _typed(name, text, facts.get("type", "str")), variable))
    if missing:
        variables = ", ".join(VARIABLE + name for name in missing)
        raise ArgumentError(
            f"{what} was given secrets, which were not recorded: {', '.join(missing)}; set {variables} in this environment "
            f"(or pass secrets={{{missing[0]!r}: ...}}) and start again"
        )
    return tuple(kept)


def _typed(name: str, text: str, kind: str) -> Value:
    if kind == "bytes":
        return text.encode()
    if kind != "int":
        return text
    try:
        return int(text)
    except ValueError:
        raise ArgumentError(f"{VARIABLE}{name} must be a whole number: the run was given one") from None
