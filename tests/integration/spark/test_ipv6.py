"""Tests of Spark on a host with only IPv6, and behind a proxy: runs, rows of ``data=``, lost workers, servings."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.clock import END_S
from tests.helpers.lone_host import ONLY_IPV6, SIX, WIRED, on_lone_host
from tools.shaped_network import hindrance

pytestmark = [pytest.mark.spark, pytest.mark.skipif(hindrance() != "", reason=f"no networks of our own: {hindrance()}")]

ROOT = Path(__file__).parents[3]
ROWS = 100
PROFILE = f"""extends: local-cluster
environment:
  SPARK_LOCAL_IP: "{SIX}"
  SPARK_PREFER_IPV6: "true"
spark:
  spark.driver.host: "{SIX}"
  spark.driver.bindAddress: "{SIX}"
  spark.driver.extraJavaOptions: -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.net.preferIPv6Addresses=true
  spark.executor.extraJavaOptions: -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.net.preferIPv6Addresses=true
"""


HERE, PROXY, PORT = "10.8.8.5", "10.8.8.6", 3128
_JAVA_PROXY = f"-Dhttp.proxyHost={PROXY} -Dhttp.proxyPort={PORT} -DsocksProxyHost={PROXY} -DsocksProxyPort={PORT}"
PROXIED = f"""extends: local-cluster
environment:
  SPARK_LOCAL_IP: {HERE}
spark:
  spark.driver.host: {HERE}
  spark.driver.bindAddress: {HERE}
  spark.driver.extraJavaOptions: -XX:+UseSerialGC -XX:TieredStopAtLevel=1 {_JAVA_PROXY}
  spark.executor.extraJavaOptions: -XX:+UseSerialGC -XX:TieredStopAtLevel=1 {_JAVA_PROXY}
"""


def trained() -> dict[str, Any]:
    """Sums of two workers, the rows that they have read, and their addresses."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    from hopsml import experiment

    def own() -> dict[str, Any]:
        import os

        import numpy as np

        import hopsml

        total = float(hopsml.all_reduce(np.ones(10), "sum")[0])
        return {"sum": total, "leader": os.environ["MASTER_ADDR"], "cluster": os.environ.get("TF_CONFIG", "")}

    def reads(rows: Iterable[dict[str, Any]]) -> float:
        import numpy as np

        import hopsml

        count = sum(len(batch["id"]) for batch in rows.batch(16))  # type: ignore[attr-defined]
        return float(hopsml.all_reduce(np.array([float(count)]), "sum")[0])

    def recovers() -> tuple[int, int]:
        import os
        import signal

        import numpy as np

        import hopsml
        from hopsml.cluster.worker.context import current

        state, context = hopsml.elastic.State(step=0), current()
        assert context is not None
        while state.step < 10:
            hopsml.all_reduce(np.ones(4), "sum")
            state.step += 1
            state.commit()
            if state.step == 5 and context.generation == 0 and context.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        return state.step, hopsml.distributed.world_size()

    try:
        found: dict[str, Any] = experiment.collective_all_reduce(own, num_workers=2, progress=False).value
        session = SparkSession(SparkContext._active_spark_context)
        rows = {"rows": session.range(ROWS).repartition(4)}
        found["rows"] = experiment.distributed(reads, data=rows, num_workers=2, progress=False).value
        found["recovered"] = experiment.distributed(recovers, min_workers=2, max_workers=2, progress=False).value
    finally:
        experiment.shutdown()
    return found


def served() -> dict[str, Any]:
    """Answer of a serving on executors, and its address."""
    from sklearn.dummy import DummyRegressor

    from hopsml import model, serving

    model.export(DummyRegressor(strategy="constant", constant=7.0).fit(np.zeros((2, 4)), np.zeros(2)), "sevens")
    try:
        status = serving.start("sevens", replicas=2, profile="six")
        return {"url": status.url, "answer": float(serving.predict("sevens", [[0.0] * 4])[0])}
    finally:
        serving.stop("sevens")


def play(
    folder: Path, name: str, profile: str, devices: str = ONLY_IPV6, address: str = SIX, **variables: str
) -> dict[str, Any]:
    """Call a function of this module on a host with these devices and this address; return its value."""
    (folder / "six.yaml").write_text(PROFILE)
    (folder / "proxied.yaml").write_text(PROXIED)
    (folder / "local-cluster.yaml").write_text((ROOT / "conf" / "local-cluster.yaml").read_text())
    (folder / "local.yaml").write_text((ROOT / "conf" / "local.yaml").read_text())
    environment = {
        **{name: value for name, value in os.environ.items() if name != "SPARK_LOCAL_IP"},
        "HOPSML_CONF_DIR": str(folder),
        "HOPSML_PROFILE": profile,
        "HOPSML_PROJECT_URL": f"file://{folder}/project",
        "HOPSML_SERVING_FOLDER": str(folder / "machine"),
        "HOPSML_MLFLOW": "0",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "SPARK_WORKER_DIR": str(folder / "executors"),
        **variables,
    }
    command = on_lone_host(
        folder, devices, [sys.executable, "-m", __name__, name], hosts=f"{address} node1\n::1 localhost\n"
    )
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=END_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_runs_on_spark_with_only_ipv6_train_read_rows_and_recover(tmp_path: Path) -> None:
    found = play(tmp_path, "trained", "six")
    assert (found["sum"], found["leader"], found["rows"]) == (2.0, SIX, float(ROWS))
    assert f'["[{SIX}]:' in found["cluster"]
    assert found["recovered"] == [10, 2]


@pytest.mark.variant
def test_serving_on_spark_with_only_ipv6_answers(tmp_path: Path) -> None:
    found = play(tmp_path, "served", "local")
    assert found["url"].startswith(f"http://[{SIX}]:") and found["answer"] == 7.0


@pytest.mark.variant
def test_runs_on_spark_behind_a_silent_proxy_connect_directly(tmp_path: Path) -> None:
    devices = f"{WIRED} ip addr add {HERE}/24 dev eth0; ip addr add {PROXY}/24 dev eth0"
    names = [name for word in ("http_proxy", "https_proxy", "all_proxy") for name in (word, word.upper())]
    variables = {**dict.fromkeys(names, f"http://{PROXY}:{PORT}"), "no_proxy": "", "NO_PROXY": ""}
    found = play(tmp_path, "trained_behind_proxy", "proxied", devices, HERE, **variables)
    assert (found["sum"], found["rows"], found["recovered"], found["proxied"]) == (2.0, float(ROWS), [10, 2], 0)


def trained_behind_proxy() -> dict[str, Any]:
    """As ``trained``, with the rows sent by Python, and the number of connections to a proxy that never answers."""
    from hopsml.training.data import push

    push.JAR = Path("nowhere.jar")
    with socket.create_server((PROXY, PORT), backlog=64) as proxy:
        found = trained()
        proxy.setblocking(False)
        found["proxied"] = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                proxy.accept()[0].close()
                found["proxied"] += 1
    return found


if __name__ == "__main__":
    calls = {call.__name__: call for call in (trained, served, trained_behind_proxy)}
    print(json.dumps(calls[sys.argv[1]]()))
