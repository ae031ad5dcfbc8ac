"""Masking of secrets in everything that leaves this process: errors, notes, logs, records, code and command lines.

A secret is recognized by its name (``db_password``, ``HF_TOKEN``), by its value (values of such variables and arguments
are masked wherever they occur, URL-encoded too), and by its shape (``user:password@`` in URLs, ``token=``, ``Bearer``,
private keys, keys of well-known services). For settings and variables the names are matched broadly, in favour of
masking; for arguments of the training function more strictly: ``max_tokens`` and ``pad_token`` are not secrets.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

REDACTED = "(redacted)"
SOURCE = "source"  # key of a record whose value is program text
SHORTEST = 6  # shorter values are masked only under their name: elsewhere they may be ordinary words

# ------------------------------------------------------------------------------------------------ by name

_SETTING = re.compile(r"password|passwd|passphrase|secret|token|credential|key", re.IGNORECASE)
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_ALONE = {  # words of a setting's name that mark a secret
    "pwd", "pass", "auth", "authorization", "dsn", "cookie", "cookies", "creds", "pat", "sas", "jwt", "webhook",
}  # fmt: skip
_LAST = {  # last words of an argument's name that mark a secret
    "password", "passwd", "passwort", "passphrase", "pwd", "pass", "secret", "token", "credential", "credentials", "cred",
    "creds", "auth", "authorization", "dsn", "cookie", "pat", "jwt", "apikey",
}  # fmt: skip
_NUMBERS_TOO = {"password", "passwd", "passwort", "passphrase", "pwd", "secret", "pin"}
_FUSED = re.compile(r"(?:password|passwd|passphrase|apikey|accesskey|secretkey|privatekey|authtoken|accesstoken)$")
_KEYS = {  # words before "key"
    "api", "access", "secret", "private", "account", "signing", "encryption", "ssh", "license", "service", "storage",
    "shared", "master", "auth", "deploy", "subscription",
}  # fmt: skip
_TEXT_TOKENS = {  # words before "token" that refer to a language model's vocabulary
    "pad", "unk", "eos", "bos", "mask", "cls", "sep", "start", "end", "stop", "special", "oov", "image", "next",
}  # fmt: skip
# Words that may follow the marking one, as in ..._KEY_ID.
_MEANINGS = {"value", "string", "text", "str", "prod", "dev", "test", "staging", "id"}
_NO_SECRETS = {"PWD", "OLDPWD", "SSH_AUTH_SOCK", "HADOOP_TOKEN_FILE_LOCATION", "HADOOP_SECURITY_AUTHENTICATION"}
# Well-known defaults, which appear in every manual, are not secret, and masking them would make records unreadable.
_WELL_KNOWN = {
    "password", "passwort", "changeit", "changeme", "postgres", "secret", "hadoop", "default", "example", "public",
    "private", "localhost", "disabled", "enabled", "required", "optional", "simple", "kerberos", "anonymous",
}  # fmt: skip
_A_PATH = re.compile(r"(?:file:|~?/|\.{1,2}/)[\w./ -]*/?[\w-]*\.\w{1,8}$|/(?:[\w.-]+/)+[\w.-]*$")
_DATA = (str, bytes)


@functools.lru_cache(4096)
def is_secret(name: str) -> bool:
    """Return True if the value of a setting or variable with this name is masked in every record."""
    if name in _NO_SECRETS:
        return False
    return _SETTING.search(name) is not None or not _ALONE.isdisjoint(_words(name))


@functools.lru_cache(4096)
def names_a_secret(name: str) -> bool:
    """Return True if text in an argument, variable or dict key of this name is a secret."""
    words = _words(name)
    while len(words) > 1 and (words[-1] in _MEANINGS or words[-1].isdecimal()):
        words = words[:-1]
    if not words or name in _NO_SECRETS:
        return False
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last == "token" and before in _TEXT_TOKENS:
        return False
    if last == "key":
        return before in _KEYS
    return last in _LAST or _FUSED.search(last) is not None or (last in ("string", "str") and before == "connection")


def _words(name: str) -> tuple[str, ...]:
    """Return the words of a name in camel case or with separators, in lower case."""
    return tuple(word.lower() for word in _WORDS.findall(name))


def _numbers_too(name: str) -> bool:
    """Return True if numbers under this name are secret as well."""
    return not _NUMBERS_TOO.isdisjoint(_words(name))


# ------------------------------------------------------------------------------------------------ by value

_lock = threading.Lock()
_registered: dict[str, str] = {}  # value -> the first name under which it was registered


def register(name: str, value: object) -> None:
    """Mask a value from now on, wherever it occurs.

    Args:
        name: name of the value.
        value: text or bytes, or containers of these; other values are ignored.
    """
    for inner, leaf in secret_leaves(name, value):
        text = leaf.decode(errors="ignore") if isinstance(leaf, bytes) else str(leaf)
        if is_maskable(text):
            with _lock:
                _registered.setdefault(text, inner)


def register_settings(values: Mapping[str, str]) -> None:
    """Mask, from now on, the values of those settings or variables whose names mark them as secret."""
    for name, value in values.items():
        if names_a_secret(name):
            register(name, value)


def secret_leaves(name: str, value: object) -> Iterator[tuple[str, str | bytes | int]]:
    """Yield the texts inside a value with a secret's name, each with its own name: ``auth_0``, ``credentials_user``."""
    if (isinstance(value, _DATA) and value and value != REDACTED) or (
        isinstance(value, int) and not isinstance(value, bool) and _numbers_too(name)
    ):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from secret_leaves(f"{name}_{key}", item)
    elif isinstance(value, list | tuple | set | frozenset):
        for index, item in enumerate(value):
            yield from secret_leaves(f"{name}_{index}", item)
    elif callable(reveal := getattr(type(value), "get_secret_value", None)):  # pydantic's SecretStr
        yield from secret_leaves(name, reveal(value))


def is_maskable(text: str) -> bool:
    """Return True if a secret value is long and rare enough to be masked wherever it occurs."""
    if len(text) < SHORTEST or text.lower() in _WELL_KNOWN:
        return False
    plain = text.isdecimal() or (text.isalpha() and text.islower())
    return not (plain and len(text) < 8) and REDACTED not in text and _A_PATH.match(text) is None


def secrets_by_value(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the names of those variables or settings that hold secrets, by their values."""
    return {value: name for name, value in variables.items() if names_a_secret(name) and is_maskable(value)}


def known_secrets() -> dict[str, str]:
    """Return the names of all values that are masked wherever they occur, by value.

    They come from the environment and from ``register``.
    """
    return dict(_current()[0])


_latest: tuple[object, dict[str, str], re.Pattern[str] | None] = (None, {}, None)


def _current() -> tuple[dict[str, str], re.Pattern[str] | None]:
    """Return the known secrets and their pattern, recomputed when environment or registered values have changed."""
    global _latest
    variables: Mapping[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]  # as bytes: nothing is decoded
    state = hash(tuple(variables.items())), id(_registered), len(_registered)
    if _latest[0] != state:
        with _lock:
            values = {**_registered, **secrets_by_value(os.environ)}
        _latest = state, values, values_pattern(frozenset(values))
    return _latest[1:]


def _spellings(value: str) -> set[str]:
    """Return a value and its stripped, URL-encoded and escaped forms."""
    from urllib.parse import quote, quote_plus

    quoted = {quote(value, safe=""), quote(value), quote_plus(value)}
    escaped = {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}
    return {value, value.strip(), *quoted, *escaped}


@functools.lru_cache(16)
def values_pattern(values: frozenset[str]) -> re.Pattern[str] | None:
    """Return a pattern that finds any of these values, URL-encoded and escaped forms included.

    None if there are none.
    """
    spellings = sorted({one for value in values for one in _spellings(value)}, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, spellings))) if spellings else None


# ------------------------------------------------------------------------------------------------ by shape

_SHAPES: tuple[tuple[str, int], ...] = (
        # https://user:abc@host, redis://:abc@host; a token alone before a web host. abfs://container@account has no
        # secret.
        (r"(?<=://)[^\s/:@'\"<>?#]*:(?P<secret>[^\s/'\"<>?#]+)(?=@)", 0),
        (r"(?<=http://)(?P<secret>[^\s/:@'\"<>?#]{6,})(?=@)|(?<=https://)(?P<secret2>[^\s/:@'\"<>?#]{6,})(?=@)", 0),
        (r"[?&](?:[\w.-]*token|delegation|sig|signature|x-amz-signature|x-amz-credential|key|api[-_]?key|password|pwd)="
         r"(?P<secret>[^\s&;,#'\"<>()]+)", re.IGNORECASE),
        (r"\b(?:bearer|negotiate)\s+(?P<secret>(?=[^\s'\"]*[\d._=+/])[\w.~+/=-]{8,})", re.IGNORECASE),
        (r"\bauthorization['\"]?\s*[:=]\s*['\"]?(?:\w+\s+)?(?P<secret>[\w.~+/=:-]{6,})", re.IGNORECASE),
        (r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?P<secret>[\s\S]*?)(?:-----END|\Z)", 0),
        (r"(?P<secret>\b(?:AKIA|ASIA)[0-9A-Z]{16}\b)", 0),
        (r"(?P<secret>\b(?:gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}|hf_[A-Za-z0-9]{20,}|xox[abprs]-[\w-]{10,}"
         r"|sk-[\w-]{20,}|AIza[\w-]{30,}|dapi[0-9a-f]{32})\b)", 0),
        (r"(?P<secret>\beyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*)", 0),
)  # fmt: skip
_HINTS = ("://", "=", "earer", "EARER", "egotiate", "uthorization", "UTHORIZATION", "PRIVATE KEY", "AKIA", "ASIA", "gh",
          "glpat-", "hf_", "xox", "sk-", "AIza", "dapi", "eyJ")  # fmt: skip
_WORD = r"(?:passwor[dt]|passwd|passphrase|pwd|secret|token|credentials?|creds?|auth|dsn|key|cookie|jwt|delegation|pat|pass)"
# A name that may be that of a secret, and the assigned value; ``names_a_secret`` decides.
_ASSIGNED = (
    _WORD
    + r"(?P<rest>[\w.-]{0,24})['\"]?\]?(?:\s{0,4}:\s{0,4}[\w.\[\]| ]{1,24}(?=\s{0,4}=))?\s{0,4}(?P<sign>==?>?|:)\s{0,4}"
    r"(?:[bfru]{0,2}(?P<literal>\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*')|(?P<bare>[^\s&;,'\"()\[\]{}]+))"
)
_NAME_BEFORE = re.compile(r"[\w.-]{0,64}\Z")
_LITERAL = re.compile(
    r"\"\"\"(?:[^\\]|\\.)*?\"\"\"|'''(?:[^\\]|\\.)*?'''|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|#[^\n]*", re.DOTALL
)
_NO_VALUE = re.compile(
    r"[*x.•$]+|none|null|true|false|\$\{?\w+\}?|<[^>]*>|%\(?\w*\)?s|\{[^}]*\}|\[\w+\]", re.IGNORECASE
)


@functools.cache
def _shapes() -> list[re.Pattern[str]]:  # compiled on first use: that takes longer than all other imports
    """Return the compiled patterns of ``_SHAPES``."""
    return [re.compile(pattern, flags) for pattern, flags in _SHAPES]


@functools.cache
def _assignment() -> re.Pattern[str]:
    """Return the compiled pattern of ``_ASSIGNED``."""
    return re.compile(_ASSIGNED, re.IGNORECASE)


def _of_shape(text: str, code: bool, assignments: bool) -> Iterator[tuple[int, int]]:
    """Yield the spans of secrets that are recognized by their shape."""
    if any(hint in text for hint in _HINTS):
        for pattern in _shapes():
            for found in pattern.finditer(text):
                group = found.lastgroup or "secret"
                if _is_value(found[group]):
                    yield found.span(group)
    if assignments and ("=" in text or ":" in text):
        yield from _assigned(text, code)


def _assigned(text: str, code: bool) -> Iterator[tuple[int, int]]:
    """Yield the spans of values that are assigned to a secret's name."""
    literals: list[tuple[int, int]] | None = None
    for found in _assignment().finditer(text):
        before = _NAME_BEFORE.search(text, max(0, found.start() - 64), found.start())
        stem = text[found.start() : found.end("rest")]
        name = (before[0] if before else "") + stem
        if not names_a_secret(name) and not names_a_secret(name.rpartition(".")[2]):
            continue
        is_literal = found["literal"] is not None
        if is_literal:
            start, end = found.start("literal") + 1, found.end("literal") - 1
        else:
            start, end = found.span("bare")
            # In code an unquoted value is a variable, unless it is within a literal; after a colon, in prose, it may be
            # any word.
            if (code or found["sign"] == ":") and not _looks_random(found["bare"]):
                continue
            if code:
                literals = _literals(text) if literals is None else literals
                if not any(first < start < last for first, last in literals):
                    continue
        if end > start and _is_value(text[start:end]) and not (is_literal and _is_a_word(name, text[start:end])):
            yield start, end


def _literals(program: str) -> list[tuple[int, int]]:
    """Return the spans of a program's string literals; the program may be incomplete, or not entirely Python."""
    return [found.span() for found in _LITERAL.finditer(program) if found[0][0] != "#"]


def _looks_random(value: str) -> bool:
    """Return True if a value is long and has both digits and letters."""
    return len(value) >= SHORTEST and any(c.isdecimal() for c in value) and any(c.isalpha() for c in value)


def _is_a_word(name: str, value: str) -> bool:
    """Return True if a short value is not a secret, because its name is ambiguous.

    Examples are ``token="<pad>"`` and ``pass="first"``.
    """
    return len(value) < 3 or (len(value) < SHORTEST and _words(name)[-1] in ("token", "pass", "auth", "key"))


def _is_value(text: str) -> bool:
    """Return True if a text is a value, not a placeholder."""
    return bool(text) and REDACTED not in text and _NO_VALUE.fullmatch(text) is None


# ------------------------------------------------------------------------------------------------ public functions


def secret_spans(text: str, *, code: bool = False, assignments: bool = True) -> list[tuple[int, int]]:
    """Return the spans of secrets in a text, in order and without overlaps.

    Args:
        text: the text.
        code: whether the text is a program, in which unquoted names are variables.
        assignments: whether values after ``password=`` and the like count as well.
    """
    found = list(_of_shape(text, code, assignments))
    pattern = _current()[1]
    if pattern is not None:
        found += [match.span() for match in pattern.finditer(text)]
    merged: list[tuple[int, int]] = []
    for start, end in sorted(found):
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def text(value: str) -> str:
    """Return ``value`` with all known secrets masked."""
    return _masked(value, secret_spans(value))


def code(value: str) -> str:
    """Return program text with literals under a secret's name masked; variables remain."""
    return _masked(value, secret_spans(value, code=True))


def _masked(value: str, where: Iterable[tuple[int, int]]) -> str:
    """Replace the spans of a text by ``REDACTED``."""
    parts, at = [], 0
    for start, end in where:
        parts += [value[at:start], REDACTED]
        at = end
    return "".join([*parts, value[at:]]) if parts else value


def settings(values: Mapping[str, str]) -> dict[str, str]:
    """Return settings or environment variables, sorted by name, without secrets.

    Values of secret names become ``REDACTED``, secrets within other values are masked.
    """
    return {name: REDACTED if is_secret(name) else text(str(values[name])) for name in sorted(values)}


def arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of the training function with secret texts replaced, at any depth; most numbers remain."""
    cleaned: dict[str, Any] = record(values)
    return cleaned


def record(value: Any, name: str = "", held: bool = False) -> Any:
    """Return a record of plain values with secrets masked at any depth.

    Text under a secret's name is replaced, other text is masked. Values other than text, lists and dicts remain, and so
    do numbers, except under the name of a password.

    Args:
        value: the value.
        name: name of the value.
        held: whether it is within a value that has a secret's name.
    """
    held = held or names_a_secret(name)
    if isinstance(value, Mapping):
        return {_key(key): record(item, str(key), held) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [record(item, name, held) for item in value]
    if isinstance(value, str):
        return REDACTED if value and held else code(value) if name == SOURCE else text(value)
    if held and isinstance(value, int) and not isinstance(value, bool) and _numbers_too(name):
        return REDACTED
    return value


def _key(key: Any) -> Any:
    """Mask a dict key if it is text."""
    return text(key) if isinstance(key, str) else key


def command(words: Sequence[str]) -> list[str]:
    """Return a command line with masked secrets.

    They are the values in ``--token=abc``, ``--token abc`` and ``--conf name=abc``, and secrets within other words.
    """
    cleaned: list[str] = []
    hide = False
    for word in words:
        name, sign, value = word.partition("=")
        if hide:
            cleaned.append(REDACTED)
        elif sign and value and is_secret(name) and not name.startswith("-"):
            cleaned.append(f"{name}={REDACTED}")
        else:
            cleaned.append(text(word))
        hide = not hide and word.startswith("-") and "=" not in word and names_a_secret(word.lstrip("-"))
    return cleaned


# ------------------------------------------------------------------------------------------------ logs


class CleaningHandler(logging.Handler):
    """Handler of a package's logger that masks secrets in each record before the parents' handlers write it."""

    def emit(self, entry: logging.LogRecord) -> None:
        """Mask secrets in the record itself, before handlers of parent loggers receive it."""
        try:
            entry.msg, entry.args = text(entry.getMessage()), None
        except Exception:  # noqa: BLE001 the caller's format does not fit its arguments: whoever writes it says so
            return
        if entry.exc_info and entry.exc_info[1] is not None and not entry.exc_text:
            entry.exc_text = text("".join(traceback.format_exception(entry.exc_info[1]))).rstrip()
        if (
            not _has_another(entry.name)
            and logging.lastResort is not None
            and entry.levelno >= logging.lastResort.level
        ):
            logging.lastResort.handle(entry)


def _has_another(name: str) -> bool:
    """Return True if a handler writes the logger's records; otherwise ``logging`` writes warnings to stderr."""
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        if any(not isinstance(handler, CleaningHandler) for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


def mask_logger(name: str) -> None:
    """Mask secrets in the records of this logger and those below it; repeated calls have no effect."""
    logger = logging.getLogger(name)
    with _lock:
        if not any(isinstance(handler, CleaningHandler) for handler in logger.handlers):
            logger.addHandler(CleaningHandler())


mask_logger("hopsml")
