"""Commands that install optional dependencies of hopsml, from the source that this hopsml was installed from."""

from __future__ import annotations

import importlib.metadata
import json
import urllib.parse
from pathlib import Path
from typing import Any

DISTRIBUTION = "hopsml-spark"  # name on a package index, where "hopsml" is another project
_PACKAGE = Path(__file__).resolve().parents[1]


def install_command(extra: str) -> str:
    """Return the command that installs an extra of hopsml.

    An example is ``pip install 'hopsml-spark[mlflow]==0.1.0'``.
    """
    return install_command_from(extra, _origin(), version(), _PACKAGE.parent)


def install_command_from(extra: str, origin: dict[str, Any], version: str, beside: Path) -> str:
    """Return the command that installs an extra from a known origin.

    Args:
        extra: name of the extra.
        origin: pip's record of the installation (direct_url.json); empty if it came from a package index.
        version: version of hopsml.
        beside: folder that contains the package.
    """
    path = Path(urllib.parse.unquote(urllib.parse.urlsplit(origin.get("url", "")).path or "."))
    editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
    if origin.get("url", "").startswith("file:") and path.exists():
        return f"pip install {editable}'{path}[{extra}]'"
    if (beside / "setup.py").exists() and (beside / "pyproject.toml").exists():
        return f"pip install -e '{beside}[{extra}]'"
    if origin.get("url"):
        wheel = f"./{DISTRIBUTION.replace('-', '_')}-{version}-py3-none-any.whl"
        return f"pip install '{wheel}[{extra}]' (the wheel from which hopsml was installed)"
    return f"pip install '{DISTRIBUTION}[{extra}]" + (f"=={version}'" if version != "*" else "'")


def _origin() -> dict[str, Any]:
    """Return pip's record of the installation; empty without one."""
    try:
        installed = importlib.metadata.distribution(DISTRIBUTION)
        content: dict[str, Any] = json.loads(installed.read_text("direct_url.json") or "{}")
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return {}
    return content


def version() -> str:
    """Return the version of hopsml; "*" if it is only on the path and not installed."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return "*"
