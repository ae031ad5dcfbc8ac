"""What a kind of model must offer, and which one a model is of. No framework is imported to find that out."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.model.description import ModelDescription, Signature

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]


class UnsavableModel(ArgumentError):
    """A model that cannot be saved; the message names the layer or part that is to blame."""


class RefusedValues(ArgumentError):
    """Error for values that a model does not accept, such as an unknown category; the message names the input."""


@dataclass(frozen=True)
class MissingValues:
    """Replacements of missing values that a model accepts: NaN among numbers, ``other`` among texts and booleans."""

    other: float | None = None


@dataclass(frozen=True)
class SavedModel:
    """What saving has made: see ``ModelDescription`` for the fields of the same names."""

    artifacts: dict[str, str]
    signature: Signature | None = None
    requirements: dict[str, str] = field(default_factory=dict)


class LoadedModel(Protocol):
    """A model that is ready to be called, from one thread at a time. ``missing_of`` tells which values may be missing."""

    signature: Signature

    def predict(self, inputs: Arrays) -> dict[str, NDArray[Any]]:
        """Outputs by name for inputs by name; all have the batch as their first dimension.

        Inputs have the signature's dtypes and shapes already; of a model with ``MissingValues`` whole numbers with missing
        ones among them are float64, texts and booleans with missing ones objects. Raises RefusedValues naming the input.
        """


class Flavor(Protocol):
    """A module of this folder: the functions that it has."""

    def keeps(self) -> bool:
        """Whether this process's files are the ones that stay: False on ranks other than the chief."""

    def save(self, model: Any, folder: Path, example: Any) -> SavedModel:
        """Write the model below an empty local folder. On all ranks, as some frameworks read variables together.

        ``example``: inputs from which the signature can be seen, or None. Raises UnsavableModel.
        """

    def load(self, folder: Path, description: ModelDescription) -> LoadedModel:
        """The model of a folder that was fetched. Raises ArgumentError where the framework is missing."""

    def limit_threads(self, count: int) -> None:
        """Let models of this kind compute with so many threads in this process, before the first one is loaded."""


_PLACE = "hopsml.model.flavors"
# A class of the model's, by module and name -> its flavor; the first that fits counts.
_KINDS = (
    ("keras.", "Model", "keras"),
    ("tensorflow.python.module.module", "Module", "tensorflow"),
    ("sklearn.base", "BaseEstimator", "sklearn"),
    ("torch.nn.modules.module", "Module", "torch"),
    ("onnx.", "ModelProto", "onnx"),
)
# Those that hopsml calls itself, and from which of a version's artifacts, the one that is taken first at the front.
LOADERS = {
    "saved_model": "tensorflow",
    "sklearn": "sklearn",
    "torch_export": "torch",
    "torchscript": "torch",
    "onnx": "onnx",
}


def named(flavor: str) -> Flavor:
    """The module of a flavor."""
    return importlib.import_module(f"{_PLACE}.{flavor}")


def flavor_of(model: Any) -> str:
    """The flavor that a model in memory is of. Raises ArgumentTypeError for anything else."""
    for kind in type(model).__mro__:
        for module, name, flavor in _KINDS:
            fits = kind.__module__.startswith(module) if module.endswith(".") else kind.__module__ == module
            if fits and kind.__name__ == name:
                return flavor
    known = "a Keras model, a tf.Module, a torch.nn.Module, an estimator of scikit-learn, an ONNX graph, or a path"
    if type(model).__module__.startswith("torch.export"):
        known = "the torch.nn.Module that it was made of, which is exported here for any number of rows"
    raise ArgumentTypeError(f"export({model!r:.80}): a {type(model).__name__} is no model; give {known}")


def load(folder: Path, description: ModelDescription) -> LoadedModel:
    """A fetched version, ready to be called. Raises ArgumentError where hopsml cannot call what is in it."""
    for artifact, flavor in LOADERS.items():
        if artifact in description.artifacts:
            return named(flavor).load(folder, description)
    raise ArgumentError(
        f"version {description.version} of the model '{description.name}' holds {_holding(description)}, which hopsml "
        f"cannot call; it calls {', '.join(LOADERS)}"
    )


def takes_missing(description: ModelDescription) -> bool:
    """True if a version's model accepts missing values."""
    return next((artifact for artifact in LOADERS if artifact in description.artifacts), "") == "sklearn"


def missing_of(model: LoadedModel) -> MissingValues | None:
    """Return the replacements of missing values; None for a model that requires all values."""
    return getattr(model, "missing", None)


def limit_threads(description: ModelDescription, count: int) -> None:
    """Before the first model of its kind is loaded in this process: let it compute with so many threads."""
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = str(count)
    for artifact, flavor in LOADERS.items():
        if artifact in description.artifacts:
            named(flavor).limit_threads(count)
            return


def version_of(*modules: str) -> dict[str, str]:
    """Versions of packages that this process has imported, and of Python."""
    found = {name: getattr(sys.modules[name], "__version__", "") for name in modules if name in sys.modules}
    return {"python": ".".join(map(str, sys.version_info[:3])), **{name: str(given) for name, given in found.items()}}


def _holding(description: ModelDescription) -> str:
    return ", ".join(description.artifacts) or f"{len(description.files)} files of an unknown kind"
