"""Records of the code, data, environment and results of runs, so that they can be understood, compared and repeated.

User code calls three functions; the first two work in a worker, on the driver and in a program without a run:

    from hopsml import tracking
    tracking.data("hdfs:///data/train.parquet")     # record an input's size and checksum with the run; returns the URL
    keras.utils.set_random_seed(tracking.seed())    # the run's seed: chosen once, recorded, the same on every rank
    tracking.register_model(run, "digits")          # register a run's export as a version in MLflow's model registry

``hopsml runs ls|show|compare|rm`` and ``hopsml runs rerun`` read the records; ``record.py`` documents the files.
"""

from hopsml.tracking.inputs import data, seed
from hopsml.tracking.mlflow.models import register_model

__all__ = ["data", "register_model", "seed"]


def __dir__() -> list[str]:
    return list(__all__)
