"""What the predecessor's oldest releases had, and what there is instead.

What the driver does between its ``begin`` and ``end`` is recorded as a run.
"""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Iterable
from typing import Any

from hopsml import suggestions
from hopsml.errors import ArgumentError, RunError
from hopsml.experiment import plan
from hopsml.experiment.collective import ORDERS, build
from hopsml.experiment.options import RunOptions
from hopsml.experiment.recorded import Recorded, recorded
from hopsml.experiment.result import Result
from hopsml.experiment.verbs import Verb

_OTHER_STRATEGY = "experiment.collective_all_reduce(train), whose function builds hopsml.tensorflow.strategy()"
INSTEAD = {
    "allreduce": _OTHER_STRATEGY,
    "train_and_evaluate": f"{_OTHER_STRATEGY} and calls model.fit: Estimators have left TensorFlow",
}
_open: list[tuple[contextlib.AbstractContextManager[Recorded], Recorded]] = []  # at most one


@Verb(RunOptions, "horovod", orders=ORDERS, renamed={"notebook": "train_fn"})
def horovod(options: RunOptions) -> Result:
    """The function on all workers, by ``collective_all_reduce``, without MPI.

    Raises:
        ArgumentTypeError: for the path of a notebook, as the predecessor had it: what horovod does in it is not there;
            otherwise as ``collective_all_reduce``.
    """
    return plan.start(build(options)).result()


def begin(
    name: str = "no-name", local_logdir: bool = False, versioned_resources: Any = None, description: str | None = None
) -> str:
    """Record what the driver does from now on, until ``end``; returns the run's directory.

    New code says ``with experiment.recorded(name) as run:``.

    Args:
        name, description: for people who look for it later.
        local_logdir, versioned_resources: of the predecessor; refused, as work of the driver's own has no such thing.

    Raises:
        RunError: (a RuntimeError) while another one is open.
        ArgumentError: for what is refused.
    """
    if _open:
        raise RunError("an experiment is under way already; call experiment.end() before", _open[0][1].run_dir)
    for given, what in ((local_logdir, "local_logdir"), (versioned_resources, "versioned_resources")):
        if given:
            raise ArgumentError(
                f"begin({what}={given!r:.80}): work of the driver's own has no such thing; write below the directory that "
                "begin() returns, and note what you read by hopsml.tracking.data(path)"
            )
    manager = recorded(name, description=description)
    run = manager.__enter__()
    _open.append((manager, run))
    atexit.register(_left_open)
    return run.run_dir


def end(metric: Any = None) -> None:
    """The work that ``begin`` began is done. Raises RunError (a RuntimeError) where there is none."""
    if not _open:
        raise RunError("no experiment is under way; call experiment.begin() before")
    manager, run = _open.pop()
    atexit.unregister(_left_open)
    if metric is not None:
        run.metrics["metric"] = metric
    manager.__exit__(None, None, None)


def _left_open() -> None:
    """The program ends without ``end``: the run counts as cancelled."""
    while _open:
        manager, _ = _open.pop()
        with contextlib.suppress(KeyboardInterrupt):
            manager.__exit__(KeyboardInterrupt, KeyboardInterrupt("the program ended without experiment.end()"), None)


def instead_of(name: str, known: Iterable[str]) -> AttributeError:
    """The error for a name that is not in ``experiment``, which has those of ``known``."""
    if name in INSTEAD:
        return AttributeError(f"experiment.{name} is not there; use {INSTEAD[name]}")
    meant = suggestions.similar(name, [] if name.startswith("_") else known)
    hint = f"; did you mean {' or '.join(meant)}?" if meant else ""
    return AttributeError(f"module 'hopsml.experiment' has no attribute '{name}'{hint}")
