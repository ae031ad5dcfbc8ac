"""Model registry: versions of models with metrics, signature and lineage, in the project's directory on any store.

    version = hopsml.model.export(model, "digits", metrics={"accuracy": 0.98})  # in the training function or on the
    driver
    hopsml.model.get_best_model("digits", "accuracy", "MAX")
    hopsml.model.set_alias("digits", version.version, "production")
    hopsml.model.find("digits", "production").local_files()

If ``MLFLOW_TRACKING_URI`` is set, versions are also registered in MLflow's registry, which then stores the aliases.
"""

from hopsml.core import refused_names
from hopsml.errors import ModelExists, ModelNotFound
from hopsml.model.batch import predict
from hopsml.model.description import Metric
from hopsml.model.exporting import export
from hopsml.model.flavors.onnx import to_onnx
from hopsml.model.registry import (
    aliases,
    delete,
    delete_alias,
    find,
    get_best_model,
    get_model,
    models,
    set_alias,
    versions,
)
from hopsml.model.version import Version

ModelArchiveExists = ModelExists  # name in the predecessor

__all__ = [
    "Metric",
    "ModelArchiveExists",
    "ModelExists",
    "ModelNotFound",
    "Version",
    "aliases",
    "delete",
    "delete_alias",
    "export",
    "find",
    "get_best_model",
    "get_model",
    "models",
    "predict",
    "set_alias",
    "to_onnx",
    "versions",
]


def __getattr__(name: str) -> object:
    raise refused_names.missing_attribute_error(__name__, name, __all__)


def __dir__() -> list[str]:
    return list(__all__)
