"""TensorFlow integration: strategy with the effective merge settings, checkpoints, callbacks, export.

    strategy = hopsml.tensorflow.strategy()      # CollectiveAllReduceStrategy for this worker
    with strategy.scope(): ...

Importing this module does not import TensorFlow; the first call does.
"""

from hopsml.training.tensorflow.checkpoints import Checkpointer, export
from hopsml.training.tensorflow.distribution.gradient_hooks import finish_updates
from hopsml.training.tensorflow.distribution.merging import MergeSettings
from hopsml.training.tensorflow.distribution.strategy import strategy
from hopsml.training.tensorflow.fit.callbacks import CheckpointCallback, ReportCallback
from hopsml.training.tensorflow.fit.server_loop import ServerLoop
from hopsml.training.tensorflow.fit.standard_callbacks import callbacks
from hopsml.training.tensorflow.fit.training_loop import TrainingLoop
from hopsml.training.tensorflow.setup import register_hdfs

__all__ = [
    "CheckpointCallback",
    "Checkpointer",
    "MergeSettings",
    "ReportCallback",
    "ServerLoop",
    "TrainingLoop",
    "callbacks",
    "export",
    "finish_updates",
    "register_hdfs",
    "strategy",
]


def __dir__() -> list[str]:
    return list(__all__)
