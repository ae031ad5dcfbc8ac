"""Verb ``tune_communication``: measure how to reduce a model's gradients fastest on the executors, and record it.

There are two runs. In the first one the training function is stopped when its gradients' sizes are known. The second
one reduces arrays of these sizes by every candidate, alternately. The choice is recorded below the project, one file
for each function and number of workers, which runs with ``tuned=True`` use.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import Any

from msgspec.structs import replace

from hopsml.cluster.driver import capture
from hopsml.cluster.shared.spec import Communication, FixedGroup, Roles
from hopsml.errors import ArgumentError
from hopsml.experiment import collective, plan, tuned
from hopsml.experiment.options import RunOptions
from hopsml.training.tensorflow.distribution import tuning
from hopsml.tuning.choice import (
    OURS,
    TENSORFLOWS,
    Candidate,
    Fastest,
    Gradient,
    choose,
    list_candidates,
    total_gradient_bytes,
)

ROUNDS = 9
TURN_S = 0.3


@dataclass(frozen=True)
class Tuning:
    """Result of a tuning: the chosen settings, the measured times and the record.

    Attributes:
        function: name of the training function.
        workers: number of workers.
        gradients: number of the function's gradients.
        gradient_bytes: their total size in bytes.
        choice: the chosen candidate, and the time of each.
        settings: arguments of a run that select the chosen candidate.
        url: URL of the record.
    """

    function: str
    workers: int
    gradients: int
    gradient_bytes: int
    choice: Fastest
    settings: dict[str, Any]
    url: str


def tune_communication(
    train_fn: Callable[..., Any],
    *,
    args: Mapping[str, Any] | None = None,
    num_workers: int | None = None,
    lossy: Iterable[str] = (),
    file: str | None = None,
    profile: str | None = None,
) -> Tuning:
    """Measure the methods of reducing a training function's gradients on the executors, and record the fastest.

    Nothing is trained. The default is retained unless another method takes at least 3 percent less of a step's
    communication time.

    Args:
        train_fn: the training function; it computes its gradients by ``tf.GradientTape``, as Keras does.
        args: keyword arguments of the function.
        num_workers: as in ``collective_all_reduce``.
        lossy: compressions that may be chosen although they make sums less precise: "fp16", "bf16".
        file: URL or path of the record, for ``tuned=``; by default one in the project, for ``tuned=True``.
        profile: as in ``collective_all_reduce``.

    Raises:
        ArgumentError: the function has no gradients, or one worker; a compression is not known.
        RunError: one of the two runs failed.
        StorageError: the record cannot be written.
    """
    options = RunOptions(train_fn, args=args, num_workers=num_workers, profile=profile)
    return tune_for_options(options, lossy=lossy, file=file)


def tune_for_options(
    options: RunOptions, *, lossy: Iterable[str] = (), file: str | None = None, rounds: int = ROUNDS
) -> Tuning:
    """Tune for the arguments of a run, as ``tune_communication``; ``rounds``: measurements of each candidate."""
    tried, function = list_candidates(lossy), capture.name_of(options.train_fn)
    gradients, workers = _observed(options)
    trained = workers - int(options.evaluator)
    if trained < 2:
        raise ArgumentError("one worker reduces no gradients, so there is nothing to tune; use at least two workers")
    given = {"gradients": gradients, "candidates": tried, "rounds": rounds, "turn_s": TURN_S}
    base_plan = _measuring_plan(options, "communication")
    spec = replace(base_plan.spec, group=FixedGroup(size=trained), roles=Roles(), preload=("tensorflow",))
    run = plan.start(changed(base_plan, spec=spec, function=tuning.measure_candidates, arguments=given))
    default, taken = run.result().value
    choice = choose(taken, default_candidate(default).name)
    chosen = next(one for one in tried if one.name == choice.chosen)
    url = file or tuned.record_url(function, workers)
    found = Tuning(function, workers, len(gradients), total_gradient_bytes(gradients), choice, chosen.settings(), url)
    tuned.write_record(url, _record(found))
    return found


def default_candidate(implementation: str) -> Candidate:
    """Return the candidate of a run without settings, whose strategy uses ``implementation``."""
    return OURS if implementation == "hopsml" else TENSORFLOWS[0]


def _observed(options: RunOptions) -> tuple[list[Gradient], int]:
    """Return the gradients that the function's first step reduces, and the number of workers."""
    given = {"function": options.train_fn, "arguments": dict(options.args or {})}
    base_plan = _measuring_plan(options, "gradients")
    run = plan.start(changed(base_plan, function=tuning.capture_first_gradients, arguments=given, progress=False))
    result = run.result()
    if not result.value:
        raise ArgumentError(
            f"{capture.name_of(options.train_fn)}() has not computed gradients of several weights with "
            "tf.GradientTape, so there is nothing to tune"
        )
    return result.value, len(result.workers)


def _measuring_plan(options: RunOptions, what: str) -> plan.Plan:
    """Return the plan of the run that the options describe, without options that only a training has."""
    base_plan = collective.build(options)
    spec_without_outputs = replace(
        base_plan.spec, communication=Communication(implementation="tensorflow"), resume=None, register_as=None
    )
    return changed(
        base_plan, spec=replace(spec_without_outputs, metric_key=None, name=f"{spec_without_outputs.name}: {what}")
    )


def _record(found: Tuning) -> dict[str, Any]:
    return {
        "function": found.function,
        "workers": found.workers,
        "gradients": found.gradients,
        "gradient_bytes": found.gradient_bytes,
        "chosen": found.choice.chosen,
        "default": found.choice.default,
        "ratio": found.choice.ratio,
        "step_ms": found.choice.medians_ms,
        "settings": found.settings,
        "measured": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
