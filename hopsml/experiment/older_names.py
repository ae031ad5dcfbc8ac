"""Names of the predecessor's oldest releases, and errors that name their replacements.

Work of the driver between ``begin`` and ``end`` is recorded as a run.
"""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Iterable
from typing import Any

from hopsml.core import suggestions
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
    """Run the function on all workers by ``collective_all_reduce``, without MPI.

    Raises:
        ArgumentTypeError: for the path of a notebook, which the predecessor accepted: the horovod that it uses is not
            available; otherwise as ``collective_all_reduce``.
    """
    return plan.start(build(options)).result()


def begin(
    name: str = "no-name", local_logdir: bool = False, versioned_resources: Any = None, description: str | None = None
) -> str:
    """Record the driver's work from now on until ``end``; returns the run's directory.

    New code should use ``with experiment.recorded(name) as run:``.

    Args:
        name: run name, shown where runs are listed.
        local_logdir: of the predecessor; raises an error, as work of the driver has no such folder.
        versioned_resources: of the predecessor; raises an error.
        description: free text, shown where runs are listed.

    Raises:
        RunError: (a RuntimeError) while another one is open.
        ArgumentError: ``local_logdir`` or ``versioned_resources`` is given.
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
    """End the run that ``begin`` started, with a metric if one is given; raises RunError if there is none."""
    if not _open:
        raise RunError("no experiment is under way; call experiment.begin() before")
    manager, run = _open.pop()
    atexit.unregister(_left_open)
    if metric is not None:
        run.metrics["metric"] = metric
    manager.__exit__(None, None, None)


def _left_open() -> None:
    """End an open run as cancelled, at the program's exit without ``end``."""
    while _open:
        manager, _ = _open.pop()
        with contextlib.suppress(KeyboardInterrupt):
            manager.__exit__(KeyboardInterrupt, KeyboardInterrupt("the program ended without experiment.end()"), None)


def instead_of(name: str, known: Iterable[str]) -> AttributeError:
    """Return the error for a name that is not in ``experiment``, which has those of ``known``."""
    if name in INSTEAD:
        return AttributeError(f"experiment.{name} is not there; use {INSTEAD[name]}")
    meant = suggestions.similar(name, [] if name.startswith("_") else known)
    hint = f"; did you mean {' or '.join(meant)}?" if meant else ""
    return AttributeError(f"module 'hopsml.experiment' has no attribute '{name}'{hint}")
