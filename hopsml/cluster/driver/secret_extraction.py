"""Extraction of secrets from what a function captures: the recorded pickle omits them, and workers get them separately.

In the pickle each is replaced by a placeholder with a name, such as ``DB_PASSWORD``. To repeat the run, the user has to
provide the values again.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import CellType, FunctionType
from typing import Any

from hopsml.core import redact
from hopsml.errors import ArgumentError

VARIABLE = "HOPSML_SECRET_"  # + name: environment variable from which a rerun reads a value
_MARK = "hopsml secret"
_BEFORE_LITERAL = re.compile(r"(\w+)['\"\]]*\s*(?::\s*[\w.\[\]| ]{1,24}=|[=:])\s*\w{0,2}['\"]$")
# as in a connection's ``host=db password=...``; texts of a data set may contain any other such word
_ASSIGNS = "assword"
Value = str | bytes | int


@dataclass(frozen=True)
class ExtractedSecret:
    """Secret that a payload needs.

    ``variable``: the environment variable that it is from, empty if it is from elsewhere.
    """

    name: str
    value: Value
    variable: str = ""

    def facts(self) -> dict[str, str]:
        """Return the secret's record: what is needed to provide it again, without the value."""
        return {"name": self.name, "type": type(self.value).__name__, "variable": self.variable}


class SecretExtractor:
    """Collector of secrets that examines every object before it is pickled, in one pass over all of them."""

    def __init__(self, known: Mapping[str, str]) -> None:
        """Begin a pass; ``known``: value -> name of the values that are known to be secret."""
        self._known = dict(known)
        self._pattern = redact.values_pattern(frozenset(known))
        # id -> name and the object; too short to be recognized by its value
        self._short: dict[int, tuple[str, Value]] = {}
        self._types: dict[int, object] = {}  # annotations by their id: ``password: str`` names a type, not a password
        self._names: dict[Value, str] = {}  # value -> name of the extracted secrets
        self._extractors: dict[type, Callable[[Any], Any] | None] = {
            str: self._of_text,
            bytes: self._of_text,
            int: self._of_short,
            dict: self._extract_named,
            FunctionType: lambda function: self._extract_named(_variables_of(function)),
        }
        self._found: dict[str, str] = {}  # value -> name of secrets that were not known when this pass began
        self._literals: dict[str, str] = {}  # the same for literals in the source

    @property
    def extracted(self) -> dict[str, Value]:
        """Names and values of all extracted secrets."""
        return {name: value for value, name in self._names.items()}

    @property
    def newly_found(self) -> dict[str, str]:
        """Values and names of secrets that were not known when this pass began.

        Names of arguments and variables take precedence.
        """
        return {**self._literals, **self._found}

    def placeholder(self, obj: object) -> Any:
        """Return the placeholder of an object, as pickle's ``persistent_id``; None if it is pickled as it is.

        This is called for every number of a list: for most of them it only looks up a dict.
        """
        kind = type(obj)
        if kind not in self._extractors:
            reveals = kind is not CellType and callable(getattr(kind, "get_secret_value", None))
            self._extractors[kind] = (lambda held: self._remember("secret", held)) if reveals else None
        extract = self._extractors[kind]
        return None if extract is None else extract(obj)

    def _extract_named(self, names: Mapping[Any, object]) -> None:
        """Record the values of a dict that have names of secrets."""
        if id(names) in self._types:
            return
        if isinstance(types := names.get("__annotations__"), dict):
            self._types[id(types)] = types
        for name, value in names.items():
            if type(name) is str and value is not None and redact.names_a_secret(name):
                self._remember(name, value)

    def _remember(self, name: str, value: object) -> None:
        """Record a value, or the values inside it, as secret."""
        for inner, leaf in redact.secret_leaves(name, value):
            text = leaf.decode("latin-1") if isinstance(leaf, bytes) else str(leaf)
            if isinstance(leaf, int) or not redact.is_maskable(text):
                self._short[id(leaf)] = (inner, leaf)
            elif text not in self._known:
                self._found.setdefault(text, inner)

    def remember_literals(self, source: str) -> None:
        """Record the literals in a function's source that are assigned to names of secrets."""
        for start, end in redact.secret_spans(source, code=True):
            value = source[start:end]
            if redact.is_maskable(value) and value not in self._known:
                name = _BEFORE_LITERAL.search(source[:start])
                self._literals.setdefault(value, name[1] if name else "secret")

    def _of_short(self, value: Value) -> Any:
        """Return the placeholder of a short value that is recorded as secret; None for any other."""
        found = self._short.get(id(value)) if self._short else None
        return (_MARK, "whole", self._name(found[0], value)) if found else None

    def _of_text(self, value: str | bytes) -> Any:
        """Return the placeholder of a text that is or contains a secret; None for any other."""
        if self._short and id(value) in self._short:
            return self._of_short(value)
        if len(value) < redact.SHORTEST:
            return None
        text = value.decode("latin-1") if isinstance(value, bytes) else value
        has_known = self._pattern is not None and self._pattern.search(text) is not None
        if not has_known and (isinstance(value, bytes) or not _may_hold(text)):
            return None
        where = redact.secret_spans(text, assignments=False)
        if _ASSIGNS in text:
            assigned = redact.secret_spans(text)
            where = [span for span in assigned if span in where or redact.is_maskable(text[slice(*span)])]
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
        """Return the unique name of a secret in this payload."""
        if value not in self._names:
            plain = re.sub(r"\W", "_", wanted).strip("_").upper() or "SECRET"
            taken, name, number = set(self._names.values()), plain, 1
            while name in taken:
                number += 1
                name = f"{plain}_{number}"
            self._names[value] = name
        return self._names[value]


def _may_hold(text: str) -> bool:
    """Return True if a text may contain a secret of a known form.

    It is called for every string of a list, so it must be cheap.
    """
    if _ASSIGNS in text:
        return True
    if "://" in text:
        return "@" in text or "?" in text
    if len(text) < 16:
        return False
    is_query = "=" in text and ("?" in text or "&" in text)
    return is_query or "PRIVATE KEY" in text or "eyJ" in text or "AKIA" in text or "ASIA" in text or _has_prefix(text)


def _has_prefix(text: str) -> bool:
    """Return True if a text may contain a token with a known prefix."""
    return "gh" in text or "glpat-" in text or "hf_" in text or "xox" in text or "sk-" in text or "AIza" in text


def _variables_of(function: FunctionType) -> dict[str, object]:
    """Return a function's closure variables and default values by name; its globals are pickled as a dict."""
    found: dict[str, object] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    defaults = function.__defaults__ or ()
    named = function.__code__.co_varnames[: function.__code__.co_argcount]
    return found | dict(zip(named[len(named) - len(defaults) :], defaults, strict=False))


def secrets_left_in(payload: bytes, values: Mapping[str, str]) -> list[str]:
    """Return the names of the values that the bytes contain nevertheless, in an array or an object's encoding."""
    return sorted({name for value, name in values.items() if value.encode(errors="replace") in payload})


class Sealed:
    """Payload together with its secrets; unpickling it returns the payload's complete content."""

    def __init__(self, payload: bytes, values: Mapping[str, Value]) -> None:
        self._payload, self._values = payload, dict(values)

    def __reduce__(self) -> tuple[Any, ...]:
        return unseal, (self._payload, self._values)


def seal(payload: bytes, found_secrets: Sequence[ExtractedSecret]) -> bytes:
    """Return the bytes for a worker; the payload itself if no secret was extracted."""
    return pickle.dumps(Sealed(payload, {one.name: one.value for one in found_secrets})) if found_secrets else payload


def unseal(payload: bytes, values: Mapping[str, Value]) -> Any:
    """Unpickle a payload with its secrets; from then on this process masks the values in its output."""
    for name, value in values.items():
        redact.register(name, value)
    return _Unpickler(payload, values).load()


class _Unpickler(pickle.Unpickler):
    """Unpickler that replaces placeholders by values."""

    def __init__(self, payload: bytes, values: Mapping[str, Value]) -> None:
        super().__init__(io.BytesIO(payload))
        self._values = values

    def persistent_load(self, placeholder: Any) -> Any:
        """Return the value for a placeholder."""
        if not isinstance(placeholder, tuple) or len(placeholder) != 3 or placeholder[0] != _MARK:
            raise pickle.UnpicklingError(f"{placeholder!r:.80} is not a placeholder of hopsml")
        _, kind, what = placeholder
        if kind == "whole":
            return self._values[what]
        text = "".join(str(self._values[piece]) if is_secret else piece for is_secret, piece in what)
        return text.encode("latin-1") if kind == "bytes" else text


def supply_secrets_again(
    recorded: Sequence[Mapping[str, str]], given: Mapping[str, str], environment: Mapping[str, str], what: str
) -> tuple[ExtractedSecret, ...]:
    """Return the secrets of a recorded run, with values from the call or from environment variables.

    The value is from ``given``, else from HOPSML_SECRET_<NAME>, else from the variable that it was first read from.

    Args:
        recorded: The records of ``ExtractedSecret.facts``.
        given: Name -> value, as passed by the user.
        environment: Environment variables.
        what: Text that names the run, for the error.

    Raises:
        ArgumentError: Values are missing; the message has their names.
    """
    found_secrets, missing = [], []
    for facts in recorded:
        name, variable = facts["name"], facts.get("variable", "")
        text = given.get(name, environment.get(VARIABLE + name, environment.get(variable) if variable else None))
        if text is None:
            missing.append(name)
        else:
            found_secrets.append(ExtractedSecret(name, _typed(name, text, facts.get("type", "str")), variable))
    if missing:
        variables = ", ".join(VARIABLE + name for name in missing)
        raise ArgumentError(
            f"{what} received secrets, which were not recorded: {', '.join(missing)}; set {variables} in this "
            f"environment (or pass secrets={{{missing[0]!r}: ...}}) and start again"
        )
    return tuple(found_secrets)


def _typed(name: str, text: str, kind: str) -> Value:
    """Return a value of the recorded type from its text."""
    if kind == "bytes":
        return text.encode()
    if kind != "int":
        return text
    try:
        return int(text)
    except ValueError:
        raise ArgumentError(f"{VARIABLE}{name} must be a whole number, as in the recorded run") from None
