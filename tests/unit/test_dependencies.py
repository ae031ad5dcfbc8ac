"""Tests of the declared dependencies: each of the core, and each upper bound, has a reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
import tomllib

from tests.helpers import pages

pytestmark = pytest.mark.fast

PROJECT = tomllib.loads(pages.text("pyproject.toml"))["project"]
# Core dependencies, each with the modules that it provides and the reason for which no extra can have it.
CORE = {
    "async-timeout": ("async_timeout", "asyncio.timeout of Python 3.11"),
    "backports.asyncio.runner": ("backports", "asyncio.Runner of Python 3.11"),
    "cloudpickle": ("cloudpickle", "functions that are sent to workers"),
    "cryptography": ("cryptography", "certificates of the driver's and the agents' TLS"),
    "fsspec": ("fsspec", "run directories on object stores"),
    "google-crc32c": ("google_crc32c", "checksums of TensorBoard's event files and of TFRecords, without TensorFlow"),
    "hdfs": ("hdfs", "WebHDFS"),
    "hdfs-native": ("hdfs_native", "run directories on HDFS, without a JVM"),
    "msgspec": ("msgspec", "messages between driver, agents and workers; records of runs"),
    "numpy": ("numpy", "arrays of the collective and of data="),
    "nvidia-ml-py": ("pynvml", "GPUs of a host, and who uses them"),
    "psutil": ("psutil", "processes of workers, their memory and network interfaces"),
    "pyarrow": ("pyarrow", "rows of data=, Parquet files"),
    "pyyaml": ("yaml", "profiles and job files"),
    "rich": ("rich", "tables of the command line"),
    "typer": ("typer", "the command line"),
    "typing-extensions": ("typing_extensions", "Self of Python 3.11"),
    "uvloop": ("uvloop", "the driver's server, which has a connection to each agent"),
    "websockets": ("websockets", "connections between driver and agents"),
}
# Upper bounds: the next major version, of packages whose major versions change interfaces that hopsml uses, or a minor one.
NEXT_MAJOR = {
    "pyspark": "hopsml uses its gateway, contexts and serializers, which 4.0 changed",
    "apache-airflow-core": "operators and sensors extend its classes, which 3.0 moved",
    "mlflow-skinny": "the sender uses its client, which 3.0 changed",
    "pydantic": "job files are its models, which 2.0 changed",
    "sqlalchemy": "the service's store uses its mapping, which 2.0 changed",
}
NEXT_MINOR = {
    "tensorflow": "its operations are built for each minor version",
    "tensorflow-cpu": "its operations are built for each minor version",
    "torch": "newer minor versions have failed, so the extra brings one that was tried",
}


def parsed(requirements: Iterable[str]) -> dict[str, str]:
    """Return the bounds of requirements by name; markers and extras are removed."""
    found = {}
    for requirement in requirements:
        match = re.match(r"([\w.-]+)(\[[^]]*\])?([^;]*)", requirement)
        assert match
        found[match[1]] = match[3].strip()
    return found


def imported_modules() -> set[str]:
    """Return the first names of all modules that hopsml imports, wherever the import is."""
    names: set[str] = set()
    for path in (Path(__file__).parents[2] / "hopsml").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
    return names


def test_each_core_dependency_has_a_reason_and_a_use() -> None:
    assert set(parsed(PROJECT["dependencies"])) == set(CORE)
    assert {module for module, _ in CORE.values()} <= imported_modules()


def test_core_dependencies_have_a_lower_bound_and_no_upper_one() -> None:
    for name, bounds in parsed(PROJECT["dependencies"]).items():
        assert bounds.startswith(">=") and "<" not in bounds, name


def test_each_upper_bound_of_an_extra_has_a_reason() -> None:
    bounded: dict[str, str] = {}
    for requirements in PROJECT["optional-dependencies"].values():
        bounded |= {name: bounds for name, bounds in parsed(requirements).items() if "<" in bounds}
    assert set(bounded) == {*NEXT_MAJOR, *NEXT_MINOR}
    for name in NEXT_MAJOR:
        assert re.search(r"<\d+$", bounded[name]), name
    for name in NEXT_MINOR:
        assert re.search(r"<\d+\.\d+$", bounded[name]), name


def test_policy_of_upper_bounds_is_in_the_page_of_supported_versions() -> None:
    page = pages.text("docs/reference/versions.md")
    assert all(f"`{name}`" in page for name in {*NEXT_MAJOR, *NEXT_MINOR} - {"tensorflow-cpu"})
