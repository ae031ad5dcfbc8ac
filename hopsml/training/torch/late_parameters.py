"""Detection of parameters that are trained although ``hopsml.torch.prepare`` has not registered them.

A module may change after it was prepared: layers are unfrozen, a head is replaced, ``load_state_dict(assign=True)``
replaces all parameters. Without averaged gradients the workers would diverge silently. Each such parameter is found
when its gradient is computed, by a hook that it gets when it is registered in a watched module, or at the latest when
a step of a torch optimizer is about to use it; the error contains its name. Such a step is also refused within a
backward pass, where gradients are not averaged yet. Parameters that it trains and that belong to no prepared module
are reported once.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from hopsml.errors import ArgumentError

if TYPE_CHECKING:
    import torch

_watches: weakref.WeakKeyDictionary[torch.nn.Module, ParameterWatch] = weakref.WeakKeyDictionary()
_told: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()  # kinds of notes printed, by optimizer


class ParameterWatch:
    """Averaged parameters of a prepared module; any other parameter that trains is an error."""

    def __init__(self, module: torch.nn.Module, averaged: Iterable[torch.Tensor], reason: str, any_type: bool) -> None:
        self._module, self._reason, self._any_type = weakref.ref(module), reason, any_type
        self.kept_back = False  # True while gradients of a backward pass within no_sync() wait to be averaged
        # The tensors themselves: an identity is meaningless once its object is deleted.
        self._averaged = {id(one): (one, one.shape, one.dtype) for one in averaged}

    def is_averaged(self, parameter: torch.Tensor) -> bool:
        """Return True if the module had the parameter with this shape when it was prepared.

        The type must be the same, too, unless any is allowed.
        """
        _, shape, dtype = self._averaged.get(id(parameter), (None, None, None))
        return shape == parameter.shape and (self._any_type or dtype is parameter.dtype)

    def check_parameters(self, candidates: Iterable[torch.Tensor] | None = None) -> None:
        """Raise ArgumentError with the names of trained parameters that no prepared module averages.

        Args:
            candidates: the only parameters that raise it, whichever module they belong to.
        """
        module = self._module()
        if module is None:
            return
        own = {id(one) for one in module.parameters() if one.requires_grad and not self.is_averaged(one)}
        if not own or (candidates is not None and own.isdisjoint(map(id, candidates))):
            return
        late = [
            name for name, one in module.named_parameters(remove_duplicate=False) if id(one) in own and _is_late(one)
        ]
        if late:
            shown = ", ".join(late[:10]) + (f" and {len(late) - 10} more" if len(late) > 10 else "")
            raise ArgumentError(
                f"parameters of {type(module).__name__} are trained, but {self._reason}: {shown}. Their gradients would "
                "not be averaged over the workers. Call model = hopsml.torch.prepare(model) again on all workers, after the "
                "change and before the optimizer is made"
            )

    def contains(self, module: torch.nn.Module) -> bool:
        """Return True if ``module`` is the watched one or a part of it."""
        own = self._module()
        return own is not None and any(one is module for one in own.modules())


def watch_parameters(
    module: torch.nn.Module,
    averaged: Iterable[torch.Tensor],
    reason: str,
    *,
    hooked: bool = False,
    any_type: bool = False,
) -> ParameterWatch:
    """Watch the module's parameters from now on; replaces an earlier watch of it.

    Args:
        module: the module to watch.
        averaged: its parameters whose gradients are averaged.
        reason: text of the error that explains why other parameters are not averaged.
        hooked: True if the caller checks ``averaged`` itself when they get a gradient.
        any_type: True if ``averaged`` are averaged also after a conversion to another numeric type.
    """
    _install()
    found = _watches[module] = ParameterWatch(module, averaged, reason, any_type)
    for one in module.parameters():
        if not (hooked and found.is_averaged(one)):
            register_gradient_hook(one, _check)
    return found


def register_gradient_hook(parameter: torch.Tensor, function: Callable[[torch.Tensor], None]) -> Any:
    """Register a function that is called with each new gradient of the parameter, even if it is frozen now.

    Returns:
        The handle of the hook; None for a tensor that can have no gradient, such as quantised weights.
    """
    if not (parameter.is_floating_point() or parameter.is_complex()):
        return None
    trained = parameter.requires_grad
    parameter.requires_grad_(True)  # torch refuses hooks on frozen parameters, but retains existing ones
    try:
        return parameter.register_post_accumulate_grad_hook(function)
    finally:
        parameter.requires_grad_(trained)


def _is_late(parameter: torch.Tensor) -> bool:
    """Return True if no prepared module averages this parameter."""
    return not any(found.is_averaged(parameter) for found in list(_watches.values()))


def _check(parameter: torch.Tensor) -> None:
    """Raise ArgumentError for a parameter that is trained but not averaged."""
    for found in list(_watches.values()) if _is_late(parameter) else ():
        found.check_parameters([parameter])


def _registered(module: torch.nn.Module, new: Iterable[torch.Tensor]) -> None:
    """Add hooks to new parameters of a watched module."""
    if any(found.contains(module) for found in list(_watches.values())):
        for one in filter(_is_late, new):
            register_gradient_hook(one, _check)


def is_in_backward() -> bool:
    """Return True in a function that autograd calls during a backward pass in this thread."""
    import torch

    return bool(torch._C._current_graph_task_id() != -1)


def refuse_change_in_backward(what: str) -> None:
    """Raise ArgumentError for parameters that are changed by gradients which have not been averaged yet."""
    raise ArgumentError(
        f"{what} within backward(), where the gradients have not been averaged over the workers yet, so each worker would "
        "train a model of its own: step after backward() has returned, not in a hook of a gradient"
    )


def _shapes(parameters: Sequence[torch.Tensor]) -> str:
    """Describe parameters by their number and shapes."""
    shown = ", ".join(str(tuple(one.shape)) for one in parameters[:5]) + (", ..." if len(parameters) > 5 else "")
    return f"{len(parameters)} parameter(s) of shape {shown}"


def _note(optimizer: Any, kind: str, text: str) -> None:
    """Print once for each optimizer and kind that the workers' parameters diverge, which a user may intend."""
    told = _told.setdefault(optimizer, set())
    if kind not in told:
        told.add(kind)
        print(
            f"hopsml: {type(optimizer).__name__}: {text}: each worker changes its own by its own gradients. Call "
            "hopsml.torch.prepare() for every module that is trained, or average by hopsml.all_reduce()",
            flush=True,
        )


@cache
def _install() -> None:
    """Register the global hooks that torch calls for every module and optimizer, once per process."""
    from torch.nn.modules import module as modules
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    def on_parameter(module: Any, name: str, parameter: Any) -> None:
        if parameter is not None:
            _registered(module, [parameter])

    def on_module(module: Any, name: str, submodule: Any) -> None:
        if submodule is not None:
            _registered(module, submodule.parameters())

    def before_step(optimizer: Any, *arguments: Any) -> None:
        used = [one for group in optimizer.param_groups for one in group["params"] if one.grad is not None]
        watches = list(_watches.values())
        owners = [found for found in watches if any(map(found.is_averaged, used))]
        late = list(filter(_is_late, used))
        for found in watches if late else ():
            found.check_parameters(late)
        if owners and is_in_backward() and not any(hasattr(one, "_in_backward_optimizers") for one in used):
            refuse_change_in_backward(f"{type(optimizer).__name__}.step() is called")
        if late:
            _note(optimizer, "others", f"it trains {_shapes(late)}, which no prepared model has")
        if any(found.kept_back for found in owners):
            _note(
                optimizer,
                "kept back",
                "it steps after a backward pass within no_sync(), whose gradients nobody has averaged",
            )

    modules.register_module_parameter_registration_hook(on_parameter)
    modules.register_module_module_registration_hook(on_module)
    register_optimizer_step_pre_hook(before_step)
