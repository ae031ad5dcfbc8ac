"""Content of ``model.json``, which describes one version of a model. Pure.

The file is written last, so its existence means that the version is complete. A tensor's shape has None for a variable
size; the first dimension is the batch. Names of dtypes are NumPy's (``float32``, ``int64``, ``bool``, ``str``).
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from hopsml.core import suggestions
from hopsml.core.decoding import checked
from hopsml.errors import ArgumentError, ArgumentTypeError, MetricsError, ModelNotFound, StorageError

MODEL_JSON = "model.json"
FILES = "files"  # folder of a version's files in format 1
FORMAT = 2  # of the file; a reader rejects higher values
LATEST, BEST = "latest", "best"  # computed names, which no alias may have
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,255}")
_RESERVED_ALIAS = re.compile(rf"{LATEST}|{BEST}|v?\d+")
_SMALLER_IS_BETTER = {"loss", "error", "err", "mse", "mae", "rmse", "mape", "msle", "logloss", "perplexity", "deviance"}


class TensorSpec(msgspec.Struct, frozen=True):
    """Dtype and shape of an input or output.

    Attributes:
        dtype: Name of the dtype.
        shape: Sizes of the dimensions, the batch first; None for a variable size.
        features: Names of the entries of the last dimension, if the model has them.
    """

    dtype: str
    shape: tuple[int | None, ...]
    features: tuple[str, ...] = ()


class Signature(msgspec.Struct, frozen=True):
    """Inputs and outputs of a model, by name."""

    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]


class ModelFile(msgspec.Struct, frozen=True):
    """File of a version: its length in bytes and the SHA-256 of its content, in hexadecimal digits."""

    bytes: int
    sha256: str


class Lineage(msgspec.Struct, frozen=True):
    """Origin of a version; unknown values are empty.

    Attributes:
        run_id: ID of the run.
        run_url: URL of the run directory.
        commit: Commit of the code's repository.
        dirty: True if the code differed from the commit; None if unknown.
        data: Inputs as in the run's record: url, bytes, checksum and so on.
    """

    run_id: str = ""
    run_url: str = ""
    commit: str = ""
    dirty: bool | None = None
    data: list[dict[str, Any]] = []


class ModelDescription(msgspec.Struct, frozen=True):
    """Description of a version, stored as ``model.json``.

    Attributes:
        name: Name of the model.
        version: Version number.
        flavor: tensorflow, keras, torch, onnx, sklearn or files.
        created: Time of the export, in UTC.
        artifacts: Format that can be loaded (``saved_model``, ``keras``, ``torch_export``, ``torchscript``, ``onnx``,
            ``sklearn``) -> its path relative to ``folder``; "" for that folder itself.
        signature: Inputs and outputs; None if unknown.
        metrics: Name -> value of each metric.
        description: Text by the exporter.
        creator: Name of the exporting user.
        lineage: Origin of the version.
        requirements: Package -> its version at the export.
        files: Path relative to ``folder`` -> file.
        bytes: Total size of all files.
        folder: Folder of the files, next to ``model.json``; "" if they are next to it themselves.
        format: Format version of the file.
    """

    name: str
    version: int
    flavor: str
    created: datetime
    artifacts: dict[str, str] = {}
    signature: Signature | None = None
    metrics: dict[str, float] = {}
    description: str = ""
    creator: str = ""
    lineage: Lineage = Lineage()
    requirements: dict[str, str] = {}
    files: dict[str, ModelFile] = {}
    bytes: int = 0
    folder: str = FILES
    format: int = FORMAT

    @property
    def digest(self) -> str:
        """SHA-256 over the names and contents of all files, in hexadecimal digits."""
        total = hashlib.sha256()
        for name, file in sorted(self.files.items()):
            total.update(f"{name}\0{file.bytes}\0{file.sha256}\n".encode())
        return total.hexdigest()


_decode = checked(msgspec.json.Decoder(ModelDescription).decode)


def encode(description: ModelDescription) -> bytes:
    """Return a description as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(description), indent=1) + b"\n"


def decode(data: bytes, url: str) -> ModelDescription:
    """Return the description in a file's content.

    Names and paths in it become paths of this machine, and the file may be another user's; therefore none may lead out
    of the folder that it is relative to.

    Args:
        data: Content of the file.
        url: URL of the file, for messages.

    Raises:
        StorageError: The content is not a description, has an invalid name or path, or was written by a newer hopsml.
    """
    try:
        found = _decode(data)
    except msgspec.MsgspecError as error:
        raise StorageError(
            f"cannot read {url}: it is not a model.json of hopsml ({error}); export the model again", url
        ) from error
    if found.format > FORMAT:
        raise StorageError(
            f"cannot read {url}: a newer version of hopsml wrote it (format {found.format}; this "
            f"version reads {FORMAT}); install that version",
            url,
        )
    if not _NAME.fullmatch(found.name):
        raise StorageError(f"cannot read {url}: its name {found.name!r:.80} is not valid for a model", url)
    paths = (*filter(None, [found.folder]), *found.files, *filter(None, found.artifacts.values()))
    if wrong := next((path for path in paths if not _stays_below(path)), None):
        raise StorageError(f"cannot read {url}: the path {wrong!r:.80} leads out of the version's folder", url)
    return found


def _stays_below(path: str) -> bool:
    """Return True if a relative path does not lead out of its folder."""
    return "\0" not in path and not {"", ".", ".."} & set(path.split("/"))


# ------------------------------------------------------------------------------------------ validation


def checked_name(name: Any) -> str:
    """Return a valid name of a model.

    Raises:
        ArgumentError: The name has invalid characters or an invalid length.
        ArgumentTypeError: The name is not text.
    """
    return _checked("model_name", name)


def checked_alias(alias: Any) -> str:
    """Return a valid name of an alias.

    Raises:
        ArgumentError: The name is reserved or invalid.
        ArgumentTypeError: The name is not text.
    """
    if isinstance(alias, str) and _RESERVED_ALIAS.fullmatch(alias):
        raise ArgumentError(
            f"alias={alias!r}: {LATEST}, {BEST}, numbers and v1, v2 ... already denote versions; choose another "
            "name, such as production"
        )
    return _checked("alias", alias)


def _checked(what: str, text: Any) -> str:
    """Return a valid name; ``what`` names the argument in errors."""
    if not isinstance(text, str):
        raise ArgumentTypeError(f"{what}={text!r:.80} is a {type(text).__name__}; it must be text")
    if not _NAME.fullmatch(text):
        raise ArgumentError(
            f"{what}={text!r:.80}: it is the name of a folder, so it must have 1 to 256 letters, digits, '_', '-' "
            "and '.', and not begin with '-' or '.'"
        )
    return text


def checked_version(version: Any) -> int:
    """Return a valid version number.

    Raises:
        ArgumentError: The number is below 1.
        ArgumentTypeError: The value is not a whole number.
    """
    if isinstance(version, bool) or not isinstance(version, int):
        raise ArgumentTypeError(
            f"version={version!r:.80} is a {type(version).__name__}; it must be a whole number from 1"
        )
    if version < 1:
        raise ArgumentError(f"version={version}: the version must be 1 or more")
    return version


def checked_metrics(metrics: Any) -> dict[str, float]:
    """Return valid metrics: names with finite numbers, which may also be NumPy scalars or tensors; empty for None.

    Raises:
        ArgumentError: A value is not finite.
        MetricsError: (TypeError, AssertionError) ``metrics`` is not a dict, a name is not text, or a value is not a
            number.
    """
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        raise MetricsError(f"metrics={metrics!r:.80} is a {type(metrics).__name__}; it must be a dict of numbers")
    found = {}
    for name, value in metrics.items():
        if not isinstance(name, str) or not name:
            raise MetricsError(f"metrics: the name {name!r:.80} must be text")
        plain = _plain(value)
        if isinstance(plain, bool) or not isinstance(plain, (int, float)):
            raise MetricsError(f"metrics[{name!r}]={value!r:.80} is a {type(value).__name__}; it must be a number")
        if not math.isfinite(plain):
            raise ArgumentError(f"metrics[{name!r}]={plain}: it must be a finite number; omit the metric otherwise")
        found[name] = float(plain)
    return found


def _plain(value: Any) -> Any:
    """Return the number in an array or tensor of one element, on any device; other values unchanged."""
    if isinstance(value, (int, float)) or not all(size == 1 for size in getattr(value, "shape", [0])):
        return value
    if hasattr(value, "item"):
        return value.item()
    return value.numpy().item() if hasattr(value, "numpy") else value  # TensorFlow's tensors have no item()


# ------------------------------------------------------------------------------------------ best version


class Metric:
    """Directions of a metric: the largest or the smallest value is best."""

    MAX = "MAX"
    MIN = "MIN"


def checked_direction(direction: Any) -> str:
    """Return MAX or MIN for a direction in any case. Raises ArgumentError: the value is neither."""
    if isinstance(direction, str) and direction.upper() in (Metric.MAX, Metric.MIN):
        return direction.upper()
    raise ArgumentError(f"direction={direction!r:.80}: the direction must be MAX or MIN")


def usual_direction(metric: str) -> str:
    """Return MIN for a metric whose name denotes a loss or an error, otherwise MAX."""
    words = re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", metric).lower())
    return Metric.MIN if _SMALLER_IS_BETTER & set(words) else Metric.MAX


def best_version(versions: Iterable[ModelDescription], metric: str, direction: str) -> ModelDescription:
    """Return the version with the best value of a metric; of equal values the newest version.

    Args:
        versions: Versions of one model.
        metric: Name of the metric.
        direction: ``Metric.MAX`` or ``Metric.MIN``.

    Raises:
        ModelNotFound: No version has this metric; the message lists the existing ones.
    """
    given = list(versions)
    having = [one for one in given if metric in one.metrics]
    if not having:
        name = given[0].name if given else ""
        known = sorted({key for one in given for key in one.metrics})
        hint = (
            suggestions.suggestion_text(metric, known, f"they have: {', '.join(known)}")
            if known
            else "no version has a metric"
        )
        raise ModelNotFound(f"no version of the model '{name}' has the metric {metric!r}; {hint}")
    sign = 1.0 if direction == Metric.MAX else -1.0
    return max(having, key=lambda one: (sign * one.metrics[metric], one.version))


def main_metric(versions: Iterable[ModelDescription]) -> str:
    """Return the only metric of all versions, by which they are compared.

    Raises:
        ArgumentError: There is no metric, or more than one.
    """
    given = list(versions)
    known = sorted({key for one in given for key in one.metrics})
    if len(known) == 1:
        return known[0]
    name = given[0].name if given else ""
    why = f"its versions have several metrics: {', '.join(known)}" if known else "no version has a metric"
    remedy = f"; select one, such as '{BEST}:{known[0]}'" if known else "; export(..., metrics={'accuracy': 0.98})"
    raise ArgumentError(f"the best version of the model '{name}' is not defined: {why}{remedy}")
