"""Datasets whose iterators can be ended at once: groups that change do so in the middle of an epoch."""

from __future__ import annotations

from typing import Any

from hopsml.cluster.worker.context import current


def prompt(dataset: Any) -> Any:
    """The same dataset, not tuned by TensorFlow while it runs, where the group may change; anything else as it is.

    Whoever ends an iterator waits for the thread that tunes it. It sleeps for as long as the iterator has lived, at most a
    minute, and may miss the word that wakes it: TensorFlow says so before it can be seen. All workers would wait for that.
    What is left to be tuned (``AUTOTUNE``) has as many calls at once as there are threads.
    """
    import tensorflow as tf

    context = current()
    if context is None or not context.spec.group.regroups or not isinstance(dataset, tf.data.Dataset):
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)
