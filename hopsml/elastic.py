"""Elastic training, in a group that may change: ``hopsml.elastic.State``, ``Sampler`` and ``resize``.

    state = hopsml.elastic.State(model=model, optimizer=optimizer)
    data = hopsml.elastic.Sampler(len(x), global_batch_size=128, seed=1, epochs=10)
    for batch in state.resume(data):
        ...
        state.commit(every=10)

Importing this module imports no framework.
"""

from hopsml.training.elastic.elastic_state import State
from hopsml.training.elastic.sampler import Sampler
from hopsml.training.messages import resize

__all__ = ["Sampler", "State", "resize"]


def __dir__() -> list[str]:
    return list(__all__)
