"""TensorFlow integration: strategy with the effective merge settings, checkpoints, callbacks, export.

    strategy = hopsml.tensorflow.strategy()      # CollectiveAllReduceStrategy for this worker
    with strategy.scope(): ...

Importing this module does not import TensorFlow; the first call does.
"""

from hopsml.training.tensorflow.callbacks import CheckpointCallback, ReportCallback
from hopsml.training.tensorflow.checkpoints import Checkpointer
from hopsml.training.tensorflow.export import export
from hopsml.training.tensorflow.gradient_hooks import finish_updates
from hopsml.training.tensorflow.hdfs_files import register_hdfs
from hopsml.training.tensorflow.reducer import MergeSettings
from hopsml.training.tensorflow.server_loop import ServerLoop
from hopsml.training.tensorflow.standard_callbacks import callbacks
from hopsml.training.tensorflow.strategy import strategy
from hopsml.training.tensorflow.training_loop import TrainingLoop

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
