"""Tests of the imports of a script, and of missing ones."""

from __future__ import annotations

import ast
import zipfile
from pathlib import Path

import pytest

from hopsml import submission
from hopsml.core import profiles
from hopsml.errors import ArgumentError
from hopsml.submission import script

pytestmark = pytest.mark.fast

YARN = profiles.parse("y", "master: yarn\ndeploy_mode: cluster\n", "y.yaml")

SCRIPT = """
import os, numpy.linalg as la
from typing import TYPE_CHECKING
from . import sibling
if TYPE_CHECKING:
    import only_for_types
try:
    import maybe
except ImportError:
    import instead
try:
    import strict
except ValueError:
    pass
try:
    import either
except (KeyError, ModuleNotFoundError):
    either = None
def train():
    from lightgbm.sklearn import LGBMClassifier
    class Inner:
        import deep
"""


def test_what_is_imported_for_certain() -> None:
    assert script.imports(ast.parse(SCRIPT)) == {
        "os": 2,
        "numpy": 2,
        "typing": 3,
        "strict": 12,
        "lightgbm": 20,
        "deep": 22,
    }


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "helpers.py").write_text("")
    file = tmp_path / "job.py"
    file.write_text("import yaml, pyspark, helpers\ndef train():\n    import no_such_package\n")
    return file


@pytest.fixture(autouse=True)
def this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)


def test_what_is_missing_is_named_with_its_line(job: Path) -> None:
    with pytest.raises(ArgumentError, match=r"misses: helpers \(line 1\), no_such_package \(line 3\); pip install"):
        submission.command(YARN, str(job))


def test_what_is_shipped_is_not_missing(job: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "more.zip", "w") as content:
        content.writestr("no_such_package/__init__.py", "")
    files = f"{tmp_path}/helpers.py, file://{tmp_path}/more.zip"
    assert str(job) in submission.command(YARN, str(job), conf={"spark.submit.pyFiles": files})
    path = tmp_path / "path"
    (path / "no_such_package").mkdir(parents=True)
    conf = {"spark.submit.pyFiles": f"{tmp_path}/helpers.py", "spark.executorEnv.PYTHONPATH": str(path)}
    assert str(job) in submission.command(YARN, str(job), conf=conf)


def test_a_driver_of_this_machine_sees_what_lies_beside_the_script(job: Path) -> None:
    here = profiles.parse("h", "master: yarn\n", "h.yaml")
    with pytest.raises(ArgumentError, match=r"misses: no_such_package \(line 3\);"):
        submission.command(here, str(job))


@pytest.mark.parametrize(
    "conf",
    [
        {"spark.pyspark.python": "/opt/other/bin/python"},
        {"spark.submit.pyFiles": "hdfs://ns1/all.zip"},
    ],
)
def test_what_cannot_be_known_is_not_guessed(job: Path, conf: dict[str, str]) -> None:
    assert str(job) in submission.command(YARN, str(job), conf=conf)


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"def f(:\n", "line 1: invalid syntax"), (b"x = 1\n\x00", "null bytes"), (b"x = '\xff'\n", "utf-8")],
)
def test_a_script_that_is_none(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "job.py"
    file.write_bytes(content)
    with pytest.raises(ArgumentError, match=f"job.py.*{words}.*nothing was submitted"):
        submission.command(YARN, str(file))
    with pytest.raises(ArgumentError, match=r"there is no script .*other\.py"):
        submission.command(YARN, str(tmp_path / "other.py"))
