"""Hook that every worker calls before the user's function: repairs of frameworks, MLflow's run, and logging."""

from __future__ import annotations

import sys

from hopsml.cluster.worker.context import WorkerContext


def prepare(context: WorkerContext) -> None:
    """Prepare frameworks, MLflow and logging in this worker.

    TensorFlow is repaired at once if it is imported already (in a forked worker), else when it is imported.
    """
    from hopsml.training import driver_log, mlflow_run
    from hopsml.training.tensorflow import setup

    mlflow_run.attach(context)
    driver_log.attach()
    if context.spec.framework == "torch":
        from hopsml.training.torch import process_group as torch_setup

        torch_setup.prepare(context)
    if context.spec.framework == "jax":
        from hopsml.training import jax_setup

        jax_setup.prepare(context)
    if "tensorflow" in sys.modules:
        setup.prepare(context)
    else:
        setup.install_import_hook(context)
