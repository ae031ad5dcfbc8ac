"""ONNX: a graph that ONNX Runtime computes, without the framework that it was made with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopsml import extras
from hopsml.cluster.worker.context import current
from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.model.description import ModelDescription, Signature, TensorSpec
from hopsml.model.flavors import torch as torch_flavor
from hopsml.model.flavors.contract import LoadedModel, SavedModel, UnsavableModel, flavor_of, version_of

if TYPE_CHECKING:
    import onnxruntime
    from numpy.typing import NDArray

_FILE = "model.onnx"
# ONNX Runtime's names of element types that are not numpy's.
_DTYPES = {"float": "float32", "double": "float64", "string": "str"}
_PROVIDERS = ("CUDAExecutionProvider", "CPUExecutionProvider")  # the first that is there computes what it can
_TELEMETRY = "ORT_DISABLE_TELEMETRY"
_threads = 0  # of a session; 0: as many as there are cores


def to_onnx(model: Any, example: Any) -> Any:
    """A module of PyTorch, or an estimator of scikit-learn, as an ``onnx.ModelProto`` for any number of rows.

    Args:
        model: a ``torch.nn.Module``, or an estimator or pipeline of scikit-learn.
        example: a row or more of its inputs: an array; for a module also a tuple, or a dict by the arguments' names.

    Returns what ``hopsml.model.export`` takes, as do other programs that know ONNX. Raises ArgumentError where a converter
    is missing or has no operator for a part of the model (its message names it), ArgumentTypeError for other models.
    """
    flavor = flavor_of(model)
    if flavor not in _CONVERTERS:
        raise ArgumentTypeError(
            f"to_onnx({type(model).__name__}): it converts modules of PyTorch and estimators of scikit-learn; of others "
            "give export() the .onnx file that their own converter writes"
        )
    if example is None:
        raise ArgumentError(f"to_onnx({type(model).__name__}): example= must have a row or more of its inputs")
    try:
        return _CONVERTERS[flavor](model, example)
    except ImportError as error:
        raise _missing(f"to_onnx({type(model).__name__})", error) from error
    except ArgumentError:
        raise
    except Exception as error:
        raise UnsavableModel(
            f"{type(model).__name__} cannot be converted to ONNX: {type(error).__name__}: {error}"
        ) from error


def _from_torch(model: Any, example: Any) -> Any:
    import onnxscript  # noqa: F401  what torch.onnx needs, and says in many words when it is missing
    import torch

    model = torch_flavor.on_cpu(model)
    given = torch_flavor.named(model, example)
    rows = torch.export.Dim("rows", min=1)
    with torch_flavor.evaluating(model), torch.no_grad(), torch_flavor.triton_left_out():
        outputs = torch_flavor.called(model, given)
        program = torch.onnx.export(
            model,
            tuple(given.values()),
            input_names=list(given),
            output_names=list(outputs),
            dynamic_shapes=tuple({0: rows} for _ in given),
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    return program.model_proto


def _from_sklearn(model: Any, example: Any) -> Any:
    import numpy as np
    import skl2onnx
    from sklearn.base import is_classifier

    # Probabilities as one array, and not as a list of dictionaries.
    options = {id(model): {"zipmap": False}} if is_classifier(model) else None
    return skl2onnx.to_onnx(model, np.asarray(example)[:1], options=options)


_CONVERTERS = {"torch": _from_torch, "sklearn": _from_sklearn}


def keeps() -> bool:
    """Only the chief's graph stays."""
    context = current()
    return context is None or context.is_chief


def save(model: Any, folder: Path, example: Any) -> SavedModel:
    """A ``ModelProto``, which ONNX Runtime has loaded once. ``example`` is of no use: the graph says what it takes."""
    import onnx

    try:
        onnx.save_model(model, folder / _FILE)
        signature = _signature(_session(folder / _FILE))
    except ImportError as error:
        raise _missing("export() of an ONNX graph", error) from error
    except ArgumentError:
        raise
    except Exception as error:
        raise UnsavableModel(
            f"the ONNX graph '{model.graph.name}' cannot be computed by ONNX Runtime: {type(error).__name__}: {error}"
        ) from error
    return SavedModel({"onnx": _FILE}, signature, version_of("onnx", "onnxruntime", "numpy"))


def signature_of(path: Path) -> Signature | None:
    """Of a graph's file; None where ONNX Runtime is not installed or cannot compute it: a file may be kept all the same."""
    try:
        return _signature(_session(path))
    except Exception:  # noqa: BLE001 whatever is in it
        return None


def limit_threads(count: int) -> None:
    """Of sessions that are made from now on."""
    global _threads
    _threads = count


def load(folder: Path, description: ModelDescription) -> LoadedModel:
    """Raises ArgumentError where ONNX Runtime is missing, or cannot compute the graph."""
    try:
        session = _session(folder / description.artifacts["onnx"])
    except ImportError as error:
        raise _missing(f"the model '{description.name}'", error) from error
    except Exception as error:
        raise ArgumentError(
            f"version {description.version} of the model '{description.name}' cannot be computed by this ONNX "
            f"Runtime: {type(error).__name__}: {error}"
        ) from error
    return _Graph(session, description.signature or _signature(session))


class _Graph:
    def __init__(self, session: onnxruntime.InferenceSession, signature: Signature) -> None:
        self._session, self.signature = session, signature

    def predict(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        import numpy as np

        given = {name: array.astype(object) if array.dtype.kind in "US" else array for name, array in inputs.items()}
        names = list(self.signature.outputs)
        return {name: np.asarray(found) for name, found in zip(names, self._session.run(names, given), strict=True)}


def _session(path: Path) -> onnxruntime.InferenceSession:
    onnxruntime = _runtime()
    options = onnxruntime.SessionOptions()
    shared_out = os.environ.get("OMP_NUM_THREADS", "")  # as a server's process is told its part of the cores
    options.intra_op_num_threads = _threads or (int(shared_out) if shared_out.isdecimal() else 0)
    options.inter_op_num_threads = 1
    available = onnxruntime.get_available_providers()
    providers = [name for name in _PROVIDERS if name in available]
    return onnxruntime.InferenceSession(str(path), options, providers=providers)


def _runtime() -> Any:
    """ONNX Runtime, which tells its makers how it is used unless it is told not to before it is imported."""
    chosen = os.environ.get(_TELEMETRY)
    os.environ[_TELEMETRY] = "1" if chosen is None else chosen
    try:
        import onnxruntime
    finally:
        if chosen is None:
            del os.environ[_TELEMETRY]
    return onnxruntime


def _signature(session: onnxruntime.InferenceSession) -> Signature:
    """As the graph says it. Raises UnsavableModel for what is no table of rows."""
    inputs = {one.name: _spec("input", one) for one in session.get_inputs()}
    return Signature(inputs, {one.name: _spec("output", one) for one in session.get_outputs()})


def _spec(kind: str, described: Any) -> TensorSpec:
    outer, _, dtype = described.type.rstrip(")").partition("(")
    if outer != "tensor":
        raise UnsavableModel(
            f"the ONNX graph's {kind} '{described.name}' is {described.type}, where it must be a tensor; a classifier of "
            "scikit-learn is converted with the option zipmap=False, as hopsml.model.to_onnx does it"
        )
    shape = described.shape
    if not shape or isinstance(shape[0], int):
        raise UnsavableModel(
            f"the ONNX graph's {kind} '{described.name}' has the shape {shape}: its first dimension must be free, for any "
            "number of rows; name it when the graph is made (dynamic_shapes, dynamic_axes), or use hopsml.model.to_onnx"
        )
    sizes = tuple(size if isinstance(size, int) else None for size in shape[1:])
    return TensorSpec(_DTYPES.get(dtype, dtype), (None, *sizes))


def _missing(what: str, error: ImportError) -> ArgumentError:
    return ArgumentError(
        f"{what} needs the package '{error.name}', which is not installed here: {extras.install('onnx')}"
    )
