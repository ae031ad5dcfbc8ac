"""Gradients that ``double_buffering`` and ``accumulate`` withhold: their last update, and notes where they are lost."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from hopsml.cluster.shared.spec import GradientSettings
from hopsml.cluster.worker.context import current

if TYPE_CHECKING:
    import torch


class WithholdingExchange(Protocol):
    """Exchange of a prepared module's gradients."""

    settings: GradientSettings

    @property
    def withholds(self) -> bool:
        """True if gradients of earlier passes have not been set yet."""
        ...

    def trains_any(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Return True if any of these parameters belongs to the module."""
        ...

    def set_withheld(self) -> bool:
        """Set the oldest gradients that are withheld; return False, with gradients of None, if there are none."""
        ...


def finish_updates(*optimizers: torch.optim.Optimizer) -> None:
    """Apply withheld gradients of ``double_buffering`` and ``accumulate`` after the last step.

    All workers call it after the training loop; without these settings it does nothing. If fewer passes than
    ``accumulate`` have been accumulated, their mean is applied.

    Args:
        *optimizers: optimizers of prepared modules; each of them steps once or twice.
    """
    for optimizer in optimizers:
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        found = [one for one in _exchanges() if one.withholds and one.trains_any(parameters)]
        while found and any([one.set_withheld() for one in found]):
            optimizer.step()


def note_settings_without_effect(settings: GradientSettings) -> None:
    """Print that a single worker reduces nothing, if settings of the reduction were given."""
    if settings.changed_names:
        print(f"hopsml: one worker reduces no gradients: {settings.description} has no effect", flush=True)


def note_restart(settings: GradientSettings) -> None:
    """Print that processes of a later generation continue without what was retained of earlier gradients."""
    from hopsml.training.torch.gradient_compression import retains_state

    context = current()
    if context is not None and context.generation > 0 and not context.joins and retains_state(settings):
        print(
            f"hopsml: the workers have restarted: withheld gradients and remainders ({settings.description}) of the "
            "previous processes were dropped",
            flush=True,
        )


def warn_at_end(module: torch.nn.Module, exchange: WithholdingExchange) -> None:
    """Print when the module is deleted, or the process ends, that gradients were not applied, if there are any."""
    if exchange.settings.double_buffering or exchange.settings.accumulate > 1:
        weakref.finalize(module, _warn, exchange)


def _warn(exchange: WithholdingExchange) -> None:
    if exchange.withholds:
        print(
            f"hopsml: gradients of the last step were not applied ({exchange.settings.description}): call "
            "hopsml.torch.finish_updates(optimizer) after the loop, in all workers",
            flush=True,
        )


def _exchanges() -> list[WithholdingExchange]:
    """Return the exchanges of all prepared modules, in the order in which these were prepared."""
    from hopsml.training.torch import ddp_hooks, gradients

    return [*gradients.averagers(), *ddp_hooks.hooks()]
