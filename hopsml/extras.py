"""How to install what a part of hopsml needs beyond its core: from where this hopsml itself came.

The name alone does not do: a package index may hold somebody else's project of the same name.
"""

from __future__ import annotations

import importlib.metadata
import json
import urllib.parse
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parent


def install(extra: str) -> str:
    """The command, for instance ``pip install '/wheels/hopsml-0.1.0-py3-none-any.whl[mlflow]'``."""
    return command(extra, _origin(), version(), _PACKAGE.parent)


def command(extra: str, origin: dict[str, Any], version: str, beside: Path) -> str:
    """As ``install``; ``origin`` is pip's record of it (direct_url.json), ``beside`` the folder with the package in it."""
    path = Path(urllib.parse.unquote(urllib.parse.urlsplit(origin.get("url", "")).path or "."))
    editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
    if origin.get("url", "").startswith("file:") and path.exists():
        return f"pip install {editable}'{path}[{extra}]'"
    if (beside / "setup.py").exists() and (beside / "pyproject.toml").exists():
        return f"pip install -e '{beside}[{extra}]'"
    return f"pip install './hopsml-{version}-py3-none-any.whl[{extra}]' (the wheel that hopsml came as)"


def _origin() -> dict[str, Any]:
    try:
        installed = importlib.metadata.distribution("hopsml")
        content: dict[str, Any] = json.loads(installed.read_text("direct_url.json") or "{}")
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return {}
    return content


def version() -> str:
    """Of hopsml itself; "*" where it is not installed but lies on the path."""
    try:
        return importlib.metadata.version("hopsml")
    except importlib.metadata.PackageNotFoundError:
        return "*"
