"""Verb ``mirrored``: one worker that has all GPUs of its executor, and mirrors the model between them."""

from __future__ import annotations

from hopsml.cluster.shared import checks
from hopsml.cluster.shared.spec import FixedGroup, RunSpec, specified
from hopsml.errors import ArgumentError
from hopsml.experiment import arguments, plan
from hopsml.experiment.collective import ORDERS
from hopsml.experiment.options import MirroredOptions
from hopsml.experiment.result import Result
from hopsml.experiment.verbs import Verb
from hopsml.training.tensorflow.mirrored import BODY

_NAME = "mirrored"
_verb = Verb(MirroredOptions, _NAME, orders=ORDERS)


@_verb
def mirrored(options: MirroredOptions) -> Result:
    """Train on all GPUs of one executor, in one process; blocks until the end and returns a ``Result``.

    The worker gets the GPU of its slot and all others that its executor sees and no other process holds; a note names
    the GPUs that are held, or reports that there are fewer than two. ``hopsml.tensorflow.strategy()`` is a
    ``MirroredStrategy`` over them. There is no TF_CONFIG. ``collective_all_reduce`` trains on several executors.

    Raises:
        ArgumentError, ArgumentTypeError: (ValueError, TypeError) at once, before anything is started.
        RunError: the run failed; the message names the rank, its host, its traceback and its log.
        StorageError: the run directory cannot be written; names the path.
    """
    return plan.start(build(options)).result()


def build(options: MirroredOptions) -> plan.Plan:
    """Check a call completely and return the plan of its run; nothing is started."""
    if options.evaluator:
        raise ArgumentError(
            "mirrored(evaluator=True): it trains on one executor, and an evaluator needs another one; leave it out, or use "
            "experiment.collective_all_reduce(train, num_workers=3, evaluator=True)"
        )
    return plan.Plan(
        spec=specified(
            RunSpec,
            options,
            verb=_NAME,
            group=FixedGroup(size=1, start_timeout_s=checks.seconds("start_timeout", options.start_timeout)),
            all_gpus=True,
            body=BODY,
            environment=arguments.environment(options.environment, options.share),
        ),
        function=options.train_fn,
        arguments=arguments.keyword_arguments(options.train_fn, options.args, _NAME),
        profile=options.profile,
        progress=bool(options.progress),
        notes=arguments.without_effect({"versioned_resources": options.versioned_resources}),
    )
