"""Distribution of tests among processes (``pytest -n 4 --dist loadgroup``): tests with shared fixtures stay together.

Tests of one file stay together, since they share its fixtures; so do those of files that share a cluster, an application
or a database. Each process has separate instances of everything else; processes share only the machine's processors and
the bridge of tests/chaos/networks.py, which one file uses.
"""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadScopeScheduling

# Where a test's path begins -> what it shares with all others that begin so.
SHARED = {
    "tests/integration/yarn/": "HDFS and YARN",
    "tests/chaos/test_yarn": "HDFS and YARN",
    "tests/integration/secure/": "a Kerberized HDFS",
    "tests/integration/spark/": "a Spark application",
    "tests/integration/airflow/": "Airflow's database, and the process that has imported Airflow",
    "tests/integration/tracking/test_mlflow": "an MLflow server",
    "tests/integration/model/test_mlflow": "an MLflow server",
    "tests/integration/notebook/": "ports that Jupyter picks for its kernels, and that are free until these listen",
}

# What takes long and would begin late: begun at the end, one of them would leave its process alone with it.
LONG = (
    "an MLflow server",
    "tests/chaos/test_local.py",
    "tests/integration/cluster/test_elastic.py",
    "tests/integration/serving/test_serving.py",
    "tests/integration/test_installed.py",
)


def place(test: str, need: str) -> int:
    """Return the start position of a test by its id and main need: clusters, long groups, the rest."""
    shared = group(test)
    return 0 if need in ("hadoop", "spark") else 1 + (LONG.index(shared) if shared in LONG else len(LONG))


def group(test: str) -> str:
    """Return the shared fixture of a test's id, or its file."""
    file = test.partition("::")[0]
    return next((shared for begin, shared in SHARED.items() if file.startswith(begin)), file)


class SharedScopeScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Scheduler that assigns a whole group to a process that is nearly idle, in the order of collection."""

    def __init__(self, config: Any, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return group(nodeid)
