"""Wheel of the working tree for tests that install it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tools import build_native

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("hopsml", "conf", "native", "tools", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")
UV = [str(Path(sys.executable).with_name("uv")), "--quiet"]


def build_wheel(folder: Path) -> Path:
    """Build the repository's package, including current libraries, and return the wheel; an sdist is next to it."""
    build_native.build_all()
    source = copy_sources(folder / "source")
    built = ["build", "--sdist", "--wheel", "--no-build-isolation", "--python", sys.executable]
    subprocess.run([*UV, "--offline", *built, "--out-dir", folder / "dist", source], check=True)
    shutil.rmtree(source)
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


def build_portable_wheel(folder: Path) -> Path:
    """Build the wheel of ``make wheel``, whose downloads and objects are reused, and return a copy in ``folder``."""
    subprocess.run([sys.executable, "-m", "tools.build_wheel"], cwd=ROOT, check=True)
    (wheel,) = (ROOT / "dist").glob("hopsml_spark-*.whl")
    return Path(shutil.copy(wheel, folder))


def copy_sources(target: Path, *without: str) -> Path:
    """Copy the sources of the package into a new folder, except entries of the names ``without``."""
    target.mkdir()
    for name in SOURCES:
        whole = ROOT / name
        if whole.is_dir():
            shutil.copytree(whole, target / name, ignore=shutil.ignore_patterns("__pycache__", *without))
        else:
            shutil.copy(whole, target / name)
    return target
