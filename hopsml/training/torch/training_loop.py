"""Training loop for torch modules, ``hopsml.torch.TrainingLoop``, by the algorithms of ``hopsml/training/averaging.py``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hopsml.cluster.shared import checks
from hopsml.cluster.worker.context import current
from hopsml.errors import ArgumentError
from hopsml.training.averaged_weights import AveragedWeights, check_group_is_fixed
from hopsml.training.averaging import Algorithm, create_averaging
from hopsml.training.messages import ProgressSender, report
from hopsml.training.torch import prepare

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray


class TorchTrainingLoop:
    """Training loop for synchronous SGD and weight averaging, selected by the algorithm's name.

        def train(algorithm="local_sgd"):
            loop = hopsml.torch.TrainingLoop(Net(), batches, loss, make_optimizer, algorithm)
            logs = loop.run(steps=1000)             # of each worker: as many samples with every algorithm
            return {"loss": logs["loss"], ...}      # loop.module is the trained one, on every worker

        experiment.torch(train, num_workers=4)

    Attributes:
        module: the module that is trained.
        optimizer: its optimizer, of this worker.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        batches: Callable[[], Iterable[tuple[torch.Tensor, torch.Tensor]]],
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        optimizer: Callable[[Iterator[torch.nn.Parameter]], torch.optim.Optimizer],
        algorithm: Algorithm = "sync_sgd",
        **settings: Any,
    ) -> None:
        """Start all workers with the chief's weights.

        Args:
            module: the module to train.
            batches: called on each worker, and again at the end of its batches; returns pairs of features and
                targets. A step is a batch on each worker.
            loss: returns the mean loss of a batch, from the module's result and the targets.
            optimizer: called with the parameters; returns the optimizer, such as ``functools.partial(SGD, lr=0.1)``.
            algorithm: "sync_sgd": gradients are reduced in every step (``hopsml.torch.prepare``). "local_sgd",
                "block_momentum", "elastic_averaging": each worker trains independently, with its own optimizer, and
                weights are combined every few steps; statistics of normalisations are averaged.
            **settings: ``every`` for weight averaging: steps of a block, 8. block_momentum: ``momentum`` (1 - 1 / N),
                ``rate`` (1.0), ``nesterov`` (True). elastic_averaging: ``beta`` (0.9).

        Raises:
            ArgumentError: an unknown algorithm or setting, async_sgd, weight averaging in a group that may change, or
                the errors of ``prepare``.
        """
        averaging = create_averaging(algorithm, settings)
        if algorithm == "async_sgd":
            raise ArgumentError(
                "algorithm='async_sgd' needs parameter servers, which PyTorch does not have; choose an algorithm that "
                "averages weights, such as 'local_sgd', or use hopsml.tensorflow.TrainingLoop"
            )
        self.module, self._loss, self._weights = module.to(prepare.device()), loss, None
        self._batches = _endless(batches)
        if averaging is None:
            self.module = prepare.prepare(self.module)
        else:
            check_group_is_fixed(current(), algorithm)
            trained = _TorchVariables(lambda: [one for one in self.module.parameters() if one.requires_grad])
            others = _TorchVariables(lambda: [one for one in self.module.buffers() if one.is_floating_point()])
            self._weights = AveragedWeights(averaging, trained, others)
        self.optimizer = optimizer(self.module.parameters())

    def run(self, steps: int) -> dict[str, float]:
        """Train for ``steps`` steps of each worker, and return the mean loss of this worker's batches.

        Several calls train the same as one call with the sum of their steps: after each of them ``module`` has the
        weights trained so far, and the next one continues from each worker's own weights. If weights were changed in
        between, on any worker, training restarts from the chief's.

        Args:
            steps: number of steps of each worker.

        Raises:
            ArgumentError: ``steps`` is below 1, or ``batches()`` returned none.
        """
        steps = checks.whole_number("steps", steps)
        if self._weights is not None:
            self._weights.resume()
        progress, losses = ProgressSender(), []
        self.module.train()
        for number in range(1, steps + 1):
            losses.append(self._step(*next(self._batches)))
            if self._weights is not None:
                self._weights.count_step(is_last=number == steps)
            progress.send_progress(number, steps)
        if self._weights is not None:
            self._weights.pause()
        logs = {"loss": math.fsum(float(one) for one in losses) / steps}
        report(step=steps, **logs)
        return logs

    def _step(self, features: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Train on one batch and return its loss."""
        device = prepare.device()
        self.optimizer.zero_grad()
        loss = self._loss(self.module(features.to(device)), targets.to(device))
        loss.backward()
        self.optimizer.step()
        return loss.detach()


class _TorchVariables:
    """Parameters or buffers of a module, found anew for each use."""

    def __init__(self, find: Callable[[], list[torch.Tensor]]) -> None:
        """Create the view; ``find`` returns the tensors."""
        self._find = find

    def values(self) -> list[NDArray[Any]]:
        """Return copies of the values, of types that NumPy does not have in float32."""
        import torch

        wide = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
        return [one.detach().to("cpu", wide.get(one.dtype, one.dtype), copy=True).numpy() for one in self._find()]

    def assign(self, values: Sequence[Any]) -> None:
        """Set the tensors to these values."""
        import torch

        with torch.no_grad():
            for one, value in zip(self._find(), values, strict=True):
                one.copy_(torch.as_tensor(value))


def _endless(batches: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """Yield the batches of one call after another; raise ArgumentError if a call returns none."""
    while True:
        batch = None
        for batch in batches():
            yield batch
        if batch is None:
            raise ArgumentError("batches() returned no batch; it must return at least one on every worker")
