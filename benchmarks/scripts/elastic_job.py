"""The training of model.py as an elastic one: every step logged, a commit every ten, until it is killed."""

from __future__ import annotations

STEP_S = 0.025  # added to each step, which then takes about as long as a small real one
COMMIT_EVERY = 10


def train(folder: str, ballast_mb: int = 0) -> None:
    """Train the model until killed; ``ballast_mb`` is the size of further state that is committed with the model."""
    import time

    import tensorflow as tf

    import hopsml
    from benchmarks.scripts import model
    from benchmarks.scripts.steps_log import StepsLog
    from hopsml.cluster.worker.context import current

    context = current()
    assert context is not None
    log = StepsLog(folder, context.rank, context.generation)
    step, variables = model.prepare(hopsml.tensorflow.strategy(), model.GLOBAL_BATCH)
    variables.append(tf.Variable(tf.zeros((ballast_mb << 18,))))
    state = hopsml.elastic.State(**{f"v{number}": variable for number, variable in enumerate(variables)})
    data = hopsml.elastic.Sampler(model.EXAMPLES, model.GLOBAL_BATCH, epochs=10**6)
    for _ in state.resume(data):
        step()
        context = current() or context
        if context.joins:  # nothing is recorded of the batch by which a newcomer prepares
            continue
        if context.generation != log.generation:  # members were lost, or have joined
            log = StepsLog(folder, context.rank, context.generation)
        log.finished(state.batches)
        time.sleep(STEP_S)
        state.commit(every=COMMIT_EVERY)
