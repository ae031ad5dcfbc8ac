"""Tests of executors that cannot reach the driver, with a real Spark whose driver announces a wrong address."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.clock import END_S

pytestmark = pytest.mark.spark

NOWHERE = "240.0.0.1"  # of a class that no system sends to
PROFILE = f"""extends: local-cluster
spark:
  spark.driver.host: {NOWHERE}
  spark.driver.bindAddress: 127.0.0.1
  spark.rpc.askTimeout: 5s
"""
PROGRAM = """
from hopsml import experiment
from hopsml.errors import StartTimeout
try:
    experiment.distributed(lambda: 1, num_workers=1, start_timeout=20, progress=False)
except StartTimeout as error:
    print(error)
"""


@pytest.mark.variant
def test_unreachable_driver_is_named_with_its_address(tmp_path: Path) -> None:
    (tmp_path / "unreachable.yaml").write_text(PROFILE)
    base = Path(__file__).parents[3] / "conf" / "local-cluster.yaml"
    (tmp_path / base.name).write_text(base.read_text())
    environment = {
        **{name: value for name, value in os.environ.items() if name != "SPARK_LOCAL_IP"},
        "HOPSML_CONF_DIR": str(tmp_path),
        "HOPSML_PROFILE": "unreachable",
        "HOPSML_PROJECT_URL": f"file://{tmp_path}/project",
    }
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=END_S, check=False
    )
    assert done.returncode == 0, done.stderr
    text = done.stdout
    assert "of which none has registered with the driver" in text and "the cluster is full" not in text, text
    assert f"reach the driver at {NOWHERE}:" in text and "spark.blockManager.port" in text and "SPARK_LOCAL_IP" in text
    assert "ended: Command exited with code 1; its last lines:\n" in text and NOWHERE in text.partition("last lines")[2]
