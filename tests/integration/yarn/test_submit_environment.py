"""Tests of an environment sent to a real YARN: packed once, reused, used by driver and executors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest
import yaml

from hopsml.storage import filesystem, urls
from tests.helpers.clock import END_S
from tests.integration.yarn.conftest import Hadoop

pytestmark = [pytest.mark.hadoop, pytest.mark.usefixtures("no_helpers_left")]

ROOT = Path(__file__).parents[3]
JOB = Path(__file__).parent / "jobs" / "shipped.py"


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """Return the interpreter of a small environment with one package."""
    folder = tmp_path / "small"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for name, content in {
        "tiny_package/__init__.py": "VALUE = 42\n",
        "tiny_package-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny-package\nVersion: 1.0\n",
    }.items():
        (site / name).parent.mkdir()
        (site / name).write_text(content)
    return folder / "bin" / "python"


@pytest.mark.variant  # two minutes; its parts are in tests/unit/submission
def test_environment_is_packed_once_and_used_by_driver_and_executors(
    hadoop: Hadoop, python: Path, tmp_path: Path
) -> None:
    store = f"{hadoop.namenode_url}/Projects/{time.monotonic_ns()}"
    settings = hadoop.spark_conf(executors=1)
    settings = {key: value for key, value in settings.items() if not key.endswith(("PYSPARK_PYTHON", "PYTHONPATH"))}
    profile = {
        "master": "yarn",
        "deploy_mode": "cluster",
        "store": store,
        "spark": settings,
        "ship_environment": "auto",
    }
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(profile))
    # hopsml itself comes by the path of modules: it is not part of the small environment
    path = os.pathsep.join([str(ROOT), sysconfig.get_path("purelib")])
    environment = {**hadoop.submit_env(), "PYTHONPATH": path, "HOPSML_CONF_DIR": str(tmp_path)}
    environment |= {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}

    def submit(*options: str) -> subprocess.CompletedProcess[str]:
        words = ["-c", "from hopsml.cli import main; main()", "submit", str(JOB), "--profile", "small", *options]
        return subprocess.run([str(python), *words], env=environment, capture_output=True, text=True, timeout=END_S)

    planned = submit("--dry-run")
    archive = planned.stdout.partition("spark.yarn.dist.archives=")[2].partition("#")[0]
    assert archive.startswith(f"{store}/environments/") and archive.endswith(".tar.gz"), planned.stderr
    assert not filesystem.exists(archive)

    first = submit()
    assert first.returncode == 0, first.stderr + first.stdout
    assert f"packing {python.parents[1]} (1 packages)" in first.stderr
    places = json.loads(first.stdout)
    for place in (places["driver"], places["executor"]):
        assert place["value"] == 42
        for file in (place["prefix"], place["file"], place["standard_library"]):
            assert file.startswith(f"{place['work']}/environment"), place
    status = filesystem.for_url(archive).status(archive)
    manifest = json.loads(filesystem.for_url(archive).read_bytes(archive.removesuffix(".tar.gz") + ".json"))
    assert manifest["packages"] == {"tiny-package": "1.0"} and manifest["bytes"] == status.length

    misses = tmp_path / "misses.py"
    misses.write_text("import tiny_package\n\ndef train():\n    import lightgbm\n")
    refused = subprocess.run(
        [str(python), "-c", "from hopsml.cli import main; main()", "submit", str(misses), "--profile", "small"],
        env=environment, capture_output=True, text=True, timeout=END_S,
    )  # fmt: skip
    assert refused.returncode == 1 and "environment archive lacks lightgbm (line 4)" in refused.stderr

    again = submit("--detach")
    assert again.returncode == 0, again.stderr
    assert "packing" not in again.stderr
    assert filesystem.for_url(archive).status(archive) == status
    assert len(filesystem.for_url(archive).list_dir(urls.parent(archive))) == 2
