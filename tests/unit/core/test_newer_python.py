"""Tests of what replaces names of newer Pythons; the same on each supported Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hopsml.core import newer_python
from hopsml.core.newer_python import StrEnum, code_arguments, module_arguments

pytestmark = pytest.mark.fast


class Colour(StrEnum):
    RED = "red"


def output(arguments: list[str], folder: Path) -> str:
    """Run this interpreter in a folder that has modules named as those of the standard library."""
    for name in ("json", "runpy"):
        (folder / f"{name}.py").write_text("raise SystemExit('a module of the working directory')")
    done = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, input='{"a": 1}')
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_code_does_not_import_from_the_working_directory(tmp_path: Path) -> None:
    code = "import json, sys; print(json.dumps(sys.argv[1:]))"
    assert output([*code_arguments(code), "a"], tmp_path) == '["a"]\n'


@pytest.mark.parametrize("run", [newer_python._RUN_MODULE, newer_python._RUN_MODULE_3_10], ids=["this", "3.10"])
def test_module_does_not_import_from_the_working_directory(
    run: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newer_python, "_RUN_MODULE", run)
    assert output([*module_arguments("json.tool"), "--compact"], tmp_path) == '{"a":1}\n'


def test_member_of_str_enum_equals_its_value() -> None:
    assert f"{Colour.RED}" == str(Colour.RED) == "red" == Colour.RED
