"""``model.json``: everything that is known of one version of a model. Pure; the file is written last, so it means complete.

A tensor's shape has None where the size is free; the first dimension is the batch. Names of dtypes are numpy's (``float32``,
``int64``, ``bool``, ``str``).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from hopsml import suggestions
from hopsml.errors import ArgumentError, ArgumentTypeError, StorageError

MODEL_JSON = "model.json"
FILES = "files"  # the folder of a version's files
FORMAT = 1  # of the file; a reader refuses a higher one
LATEST, BEST = "latest", "best"  # computed, so no alias may be called so
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,255}")
_RESERVED_ALIAS = re.compile(rf"{LATEST}|{BEST}|v?\d+")


class TensorSpec(msgspec.Struct, frozen=True):
    """One input or output: its dtype, and its shape with None for what is free, the batch first.

    ``features``: what the entries of the last dimension are called, where the model knows that.
    """

    dtype: str
    shape: tuple[int | None, ...]
    features: tuple[str, ...] = ()


class Signature(msgspec.Struct, frozen=True):
    """What a model takes and gives, by name."""

    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]


class ModelFile(msgspec.Struct, frozen=True):
    """One file of a version: its length in bytes and the SHA-256 of its content, in hexadecimal digits."""

    bytes: int
    sha256: str


class Lineage(msgspec.Struct, frozen=True):
    """Where a version comes from; what is not known is empty."""

    run_id: str = ""
    run_url: str = ""
    commit: str = ""  # of the code's repository
    dirty: bool | None = None  # whether the code differed from the commit; None: not known
    data: list[dict[str, Any]] = []  # inputs as the run's record has them: url, bytes, checksum ...


class ModelDescription(msgspec.Struct, frozen=True):
    """The content of ``model.json``.

    ``artifacts``: what can be loaded, by format (``saved_model``, ``keras``, ``torch_export``, ``torchscript``, ``onnx``,
    ``sklearn``), as a path below ``folder``, "" for that folder itself. ``files``: by path below ``folder``.
    """

    name: str
    version: int
    flavor: str  # tensorflow | keras | torch | onnx | sklearn | files
    created: datetime  # UTC
    artifacts: dict[str, str] = {}
    signature: Signature | None = None
    metrics: dict[str, float] = {}
    description: str = ""
    creator: str = ""
    lineage: Lineage = Lineage()
    requirements: dict[str, str] = {}  # package -> version
    files: dict[str, ModelFile] = {}
    bytes: int = 0  # of all files
    folder: str = FILES  # where they lie, beside model.json
    format: int = FORMAT

    @property
    def digest(self) -> str:
        """SHA-256 over the names and contents of all files, in hexadecimal digits: the same files, the same digest."""
        total = hashlib.sha256()
        for name, file in sorted(self.files.items()):
            total.update(f"{name}\0{file.bytes}\0{file.sha256}\n".encode())
        return total.hexdigest()


_decoder = msgspec.json.Decoder(ModelDescription)


def encode(description: ModelDescription) -> bytes:
    """As a JSON text for people, too."""
    return msgspec.json.format(msgspec.json.encode(description), indent=1) + b"\n"


def decode(data: bytes, url: str) -> ModelDescription:
    """Return the description in a file's content.

    Names and paths in it become paths of this machine, so none may lead out of the folder that it is relative to: the file
    may be another user's.

    Args:
        data: content of the file.
        url: of the file, for messages.

    Raises:
        StorageError: it is no description, one with such a name, or one of a newer hopsml.
    """
    try:
        found = _decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise StorageError(f"cannot read {url}: it is no model.json of hopsml ({error})", url) from error
    if found.format > FORMAT:
        raise StorageError(f"cannot read {url}: a newer hopsml wrote it (format {found.format}, known: {FORMAT})", url)
    if not _NAME.fullmatch(found.name):
        raise StorageError(f"cannot read {url}: its name {found.name!r:.80} is no name of a model", url)
    paths = (found.folder, *found.files, *filter(None, found.artifacts.values()))
    if wrong := next((path for path in paths if not _stays_below(path)), None):
        raise StorageError(f"cannot read {url}: the path {wrong!r:.80} leads out of the version's folder", url)
    return found


def _stays_below(path: str) -> bool:
    return "\0" not in path and not {"", ".", ".."} & set(path.split("/"))


# ------------------------------------------------------------------------------------------ what may be said


def checked_name(name: Any) -> str:
    """The name of a model. Raises ArgumentError, ArgumentTypeError."""
    return _checked("model_name", name)


def checked_alias(alias: Any) -> str:
    """The name of an alias. Raises ArgumentError, ArgumentTypeError."""
    if isinstance(alias, str) and _RESERVED_ALIAS.fullmatch(alias):
        raise ArgumentError(
            f"alias={alias!r}: {LATEST}, {BEST}, numbers and v1, v2 ... stand for versions already; choose another word, "
            "such as production"
        )
    return _checked("alias", alias)


def _checked(what: str, text: Any) -> str:
    if not isinstance(text, str):
        raise ArgumentTypeError(f"{what}={text!r:.80} is a {type(text).__name__}; it must be text")
    if not _NAME.fullmatch(text):
        raise ArgumentError(
            f"{what}={text!r:.80}: it names a folder, so it must be 1 to 256 letters, digits, '_', '-' and '.', and not "
            "begin with '-' or '.'"
        )
    return text


def checked_version(version: Any) -> int:
    """The number of a version. Raises ArgumentError, ArgumentTypeError."""
    if isinstance(version, bool) or not isinstance(version, int):
        raise ArgumentTypeError(
            f"version={version!r:.80} is a {type(version).__name__}; it must be a whole number from 1"
        )
    if version < 1:
        raise ArgumentError(f"version={version}: versions are counted from 1")
    return version


def checked_metrics(metrics: Any) -> dict[str, float]:
    """Names to finite numbers, also of numpy's and in a framework's tensor; None for none.

    Raises ArgumentError and ArgumentTypeError.
    """
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        raise ArgumentTypeError(f"metrics={metrics!r:.80} is a {type(metrics).__name__}; it must be a dict of numbers")
    found = {}
    for name, value in metrics.items():
        if not isinstance(name, str) or not name:
            raise ArgumentTypeError(f"metrics: the name {name!r:.80} must be text")
        plain = _plain(value)
        if isinstance(plain, bool) or not isinstance(plain, (int, float)):
            raise ArgumentTypeError(
                f"metrics[{name!r}]={value!r:.80} is a {type(value).__name__}; it must be a number, by which versions can "
                "be compared"
            )
        if not math.isfinite(plain):
            raise ArgumentError(
                f"metrics[{name!r}]={plain}: it must be a finite number; leave it out where there is none"
            )
        found[name] = float(plain)
    return found


def _plain(value: Any) -> Any:
    """The number that an array or tensor holds, on whatever device; everything else as it is."""
    if isinstance(value, (int, float)) or not all(size == 1 for size in getattr(value, "shape", [0])):
        return value
    if hasattr(value, "item"):
        return value.item()
    return value.numpy().item() if hasattr(value, "numpy") else value  # TensorFlow's has no item()


# ------------------------------------------------------------------------------------------ which one is best


class Metric:
    """Whether the largest or the smallest value of a metric is best."""

    MAX = "MAX"
    MIN = "MIN"


def checked_direction(direction: Any) -> str:
    """MAX or MIN, in any case. Raises ArgumentError."""
    if isinstance(direction, str) and direction.upper() in (Metric.MAX, Metric.MIN):
        return direction.upper()
    raise ArgumentError(f"direction={direction!r:.80}: it must be MAX or MIN")


def usual_direction(metric: str) -> str:
    """MIN for what by its name is a loss or an error, else MAX."""
    words = re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", metric).lower())
    return Metric.MIN if _SMALLER_IS_BETTER & set(words) else Metric.MAX


_SMALLER_IS_BETTER = {"loss", "error", "err", "mse", "mae", "rmse", "mape", "msle", "logloss", "perplexity", "deviance"}


def best(versions: Iterable[ModelDescription], metric: str, direction: str) -> ModelDescription:
    """The version with the largest or smallest value; of equals the youngest.

    Raises ArgumentError where no version has this metric, naming those that there are.
    """
    given = list(versions)
    having = [one for one in given if metric in one.metrics]
    if not having:
        name = given[0].name if given else ""
        known = sorted({key for one in given for key in one.metrics})
        hint = suggestions.instead(metric, known, f"they have: {', '.join(known)}") if known else "none has any metric"
        raise ArgumentError(f"no version of the model '{name}' has the metric {metric!r}; {hint}")
    sign = 1.0 if direction == Metric.MAX else -1.0
    return max(having, key=lambda one: (sign * one.metrics[metric], one.version))


def main_metric(versions: Iterable[ModelDescription]) -> str:
    """The one metric that all versions are compared by. Raises ArgumentError where there is none, or more than one."""
    given = list(versions)
    known = sorted({key for one in given for key in one.metrics})
    if len(known) == 1:
        return known[0]
    name = given[0].name if given else ""
    why = f"its versions have several metrics: {', '.join(known)}" if known else "none of its versions has a metric"
    remedy = f"; name one, such as '{BEST}:{known[0]}'" if known else "; export(..., metrics={'accuracy': 0.98})"
    raise ArgumentError(f"which version of the model '{name}' is best? {why}{remedy}")
