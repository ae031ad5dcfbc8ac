"""Tests that names of the predecessor and of Maggy do what docs/compatibility.md states."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hopsml import hdfs, numpy_helper, pandas_helper
from hopsml.core import refused_names
from tests.helpers import compatibility
from tests.helpers.compatibility import ROWS, TABLE, Row
from tests.helpers.predecessor_names import NAMES


def differing(rows: Sequence[Row]) -> list[str]:
    """Rows that are not as the table has them: run ``python -m tests.helpers.compatibility`` and review its changes."""
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
from tests.helpers import compatibility
from tests.integration.helpers.test_compatibility import differing
with compatibility.application(Path(sys.argv[1])):
    found = differing([row for row in compatibility.ROWS if row.slow])
print(found)
"""


@pytest.mark.local
@pytest.mark.parametrize(
    "group", ["experiment", *(pytest.param(one, marks=pytest.mark.variant) for one in ("helpers", "maggy"))]
)
def test_table_states_the_behaviour_of_each_name(tmp_path: Path, group: str) -> None:
    with compatibility.application(tmp_path):
        assert differing([row for row in GROUPS[group] if not row.slow]) == []


@pytest.mark.tensorflow
@pytest.mark.variant  # of tests for each of these names
def test_table_states_the_behaviour_of_names_that_need_tensorflow(tmp_path: Path) -> None:
    """In a subprocess: TensorFlow leaves variables and threads where it is imported."""
    done = subprocess.run(
        [sys.executable, "-c", TAKING_TENSORFLOW, tmp_path], text=True, capture_output=True, check=False
    )
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stdout + done.stderr


@pytest.mark.local
def test_table_has_exactly_the_rows_of_the_module() -> None:
    text = TABLE.read_text()
    lines = text.partition(compatibility.NAMES_HEAD)[0].splitlines()
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
def test_page_lists_every_public_name_of_the_predecessor() -> None:
    _, mark, names = TABLE.read_text().partition(compatibility.NAMES_HEAD)
    assert mark and names.splitlines()[1:] == compatibility.names_table()  # else: python -m tests.helpers.compatibility
    assert all("| offered |" in line or "| refused: use " in line for line in names.splitlines()[1:])


@pytest.mark.fast
@pytest.mark.parametrize("module", NAMES)
def test_public_names_of_the_predecessor_are_offered_or_refused_with_a_replacement(module: str) -> None:
    package = f"hopsml.{module}"
    if module in refused_names.INSTEAD["hopsml"]:
        with pytest.raises(ImportError, match=rf"{package} does not exist; use "):
            importlib.import_module(package)
        with pytest.raises(AttributeError, match=rf"{package} does not exist; use "):
            getattr(importlib.import_module("hopsml"), module)
        return
    imported = importlib.import_module(package)
    for name in NAMES[module]:
        if hasattr(imported, name):
            exec(f"from {package} import {name}")
            continue
        text = re.escape(f"{imported.__name__.removeprefix('hopsml.')}.{name} does not exist; use ")
        with pytest.raises(AttributeError, match=text):
            getattr(imported, name)
        with pytest.raises(ImportError, match=text):
            exec(f"from {package} import {name}")


@pytest.mark.fast
def test_replacements_in_messages_exist() -> None:
    """Every ``hopsml.module.name`` in a message can be imported."""
    texts = [text for names in refused_names.INSTEAD.values() for text in names.values()]
    dotted = {found for text in texts for found in re.findall(r"hopsml(?:\.\w+)+", text)}
    assert len(dotted) > 20
    for path in dotted:
        value: Any = importlib.import_module("hopsml")
        for part in path.split(".")[1:]:
            value = getattr(value, part, None) or importlib.import_module(f"{value.__name__}.{part}")


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
def test_refused_name_is_no_attribute_and_its_import_explains_the_replacement(
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
def test_every_name_in_dir_of_a_module_exists(package: str) -> None:
    module = importlib.import_module(package)
    assert [name for name in dir(module) if not hasattr(module, name)] == []
