"""Serving of registry models by REST, on this machine or on a cluster.

A serving is identified by its name:

    hopsml.serving.start("digits", version="best")
    hopsml.serving.predict("digits", rows)
    hopsml.serving.canary("digits", version=4, share=0.1)
    hopsml.serving.roll("digits", version=4)
    hopsml.serving.stop("digits")
"""

from hopsml.core import refused_names
from hopsml.errors import AlreadyServed, ServingError, ServingNotFound
from hopsml.serving.definitions import ServingStatus
from hopsml.serving.manager import (
    canary,
    delete,
    exists,
    logs,
    predict,
    roll,
    servings,
    start,
    status,
    stop,
)
from hopsml.serving.predecessor import (
    ServingEntry,
    create_or_update,
    describe,
    export,
    get,
    get_all,
    get_artifact_path,
    get_available_instances,
    get_id,
    get_model_name,
    get_model_path,
    get_model_server,
    get_model_version,
    get_status,
    get_type,
    get_version,
    make_inference_request,
)

__all__ = [
    "AlreadyServed",
    "ServingEntry",
    "ServingError",
    "ServingNotFound",
    "ServingStatus",
    "canary",
    "create_or_update",
    "delete",
    "describe",
    "exists",
    "export",
    "get",
    "get_all",
    "get_artifact_path",
    "get_available_instances",
    "get_id",
    "get_model_name",
    "get_model_path",
    "get_model_server",
    "get_model_version",
    "get_status",
    "get_type",
    "get_version",
    "logs",
    "make_inference_request",
    "predict",
    "roll",
    "servings",
    "start",
    "status",
    "stop",
]


def __getattr__(name: str) -> object:
    raise refused_names.missing_attribute_error(__name__, name, __all__)


def __dir__() -> list[str]:
    return list(__all__)
