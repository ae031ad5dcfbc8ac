"""PyTorch: a module by ``torch.export``, with any number of rows; a ``ScriptModule`` as TorchScript."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopsml.cluster.worker.context import current
from hopsml.errors import ArgumentError
from hopsml.model.description import ModelDescription, Signature, TensorSpec
from hopsml.model.flavors.contract import LoadedModel, SavedModel, UnsavableModel, version_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

_EXPORTED, _SCRIPTED = "model.pt2", "model.pt"


def keeps() -> bool:
    """Only the chief's module stays: data-parallel ranks all have the same."""
    context = current()
    return context is None or context.is_chief


def save(model: Any, folder: Path, example: Any) -> SavedModel:
    """``example``: an array or tensor, a tuple of them in the order of ``forward``, or a dict by its arguments' names."""
    import torch

    whole = getattr(model, "module", model) if type(model).__name__ == "DistributedDataParallel" else model
    if example is None:
        raise ArgumentError(
            f"a {type(whole).__name__} does not tell what it takes: export(..., example=), with a row or more of its inputs"
        )
    given = named(whole, example)
    with evaluating(whole), torch.no_grad():
        if isinstance(whole, torch.jit.ScriptModule):
            torch.jit.save(whole, str(folder / _SCRIPTED))
            artifacts = {"torchscript": _SCRIPTED}
        else:
            torch.export.save(_checked_export(whole, given), folder / _EXPORTED)
            artifacts = {"torch_export": _EXPORTED}
        found = by_name(whole(*given.values()))
    signature = Signature(
        {name: _spec(tensor) for name, tensor in given.items()}, {name: _spec(found[name]) for name in found}
    )
    return SavedModel(artifacts, signature, version_of("torch", "numpy"))


def limit_threads(count: int) -> None:
    """PyTorch's own."""
    import torch

    torch.set_num_threads(count)


def load(folder: Path, description: ModelDescription) -> LoadedModel:
    """Raises ArgumentError where PyTorch is missing."""
    try:
        import torch
    except ImportError as error:
        raise ArgumentError(
            f"the model '{description.name}' needs PyTorch, which is not installed here: pip install torch"
        ) from error
    if description.signature is None:
        raise ArgumentError(f"the model '{description.name}' has no signature; export it with example=")
    if file := description.artifacts.get("torch_export"):
        return _Module(torch.export.load(folder / file).module(), description.signature)
    return _Module(torch.jit.load(str(folder / description.artifacts["torchscript"])).eval(), description.signature)


class _Module:
    def __init__(self, module: Any, signature: Signature) -> None:
        self._module, self.signature = module, signature

    def predict(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        import numpy as np
        import torch

        given = [torch.from_numpy(np.require(inputs[name], requirements=["C", "W"])) for name in self.signature.inputs]
        with torch.inference_mode():
            return {name: tensor.numpy() for name, tensor in by_name(self._module(*given)).items()}


def named(model: Any, example: Any) -> dict[str, Any]:
    """The example's tensors by the names of ``forward``'s arguments, in their order; at least two rows.

    One row alone would be taken for a size that never changes.
    """
    import numpy as np
    import torch

    names = list(inspect.signature(model.forward).parameters)
    if isinstance(model, torch.jit.ScriptModule):
        names = [argument.name for argument in model.forward.schema.arguments[1:]]
    if isinstance(example, Mapping):
        if unknown := [name for name in example if name not in names]:
            raise ArgumentError(f"example: forward() has no argument {unknown[0]!r}; it has {', '.join(names)}")
        given = {name: example[name] for name in names if name in example}
    else:
        values = example if isinstance(example, (tuple, list)) else (example,)
        given = dict(zip(names, values, strict=False))
    tensors = {
        name: value if isinstance(value, torch.Tensor) else torch.as_tensor(np.asarray(value))
        for name, value in given.items()
    }
    return {name: torch.cat([tensor, tensor]) if len(tensor) == 1 else tensor for name, tensor in tensors.items()}


def _checked_export(model: Any, given: Mapping[str, Any]) -> Any:
    try:
        return _export(model, given)
    except Exception as error:
        raise UnsavableModel(
            f"{type(model).__name__} cannot be exported for any number of rows: {_culprit(model, given)}"
            f"{type(error).__name__}: {error}"
        ) from error


def _export(model: Any, given: Mapping[str, Any]) -> Any:
    import torch

    rows = torch.export.Dim("rows", min=1)
    shapes = tuple({0: rows} for _ in given)
    return torch.export.export(model, tuple(given.values()), dynamic_shapes=shapes, strict=False)


def _culprit(model: Any, given: Mapping[str, Any]) -> str:
    """Which layer was computing when the export failed: it is tried again, with a look at each layer."""
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
    except Exception:  # noqa: BLE001 it is known to fail
        failed = inside[-1:]
    finally:
        for hook in hooks:
            hook.remove()
    return f"the layer {failed[0]}: " if failed else ""


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def by_name(found: Any) -> dict[str, Any]:
    """What ``forward`` returns: by its own names, or numbered."""
    if isinstance(found, Mapping):
        return dict(found)
    values = found if isinstance(found, (tuple, list)) else (found,)
    return {f"output_{number}": value for number, value in enumerate(values)}


def _spec(tensor: Any) -> TensorSpec:
    return TensorSpec(str(tensor.dtype).removeprefix("torch."), (None, *map(int, tensor.shape[1:])))
