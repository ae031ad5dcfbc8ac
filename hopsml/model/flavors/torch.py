"""Flavor of PyTorch: modules by ``torch.export``, for any number of rows; a ``ScriptModule`` as TorchScript."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopsml.errors import ArgumentError
from hopsml.model.description import ModelDescription, Signature, TensorSpec
from hopsml.model.flavors.contract import LoadedModel, SavedModel, UnsavableModel, on_chief, package_versions

if TYPE_CHECKING:
    from numpy.typing import NDArray

_EXPORTED, _SCRIPTED = "model.pt2", "model.pt"
keeps = on_chief


def save(model: Any, folder: Path, example: Any) -> SavedModel:
    """Export a module to a file, with the signature of a call with the example.

    Args:
        model: The module; a ``DistributedDataParallel`` is unwrapped.
        folder: Target folder.
        example: An array or tensor, a tuple of them in the order of ``forward``, or a dict by its arguments' names.

    Raises:
        ArgumentError: ``example`` is missing, or the model does not accept it.
        UnsavableModel: The module cannot be exported for any number of rows.
    """
    import torch

    whole = getattr(model, "module", model) if type(model).__name__ == "DistributedDataParallel" else model
    if example is None:
        raise ArgumentError(
            f"the inputs of a {type(whole).__name__} are unknown; pass at least one row of them: export(..., example=)"
        )
    whole = on_cpu(whole)
    given = named_tensors(whole, example)
    with evaluation_mode(whole), torch.no_grad():
        found = call_model(whole, given)
        if isinstance(whole, torch.jit.ScriptModule):
            torch.jit.save(whole, str(folder / _SCRIPTED))
            artifacts = {"torchscript": _SCRIPTED}
        else:
            with hide_triton():
                torch.export.save(_checked_export(whole, given), folder / _EXPORTED)
            artifacts = {"torch_export": _EXPORTED}
    signature = Signature(
        {name: _spec(tensor) for name, tensor in given.items()}, {name: _spec(found[name]) for name in found}
    )
    return SavedModel(artifacts, signature, package_versions("torch", "numpy"))


def on_cpu(model: Any) -> Any:
    """Return the model, or a copy on the CPU if it is on another device, which may be missing where it is loaded."""
    tensors = [*model.parameters(), *model.buffers()]
    return model if all(tensor.device.type == "cpu" for tensor in tensors) else copy.deepcopy(model).cpu()


def limit_threads(count: int) -> None:
    """Set the number of PyTorch's threads in this process."""
    import torch

    torch.set_num_threads(count)


def load(folder: Path, description: ModelDescription) -> LoadedModel:
    """Load an exported module or a TorchScript module.

    Raises:
        ArgumentError: PyTorch is not installed, or the version has no signature.
    """
    try:
        import torch
    except ImportError as error:
        raise ArgumentError(
            f"the model '{description.name}' needs PyTorch, which is not installed here: pip install torch"
        ) from error
    if description.signature is None:
        raise ArgumentError(f"the model '{description.name}' has no signature; export it with example=")
    if file := description.artifacts.get("torch_export"):
        with hide_triton():
            return _Module(torch.export.load(folder / file).module(), description.signature)
    return _Module(
        torch.jit.load(str(folder / description.artifacts["torchscript"]), "cpu").eval(), description.signature
    )


class _Module:
    """Loaded module with its signature."""

    def __init__(self, module: Any, signature: Signature) -> None:
        self._module, self.signature = module, signature

    def predict(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Call the module without gradients; bfloat16 outputs become float32."""
        import torch

        given = [_of_array(inputs[name]) for name in self.signature.inputs]
        with torch.inference_mode():
            found = outputs_by_name(self._module(*given))
            return {name: (one.float() if one.dtype is torch.bfloat16 else one).numpy() for name, one in found.items()}


def _of_array(array: NDArray[Any]) -> Any:
    """Convert an array to a tensor; bfloat16 arrays are converted by their bits, because NumPy has no such type."""
    import numpy as np
    import torch

    writable = np.require(array, requirements=["C", "W"])
    if writable.dtype.name == "bfloat16":
        return torch.from_numpy(writable.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(writable)


def named_tensors(model: Any, example: Any) -> dict[str, Any]:
    """Return the example's tensors by the names of ``forward``'s arguments, in their order.

    A single row is repeated, because ``torch.export`` would treat its size as constant.

    Args:
        model: The module.
        example: As for ``save``.

    Raises:
        ArgumentError: An argument does not exist, or a value has no batch dimension.
    """
    import torch

    names = list(inspect.signature(model.forward).parameters)
    if isinstance(model, torch.jit.ScriptModule):
        names = [argument.name for argument in model.forward.schema.arguments[1:]]
    if isinstance(example, Mapping):
        if unknown := [name for name in example if name not in names]:
            raise ArgumentError(f"example: forward() has no argument {unknown[0]!r}; it has {', '.join(names)}")
        given = {name: example[name] for name in names if name in example}
    else:
        are_several = isinstance(example, tuple) or (
            isinstance(example, list) and any(hasattr(one, "shape") for one in example)
        )
        given = dict(zip(names, example if are_several else (example,), strict=False))
    tensors = {name: _tensor(model, value) for name, value in given.items()}
    if scalars := [name for name, tensor in tensors.items() if not tensor.ndim]:
        raise ArgumentError(
            f"example: {scalars[0]}={given[scalars[0]]!r:.80} is a single number; the first dimension must count "
            "rows, as in [[1.0]]"
        )
    return {name: torch.cat([tensor, tensor]) if len(tensor) == 1 else tensor for name, tensor in tensors.items()}


def _tensor(model: Any, value: Any) -> Any:
    """Convert a value to a tensor.

    Arrays of floating-point numbers get the dtype of the model's parameters, as NumPy's default is float64.
    """
    import numpy as np
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    made = torch.as_tensor(np.asarray(value))
    kinds = [parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()]
    return made.to(kinds[0]) if kinds and made.is_floating_point() else made


def call_model(model: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model's outputs for the example, by name.

    This precedes the export, whose message for the same error has hundreds of lines.

    Raises:
        ArgumentError: The model does not accept the inputs, or its outputs do not have one row per row of the inputs.
    """
    shown = ", ".join(
        f"{name}: {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}" for name, tensor in given.items()
    )
    try:
        found = outputs_by_name(model(*given.values()))
    except Exception as error:
        raise ArgumentError(
            f"the model does not accept the example ({shown}): {type(error).__name__}: {error}"
        ) from error
    rows = {tensor.shape[0] for tensor in given.values()}
    for name, tensor in found.items():
        if not hasattr(tensor, "shape") or tuple(tensor.shape[:1]) != tuple(rows):
            what = list(tensor.shape) if hasattr(tensor, "shape") else type(tensor).__name__
            raise ArgumentError(
                f"for the example ({shown}) the model returns {name!r}: {what}; the first dimension of inputs and "
                "outputs must count rows, so pass a single row as [row]"
            )
    return found


def _checked_export(model: Any, given: Mapping[str, Any]) -> Any:
    """Export a module; an error names the layer that caused it."""
    try:
        return _export(model, given)
    except Exception as error:
        raise UnsavableModel(
            f"{type(model).__name__} cannot be exported for any number of rows: "
            f"{_culprit(model, given)}{type(error).__name__}: {error}\nIf the model branches on values, pass "
            "torch.jit.script(model) instead"
        ) from error


def _export(model: Any, given: Mapping[str, Any]) -> Any:
    """Export a module for any number of rows."""
    import torch

    rows = torch.export.Dim("rows", min=1)
    shapes = tuple({0: rows} for _ in given)
    return torch.export.export(model, tuple(given.values()), dynamic_shapes=shapes, strict=False)


def _culprit(model: Any, given: Mapping[str, Any]) -> str:
    """Return the text that names the layer in which the export fails, by repeating it with hooks on each layer."""
    inside, failed = list[str](), list[str]()

    def enter(name: str) -> Any:
        return lambda module, *rest: inside.append(f"'{name}' ({type(module).__name__})")

    hooks = []
    for name, module in model.named_modules():
        if name:
            hooks.append(module.register_forward_pre_hook(enter(name)))
            hooks.append(module.register_forward_hook(lambda *rest: inside.pop() and None))
    try:
        _export(model, given)
    except Exception:  # noqa: BLE001 the export is known to fail
        failed = inside[-1:]
    finally:
        for hook in hooks:
            hook.remove()
    return f"the layer {failed[0]}: " if failed else ""


@contextmanager
def hide_triton() -> Iterator[None]:
    """Hide triton from ``torch`` for the duration of the context if TensorFlow is imported, to prevent a crash.

    Both contain a copy of LLVM, and the import of triton after TensorFlow causes a segmentation fault (triton 3.7 after
    TensorFlow 2.21). ``torch.export`` imports triton only for its types.
    """
    if "tensorflow" not in sys.modules or "triton" in sys.modules:
        yield
        return
    sys.modules["triton"] = None  # type: ignore[assignment]  # an import raises ImportError
    try:
        yield
    finally:
        del sys.modules["triton"]


@contextmanager
def evaluation_mode(model: Any) -> Iterator[None]:
    """Set a module to evaluation mode for the duration of the context."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def outputs_by_name(found: Any) -> dict[str, Any]:
    """Return the outputs of ``forward`` by their names, or numbered."""
    if isinstance(found, Mapping):
        return dict(found)
    values = found if isinstance(found, (tuple, list)) else (found,)
    return {f"output_{number}": value for number, value in enumerate(values)}


def _spec(tensor: Any) -> TensorSpec:
    """Return the specification of a tensor with a variable number of rows."""
    return TensorSpec(str(tensor.dtype).removeprefix("torch."), (None, *map(int, tensor.shape[1:])))
