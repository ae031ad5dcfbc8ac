"""What a run was made from, recorded so that it can be understood, compared and repeated.

User code finds two words here; both work in a worker, on the driver and in a program without a run:

    from hopsml import tracking

    tracking.data("hdfs:///data/train.parquet")     # note an input's size and checksum with the run; returns the URL
    keras.utils.set_random_seed(tracking.seed())    # the run's seed: chosen once, recorded, the same on every rank

    tracking.register_model(run, "digits")          # what a run exported, as a version in MLflow's model registry

``hopsml runs ls|show|diff|rm`` and ``hopsml rerun`` read what is recorded; docs of the files: ``record.py``.
"""

from hopsml.tracking.inputs import data
from hopsml.tracking.mlflow.models import register_model
from hopsml.tracking.seeds import seed

__all__ = ["data", "register_model", "seed"]
