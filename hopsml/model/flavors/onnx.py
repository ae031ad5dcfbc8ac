"""Flavor of ONNX: a graph that ONNX Runtime computes, without the framework in which the model was made."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopsml.core import extras
from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.model.description import ModelDescription, Signature, TensorSpec
from hopsml.model.flavors import torch as torch_flavor
from hopsml.model.flavors.contract import LoadedModel, SavedModel, UnsavableModel, flavor_of, on_chief, package_versions

if TYPE_CHECKING:
    import onnxruntime
    from numpy.typing import NDArray

_FILE = "model.onnx"
keeps = on_chief
# Names of element types in ONNX Runtime that differ from NumPy's.
_DTYPES = {"float": "float32", "double": "float64", "string": "str"}
_PROVIDERS = ("CUDAExecutionProvider", "CPUExecutionProvider")  # the first available one is preferred
_TELEMETRY = "ORT_DISABLE_TELEMETRY"
_INPUT = "X"
# Dtypes of an estimator's inputs with fractions and of whole numbers, in the order of the attempts.
_KINDS = (("float32", "int64"), ("float32", "float32"), ("float64", "int64"), ("float64", "float64"))
_OF_ESTIMATORS = "ai.onnx.ml"
_OLDER = {"": 18, _OF_ESTIMATORS: 3}
_MOST_ROWS = 1000  # maximum rows of an example for which a graph is compared with its estimator
_ROWS_THAT_MAY_DIFFER = 1000  # one row of these: float32 may move a value across a tree's threshold
_TOLERANCE = 1e-4
_LONGEST_REASON = 300
_threads = 0  # threads of a session; 0: all cores


def to_onnx(model: Any, example: Any) -> Any:
    """Convert a module of PyTorch, or an estimator of scikit-learn, to an ``onnx.ModelProto`` for any number of rows.

    Args:
        model: A ``torch.nn.Module``, or an estimator or pipeline of scikit-learn.
        example: One row or more of its inputs: an array; for a module also a tuple, or a dict by the arguments' names;
            for an estimator also a table. The graph of an estimator is compared with it for these rows.

    Returns:
        The graph, for ``hopsml.model.export`` or other programs that use ONNX.

    Raises:
        ArgumentError: A converter is missing or has no operator for a part of the model (its message names it), or the
            graph's predictions differ from the estimator's.
        ArgumentTypeError: The model is of another kind.
    """
    flavor = flavor_of(model)
    if flavor not in _CONVERTERS:
        raise ArgumentTypeError(
            f"to_onnx({type(model).__name__}): only PyTorch modules and scikit-learn estimators can be converted; "
            "for other models pass the .onnx file of their converter to export()"
        )
    if example is None:
        raise ArgumentError(f"to_onnx({type(model).__name__}): example= must have at least one row of its inputs")
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
    """Convert a module of PyTorch."""
    import onnxscript  # noqa: F401 required by torch.onnx, whose own error for a missing package is long
    import torch

    model = torch_flavor.on_cpu(model)
    given = torch_flavor.named_tensors(model, example)
    rows = torch.export.Dim("rows", min=1)
    with torch_flavor.evaluation_mode(model), torch.no_grad(), torch_flavor.hide_triton():
        outputs = torch_flavor.call_model(model, given)
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
    """Convert an estimator to the first graph that ONNX Runtime can compute and that predicts as the estimator does.

    Numbers are float32 if that is sufficient: most of ONNX Runtime's operators for estimators accept no other type.
    """
    rows, problems = _Rows(model, example), dict[str, str]()  # reason -> the first dtypes with which it occurred
    for kinds in _KINDS:
        try:
            try:
                graph = _converted(model, rows.types(kinds))
            except RuntimeError as error:
                if _OF_ESTIMATORS not in str(error):
                    raise
                graph = _converted(model, rows.types(kinds), _OLDER)  # the newest version that some converters support
            if problem := rows.difference(graph, kinds):
                raise UnsavableModel(problem)
        except ImportError:
            raise
        except Exception as error:  # noqa: BLE001 the next types may work; if none does, all errors are reported
            reason = str(error) if isinstance(error, UnsavableModel) else f"{type(error).__name__}: {error}"
            problems.setdefault(reason[:_LONGEST_REASON], " and ".join(dict.fromkeys(kinds)))
        else:
            return graph
    raise UnsavableModel(
        f"{type(model).__name__} cannot be converted to an ONNX graph with the same predictions; "
        f"{'; '.join(f'with {kinds}: {reason}' for reason, kinds in problems.items())}. Export the estimator itself, "
        "or remove the named part"
    )


def _converted(model: Any, given: Sequence[tuple[str, Any]], opset: Mapping[str, int] | None = None) -> Any:
    """Convert an estimator once with these input types; an exception of the converter is passed on."""
    import skl2onnx

    last = model
    while getattr(last, "steps", None):  # of a pipeline
        last = last.steps[-1][1]
    # Probabilities as one array instead of a list of dictionaries; no option if the estimator has none; scores for an
    # estimator in a pipeline that has only these.
    ways: list[dict[int, dict[str, bool]] | None] = [
        {id(model): {"zipmap": False}}, None, {id(last): {"raw_scores": True}}
    ]  # fmt: skip
    for number, options in enumerate(ways):
        try:
            made = skl2onnx.to_onnx(model, initial_types=list(given), options=options, target_opset=opset)
            break
        except NameError:
            if number == len(ways) - 1:
                raise
    for output in made.graph.output:  # some converters describe a single row
        sizes = output.type.tensor_type.shape.dim
        if output.type.HasField("tensor_type") and sizes:
            sizes[0].Clear()
    _name_inputs(made.graph, [name for name, _ in given])
    return made


def _name_inputs(graph: Any, names: Sequence[str]) -> None:
    """Restore the columns' names of inputs in which the converter replaced characters by ``_``."""
    changed = {one.name: name for one, name in zip(graph.input, names, strict=True) if one.name != name}
    for one in graph.input:
        one.name = changed.get(one.name, one.name)
    for node in graph.node if changed else ():
        node.input[:] = [changed.get(name, name) for name in node.input]


class _Rows:
    """Rows of the example, with the estimator's predictions for them.

    The inputs are one array, or one array per column of a table, by the column's name.
    """

    def __init__(self, model: Any, example: Any) -> None:
        import numpy as np

        self._example, self._arrays = example, dict[str, Any]()
        if _has_named_columns(model, example):
            table = dict(example) if isinstance(example, Mapping) else {name: example[name] for name in example}
            self._arrays = {str(name): _array(column)[:, None] for name, column in table.items()}
        else:
            self._arrays = {_INPUT: _array(example)}
        if any(array.ndim == 0 or not len(array) for array in self._arrays.values()):
            raise ArgumentError(f"to_onnx({type(model).__name__}): example= must have at least one row of its inputs")
        self._arrays = {name: array[:_MOST_ROWS] for name, array in self._arrays.items()}
        called = _called(model, self._first_rows())
        self._has_lists = any(isinstance(one, list) for one in called.values())
        self._expected = {
            name: np.asarray(one.toarray() if hasattr(one, "toarray") else one)
            for name, one in called.items()
            if not isinstance(one, list)
        }

    def _first_rows(self) -> Any:
        """Return the first rows of the example in its own type."""
        import numpy as np

        if hasattr(self._example, "iloc"):
            return self._example.iloc[:_MOST_ROWS]
        if isinstance(self._example, Mapping):
            import pandas as pd

            return pd.DataFrame(dict(self._example)).iloc[:_MOST_ROWS]
        return np.asarray(self._example)[:_MOST_ROWS]

    def types(self, kinds: tuple[str, str]) -> list[tuple[str, Any]]:
        """Return skl2onnx's types of the inputs, with these dtypes for numbers and whole numbers."""
        from skl2onnx.common import data_types as types

        of = {
            "float32": types.FloatTensorType,
            "float64": types.DoubleTensorType,
            "int64": types.Int64TensorType,
            "bool": types.BooleanTensorType,
            "str": types.StringTensorType,
        }
        return [(name, of[_dtype(array, kinds)]([None, *array.shape[1:]])) for name, array in self._arrays.items()]

    def difference(self, graph: Any, kinds: tuple[str, str]) -> str:
        """Return the text about how the graph's predictions differ from the estimator's; "" if they do not."""
        import numpy as np

        session = _session(graph.SerializeToString(), is_quiet=True)
        given = {}
        for name, array in self._arrays.items():
            dtype = _dtype(array, kinds)
            given[name] = array.astype(object if dtype == "str" else dtype)
        if self._has_lists:  # the probabilities of several targets are not an array of rows
            del graph.graph.output[1:]
            session = _session(graph.SerializeToString(), is_quiet=True)
        for found, (name, wanted) in zip(session.run(None, given), self._expected.items(), strict=False):
            if not isinstance(found, np.ndarray) or found.shape[:1] != wanted.shape[:1]:
                return f"its output {name} is not an array with one row for each row of example="
            if (rows := _rows_that_differ(found, wanted)) > len(wanted) // _ROWS_THAT_MAY_DIFFER:
                return f"its output {name} differs for {rows} of {len(wanted)} rows of example="
        return ""


def _has_named_columns(model: Any, example: Any) -> bool:
    """Return True if each column of a table is an input.

    That is so if the columns have several types, or if parts of the model select columns by name.
    """
    if isinstance(example, Mapping):
        return True
    if not hasattr(example, "dtypes") or not hasattr(example, "columns"):
        return False
    return len({kind.kind for kind in example.dtypes} - {"f", "i", "u"}) > 0 or _selects_by_name(model)


def _selects_by_name(model: Any) -> bool:
    """Return True if a part of the model selects columns by their names."""
    parts = [model]
    while parts:
        part = parts.pop()
        if any(isinstance(one, str) for _, _, some in getattr(part, "transformers_", ()) for one in _listed(some)):
            return True
        parts += [step for _, step in getattr(part, "steps", ())]
        parts += [one for name in ("best_estimator_", "estimator_") if (one := getattr(part, name, None)) is not None]
    return False


def _listed(some: Any) -> list[Any]:
    """Return a selection of columns as a list."""
    return [some] if isinstance(some, str) else list(some) if hasattr(some, "__iter__") else []


def _array(values: Any) -> NDArray[Any]:
    """Return values as an array; objects get the type of their elements."""
    import numpy as np

    found = np.asarray(values)
    return np.asarray(found.tolist()) if found.dtype.kind == "O" else found


def _dtype(array: NDArray[Any], kinds: tuple[str, str]) -> str:
    """Return the dtype of an input, with these dtypes for numbers and whole numbers."""
    if array.dtype.kind in "OUS":
        return "str"
    if array.dtype.kind == "b":
        return "bool" if kinds[1] == "int64" else kinds[0]
    return kinds[1] if array.dtype.kind in "iu" else kinds[0]


def _called(model: Any, rows: Any) -> dict[str, Any]:
    """Return the estimator's predictions for these rows, in the order of a graph's outputs."""
    names = ("predict", "predict_proba") if hasattr(model, "predict") else ("transform",)
    return {name: getattr(model, name)(rows) for name in names if hasattr(model, name)}


def _rows_that_differ(found: NDArray[Any], wanted: NDArray[Any]) -> int:
    """Return the number of rows in which two outputs differ, within a tolerance."""
    import numpy as np

    if found.size != wanted.size:
        return len(wanted)
    found = found.reshape(wanted.shape)
    if wanted.dtype.kind in "fc":
        scale = np.abs(wanted[np.isfinite(wanted)]).max(initial=1e-30)
        same = np.isclose(found, wanted, rtol=_TOLERANCE, atol=_TOLERANCE * scale, equal_nan=True)
    elif wanted.dtype.kind in "iub":
        same = found == wanted
    else:
        same = found.astype(str) == wanted.astype(str)
    return int((~same).reshape(len(wanted), -1).any(axis=1).sum())


_CONVERTERS = {"torch": _from_torch, "sklearn": _from_sklearn}


def save(model: Any, folder: Path, example: Any) -> SavedModel:
    """Write a ``ModelProto``, and check that ONNX Runtime can load it.

    Args:
        model: The graph.
        folder: Target folder.
        example: Ignored; the graph defines its inputs.

    Raises:
        ArgumentError: A package is missing.
        UnsavableModel: ONNX Runtime cannot compute the graph.
    """
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
    return SavedModel({"onnx": _FILE}, signature, package_versions("onnx", "onnxruntime", "numpy"))


def signature_of(path: Path) -> Signature | None:
    """Return the signature of a graph's file; None if ONNX Runtime is not installed or cannot compute the graph."""
    try:
        return _signature(_session(path))
    except Exception:  # noqa: BLE001 any error of an arbitrary file
        return None


def limit_threads(count: int) -> None:
    """Set the number of threads for sessions that are created from now on."""
    global _threads
    _threads = count


def load(folder: Path, description: ModelDescription) -> LoadedModel:
    """Load a graph in a session of ONNX Runtime.

    Raises:
        ArgumentError: ONNX Runtime is not installed, or cannot compute the graph.
    """
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
    """Loaded graph with its signature."""

    def __init__(self, session: onnxruntime.InferenceSession, signature: Signature) -> None:
        self._session, self.signature = session, signature

    def predict(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Run the session for one batch."""
        import numpy as np

        given = {name: array.astype(object) if array.dtype.kind in "US" else array for name, array in inputs.items()}
        names = list(self.signature.outputs)
        return {name: np.asarray(found) for name, found in zip(names, self._session.run(names, given), strict=True)}


def _session(graph: Path | bytes, is_quiet: bool = False) -> onnxruntime.InferenceSession:
    """Create a session of ONNX Runtime for a file or a serialized graph."""
    onnxruntime = _runtime()
    options = onnxruntime.SessionOptions()
    shared_out = os.environ.get("OMP_NUM_THREADS", "")  # set by the process that shares the cores among replicas
    options.intra_op_num_threads = _threads or (int(shared_out) if shared_out.isdecimal() else 0)
    options.inter_op_num_threads = 1
    if is_quiet:
        options.log_severity_level = 4
    available = onnxruntime.get_available_providers()
    providers = [name for name in _PROVIDERS if name in available]
    content = graph if isinstance(graph, bytes) else str(graph)
    return onnxruntime.InferenceSession(content, options, providers=providers)


def _runtime() -> Any:
    """Import ONNX Runtime with its telemetry disabled, unless the user has set its variable.

    The variable takes effect only if it is set before the import.
    """
    chosen = os.environ.get(_TELEMETRY)
    os.environ[_TELEMETRY] = "1" if chosen is None else chosen
    try:
        import onnxruntime
    finally:
        if chosen is None:
            del os.environ[_TELEMETRY]
    return onnxruntime


def _signature(session: onnxruntime.InferenceSession) -> Signature:
    """Return the signature of a graph."""
    inputs = {one.name: _spec("input", one) for one in session.get_inputs()}
    return Signature(inputs, {one.name: _spec("output", one) for one in session.get_outputs()})


def _spec(kind: str, described: Any) -> TensorSpec:
    """Return the specification of an input or output."""
    outer, _, dtype = described.type.rstrip(")").partition("(")
    if outer != "tensor":
        raise UnsavableModel(
            f"the ONNX graph's {kind} '{described.name}' is {described.type}, but must be a tensor; convert a "
            "classifier of scikit-learn with the option zipmap=False, or with hopsml.model.to_onnx"
        )
    shape = described.shape
    if not shape or isinstance(shape[0], int):
        raise UnsavableModel(
            f"the ONNX graph's {kind} '{described.name}' has the shape {shape}: its first dimension must be free, "
            "for any number of rows; give it a name when you create the graph (dynamic_shapes, dynamic_axes), or use "
            "hopsml.model.to_onnx"
        )
    sizes = tuple(size if isinstance(size, int) else None for size in shape[1:])
    return TensorSpec(_DTYPES.get(dtype, dtype), (None, *sizes))


def _missing(what: str, error: ImportError) -> ArgumentError:
    """Return the error for a missing package."""
    return ArgumentError(
        f"{what} needs the package '{error.name}', which is not installed here: {extras.install_command('onnx')}"
    )
