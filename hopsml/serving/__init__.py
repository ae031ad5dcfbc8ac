"""Serving of registry models by REST, on this machine or on a cluster.

A serving is identified by its name:

    hopsml.serving.start("digits", version="best")
    hopsml.serving.predict("digits", rows)
    hopsml.serving.canary("digits", version=4, share=0.1)
    hopsml.serving.roll("digits", version=4)
    hopsml.serving.stop("digits")
"""

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
    get,
    get_all,
    get_id,
    get_model_name,
    get_model_path,
    get_model_server,
    get_model_version,
    get_status,
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
    "get",
    "get_all",
    "get_id",
    "get_model_name",
    "get_model_path",
    "get_model_server",
    "get_model_version",
    "get_status",
    "logs",
    "make_inference_request",
    "predict",
    "roll",
    "servings",
    "start",
    "status",
    "stop",
]


def __dir__() -> list[str]:
    return list(__all__)
