"""Commands that install optional dependencies of hopsml, from the source that this hopsml was installed from.

The package name alone is not sufficient: a package index may have another project of the same name.
"""

from __future__ import annotations

import importlib.metadata
import json
import urllib.parse
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parents[1]


def install(extra: str) -> str:
    """Return the command that installs an extra of hopsml.

    An example is ``pip install '/wheels/hopsml-0.1.0-py3-none-any.whl[mlflow]'``.
    """
    return command(extra, _origin(), version(), _PACKAGE.parent)


def command(extra: str, origin: dict[str, Any], version: str, beside: Path) -> str:
    """Return the command that installs an extra from a known origin.

    Args:
        extra: name of the extra.
        origin: pip's record of the installation (direct_url.json).
        version: version of hopsml.
        beside: folder that contains the package.
    """
    path = Path(urllib.parse.unquote(urllib.parse.urlsplit(origin.get("url", "")).path or "."))
    editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
    if origin.get("url", "").startswith("file:") and path.exists():
        return f"pip install {editable}'{path}[{extra}]'"
    if (beside / "setup.py").exists() and (beside / "pyproject.toml").exists():
        return f"pip install -e '{beside}[{extra}]'"
    return f"pip install './hopsml-{version}-py3-none-any.whl[{extra}]' (the wheel from which hopsml was installed)"


def _origin() -> dict[str, Any]:
    """Return pip's record of the installation; empty without one."""
    try:
        installed = importlib.metadata.distribution("hopsml")
        content: dict[str, Any] = json.loads(installed.read_text("direct_url.json") or "{}")
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return {}
    return content


def version() -> str:
    """Return the version of hopsml; "*" if it is only on the path and not installed."""
    try:
        return importlib.metadata.version("hopsml")
    except importlib.metadata.PackageNotFoundError:
        return "*"
