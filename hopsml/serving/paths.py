"""Parser of the paths of the REST interfaces. Pure.

The paths are:

    /v1/models/N[/versions/V|/labels/L][/metadata|:predict]      TensorFlow Serving
    /v2, /v2/health/live, /v2/health/ready                       Open Inference Protocol
    /v2/models/N[/versions/V][/ready|/infer]
    /metrics                                                     Prometheus
"""

from __future__ import annotations

import re
import urllib.parse
from dataclasses import dataclass
from typing import Literal

from hopsml.serving.refusals import RequestRefused, not_found

What = Literal["live", "ready", "server", "metrics", "status", "metadata", "predict", "model", "model_ready", "infer"]
_POSTED = ("predict", "infer")
_FIXED: dict[str, What] = {
    "/v2": "server",
    "/v2/health/live": "live",
    "/v2/health/ready": "ready",
    "/metrics": "metrics",
}
_V1 = re.compile(r"/v1/models/([^/:]+)(?:/versions/([^/:]+)|/labels/([^/:]+))?(/metadata|:\w+)?")
_V2 = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?(/ready|/infer)?")
_DOES: dict[str, What] = {"": "status", "/metadata": "metadata", ":predict": "predict"}
_DOES_V2: dict[str, What] = {"": "model", "/ready": "model_ready", "/infer": "infer"}


@dataclass(frozen=True)
class Target:
    """Requested operation, with its model and version or label."""

    what: What
    model: str = ""
    version: int | None = None
    label: str | None = None


def parse(method: str, path: str) -> Target:
    """Return the operation that a request's method and path denote.

    Args:
        method: HTTP method.
        path: Path of the URL.

    Raises:
        RequestRefused: (404) The path is unknown; (405) the method is wrong.
    """
    path = path.rstrip("/") or "/"
    target = _target(path)
    wanted = ("POST",) if target.what in _POSTED else ("GET", "HEAD")
    if method not in wanted:
        raise RequestRefused(405, f"{path} is asked by {wanted[0]}, not by {method}", {"allow": ", ".join(wanted)})
    return target


def _target(path: str) -> Target:
    """Return the operation of a path."""
    if path in _FIXED:
        return Target(_FIXED[path])
    if found := _V1.fullmatch(path):
        model, version, label, end = found.groups()
        if (end or "") not in _DOES:
            raise not_found(f"{end} is not there; models are asked by :predict")
        return Target(_DOES[end or ""], _name(model), _number(version), None if label is None else _name(label))
    if found := _V2.fullmatch(path):
        model, version, end = found.groups()
        return Target(_DOES_V2[end or ""], _name(model), _number(version))
    raise not_found(f"{path[:200]} is not there; a model is asked at /v1/models/NAME:predict or /v2/models/NAME/infer")


def _name(quoted: str) -> str:
    """Decode a quoted name."""
    return urllib.parse.unquote(quoted)


def _number(text: str | None) -> int | None:
    """Return a version number; None if the path has none."""
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise not_found(f"version {text[:80]!r}: a version is a whole number")
    return int(text)
