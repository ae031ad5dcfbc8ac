"""Interface of flavors, and detection of a model's flavor without importing any framework."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hopsml.cluster.worker.context import current
from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.model.description import ModelDescription, Signature

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]


class UnsavableModel(ArgumentError):
    """Error for a model that cannot be saved; the message names the layer or part that caused it."""


class RefusedValuesError(ArgumentError):
    """Error for values that a model does not accept, such as an unknown category; the message names the input."""


@dataclass(frozen=True)
class MissingValues:
    """Replacements of missing values that a model accepts: NaN among numbers, ``other`` among texts and booleans."""

    other: float | None = None


@dataclass(frozen=True)
class SavedModel:
    """Result of saving a model; ``ModelDescription`` describes the fields of the same names."""

    artifacts: dict[str, str]
    signature: Signature | None = None
    requirements: dict[str, str] = field(default_factory=dict)


class LoadedModel(Protocol):
    """Model that can be called, by one thread at a time; ``missing_replacements`` returns the missing values it accepts."""

    signature: Signature

    def predict(self, inputs: Arrays) -> dict[str, NDArray[Any]]:
        """Return outputs by name for inputs by name; the first dimension of each array is the batch.

        Inputs have the dtypes and shapes of the signature. For a model with ``MissingValues``, whole numbers with
        missing values are float64, and texts and booleans with missing values are objects.

        Raises:
            RefusedValuesError: The model does not accept a value; the message names the input.
        """


class Flavor(Protocol):
    """Interface of the modules in this folder that implement a flavor."""

    def keeps(self) -> bool:
        """Return True if the files of this process must be stored; False on ranks other than the chief."""

    def save(self, model: Any, folder: Path, example: Any) -> SavedModel:
        """Write a model to an empty local folder; all ranks call this, as some frameworks read variables collectively.

        Args:
            model: The model.
            folder: Target folder.
            example: Inputs from which the signature can be derived, or None.

        Raises:
            UnsavableModel: The model cannot be saved.
        """

    def load(self, folder: Path, description: ModelDescription) -> LoadedModel:
        """Load the model of a downloaded version. Raises ArgumentError: the framework is not installed."""

    def limit_threads(self, count: int) -> None:
        """Limit the threads of this kind of model in this process; called before the first one is loaded."""


def on_chief() -> bool:
    """Return True on the chief, and outside a run: all data-parallel ranks have the same model."""
    context = current()
    return context is None or context.is_chief


_PLACE = "hopsml.model.flavors"
# Module and name of a class -> flavor; the first match counts.
_KINDS = (
    ("keras.", "Model", "keras"),
    ("tensorflow.python.module.module", "Module", "tensorflow"),
    ("sklearn.base", "BaseEstimator", "sklearn"),
    ("torch.nn.modules.module", "Module", "torch"),
    ("onnx.", "ModelProto", "onnx"),
)
# Artifacts that hopsml can call, in order of preference -> flavor.
LOADERS = {
    "saved_model": "tensorflow",
    "sklearn": "sklearn",
    "torch_export": "torch",
    "torchscript": "torch",
    "onnx": "onnx",
}


def flavor_module(flavor: str) -> Flavor:
    """Return the module of a flavor."""
    return importlib.import_module(f"{_PLACE}.{flavor}")


def flavor_of(model: Any) -> str:
    """Return the flavor of a model in memory. Raises ArgumentTypeError: the object is not a model of a known kind."""
    for kind in type(model).__mro__:
        for module, name, flavor in _KINDS:
            fits = kind.__module__.startswith(module) if module.endswith(".") else kind.__module__ == module
            if fits and kind.__name__ == name:
                return flavor
    known = "a Keras model, a tf.Module, a torch.nn.Module, an estimator of scikit-learn, an ONNX graph, or a path"
    if type(model).__module__.startswith("torch.export"):
        known = "the torch.nn.Module from which it was made; export() itself exports it for any number of rows"
    raise ArgumentTypeError(f"export({model!r:.80}): a {type(model).__name__} is not a model; pass {known}")


def load(folder: Path, description: ModelDescription) -> LoadedModel:
    """Load a downloaded version. Raises ArgumentError: the version has no artifact that hopsml can call."""
    for artifact, flavor in LOADERS.items():
        if artifact in description.artifacts:
            return flavor_module(flavor).load(folder, description)
    raise ArgumentError(
        f"version {description.version} of the model '{description.name}' contains {_holding(description)}, which "
        f"hopsml cannot load; it loads {', '.join(LOADERS)}"
    )


def takes_missing(description: ModelDescription) -> bool:
    """Return True if a version's model accepts missing values."""
    return next((artifact for artifact in LOADERS if artifact in description.artifacts), "") == "sklearn"


def signatures_of(model: LoadedModel) -> Mapping[str, LoadedModel]:
    """Return a model's further signatures by name, each as a model; empty for all but a SavedModel."""
    return getattr(model, "named", {})


def missing_replacements(model: LoadedModel) -> MissingValues | None:
    """Return the replacements of missing values; None for a model that requires all values."""
    return getattr(model, "missing", None)


def limit_threads(description: ModelDescription, count: int) -> None:
    """Limit the threads of a version's model in this process; call it before the first model of its kind is loaded."""
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = str(count)
    for artifact, flavor in LOADERS.items():
        if artifact in description.artifacts:
            flavor_module(flavor).limit_threads(count)
            return


def package_versions(*modules: str) -> dict[str, str]:
    """Return the versions of Python and of those of the named packages that are imported."""
    found = {name: getattr(sys.modules[name], "__version__", "") for name in modules if name in sys.modules}
    return {"python": ".".join(map(str, sys.version_info[:3])), **{name: str(given) for name, given in found.items()}}


def _holding(description: ModelDescription) -> str:
    """Return the text about the artifacts of a version."""
    return ", ".join(description.artifacts) or f"{len(description.files)} files of an unknown kind"
