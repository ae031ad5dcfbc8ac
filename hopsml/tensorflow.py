"""TensorFlow under hopsml: the strategy with merge settings in force, checkpoints, callbacks, export.

    strategy = hopsml.tensorflow.strategy()      # CollectiveAllReduceStrategy for this worker
    with strategy.scope(): ...

Importing this module imports no TensorFlow; the first call does.
"""

from hopsml.training.tensorflow.strategy import MergeReport, strategy

__all__ = ["MergeReport", "strategy"]
