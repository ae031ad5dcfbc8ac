"""Tests that names of the predecessor and of Maggy do what docs/compatibility.md states."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from hopsml import hdfs, numpy_helper, pandas_helper
from tests import compatibility
from tests.compatibility import ROWS, TABLE, Row


def differing(rows: Sequence[Row]) -> list[str]:
    """Rows that are not as the table has them: run ``python -m tests.compatibility``, and look at what it changes."""
    lines = TABLE.read_text().splitlines()
    return [line for line in (row.line() for row in rows) if line not in lines]


GROUPS = {
    "experiment": compatibility.EXPERIMENT,
    "helpers": [
        *compatibility.AROUND,
        *compatibility.FILES,
        *compatibility.HELPERS,
        *compatibility.MODEL,
        *compatibility.SERVING,
        *compatibility.ELSEWHERE,
    ],
    "maggy": compatibility.MAGGY,
}


TAKING_TENSORFLOW = """
import sys
from pathlib import Path
from tests import compatibility
from tests.test_compatibility import differing
with compatibility.application(Path(sys.argv[1])):
    found = differing([row for row in compatibility.ROWS if row.slow])
print(found)
"""


@pytest.mark.local
@pytest.mark.timeout(600)  # some runs each
@pytest.mark.parametrize("group", GROUPS)
def test_the_table_says_what_comes_of_using_each_name(tmp_path: Path, group: str) -> None:
    with compatibility.application(tmp_path):
        assert differing([row for row in GROUPS[group] if not row.slow]) == []


@pytest.mark.tensorflow
@pytest.mark.variant  # of tests beside each of these names
@pytest.mark.timeout(600)
def test_the_table_says_what_comes_of_names_that_take_tensorflow(tmp_path: Path) -> None:
    """In a process of its own: TensorFlow leaves variables and threads where it is imported."""
    done = subprocess.run(
        [sys.executable, "-c", TAKING_TENSORFLOW, tmp_path], text=True, capture_output=True, check=False
    )
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stdout + done.stderr


@pytest.mark.local
def test_the_table_has_these_rows_and_no_others() -> None:
    lines = TABLE.read_text().splitlines()
    found = [line for line in lines if line.startswith("| `")]
    assert len(found) == len(ROWS) and all(line.startswith(row.start) for line, row in zip(found, ROWS, strict=True))
    assert "\n".join(lines).startswith(compatibility.HEAD)


@pytest.mark.local
def test_every_public_name_of_the_helpers_has_a_row() -> None:
    rows = {(row.module, name) for row in ROWS for name in row.name.split(", ")}
    assert {("hdfs", name) for name in hdfs.__all__} <= rows
    for module in (numpy_helper, pandas_helper):
        short = module.__name__.removeprefix("hopsml.")
        public = {name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__}
        assert {(short, name) for name in public if not name.startswith("_")} <= rows


@pytest.mark.fast
@pytest.mark.parametrize(
    ("package", "name", "text"),
    [
        ("hopsml", "featurestore", "hopsml.featurestore does not exist; use the client of Hopsworks"),
        ("hopsml", "jobs", "hopsml.jobs does not exist; use `hopsml submit`"),
        ("hopsml.airflow", "HopsMLOperator", "hopsml.airflow.HopsMLOperator needs Airflow"),
        ("hopsml.experiment", "begin_all", "begin_all"),
        ("hopsml", "nonsense", "nonsense"),
    ],
)
def test_a_name_that_is_refused_is_no_attribute_and_each_import_of_it_says_why(
    package: str, name: str, text: str
) -> None:
    module = importlib.import_module(package)
    assert not hasattr(module, name)
    assert getattr(module, name, None) is None
    assert importlib.util.find_spec(f"{package}.{name}") is None
    with pytest.raises(AttributeError, match=re.escape(text)):
        getattr(module, name)
    for statement in (f"from {package} import {name}", f"import {package}.{name}"):
        with pytest.raises(ImportError, match=re.escape(text)):
            exec(statement)


@pytest.mark.fast
@pytest.mark.parametrize(
    "package", ["hopsml", "hopsml.experiment", "hopsml.tensorboard", "hopsml.maggy", "hopsml.data"]
)
def test_every_name_that_a_module_lists_is_there(package: str) -> None:
    module = importlib.import_module(package)
    assert [name for name in dir(module) if not hasattr(module, name)] == []
