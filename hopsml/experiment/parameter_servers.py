"""Verb ``parameter_server``: a chief calls the function, workers compute, parameter servers hold the variables."""

from __future__ import annotations

from hopsml.cluster.shared import checks
from hopsml.cluster.shared.spec import AS_MANY_AS_THERE_ARE, Roles, RunSpec, ServerGroup, specified
from hopsml.core import settings
from hopsml.experiment import arguments, plan
from hopsml.experiment.collective import ORDERS
from hopsml.experiment.options import ParameterServerOptions
from hopsml.experiment.result import Result
from hopsml.experiment.verbs import Verb
from hopsml.training.tensorflow.parameter_servers import BODY

_NAME = "parameter_server"
_verb = Verb(ParameterServerOptions, _NAME, orders=ORDERS)


@_verb
def parameter_server(options: ParameterServerOptions) -> Result:
    """Train asynchronously with parameter servers; blocks until the end and returns a ``Result``.

    The chief alone calls ``train_fn(**args)``; workers and parameter servers run TensorFlow's server, which hopsml
    starts. A server that fails is restarted at its address: a worker's step is repeated, and
    ``hopsml.tensorflow.ServerLoop`` restores a parameter server's variables from the newest checkpoint. It takes ``1 +
    num_workers + num_ps`` slots.

    Raises:
        ArgumentError, ArgumentTypeError: (ValueError, TypeError) at once, before anything is started.
        RunError: the run failed; the message names the rank, its host, its traceback and its log.
        StorageError: the run directory cannot be written; names the path.
    """
    return plan.start(build(options)).result()


def build(options: ParameterServerOptions) -> plan.Plan:
    """Check a call completely and return the plan of its run; nothing is started."""
    given = settings.num_parameter_servers() if options.num_ps is None else options.num_ps
    servers = checks.whole_number("num_ps", 1 if given is None else given)
    roles = Roles(servers, bool(options.evaluator), checks.switch("evaluator_gpu", options.evaluator_gpu))
    size = AS_MANY_AS_THERE_ARE
    if options.num_workers is not None:
        workers = checks.whole_number("num_workers", options.num_workers)
        size = 1 + workers + roles.parameter_servers + int(roles.evaluator)
    return plan.Plan(
        spec=specified(
            RunSpec,
            options,
            verb=_NAME,
            group=ServerGroup(size=size, start_timeout_s=checks.seconds("start_timeout", options.start_timeout)),
            roles=roles,
            body=BODY,
            environment=arguments.environment(options.environment, options.share),
        ),
        function=options.train_fn,
        arguments=arguments.keyword_arguments(options.train_fn, options.args, _NAME),
        profile=options.profile,
        progress=bool(options.progress),
        notes=arguments.without_effect({"versioned_resources": options.versioned_resources}),
    )
