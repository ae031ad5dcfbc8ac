"""Names in records of earlier versions resolve to the present modules, classes and functions."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from hopsml.core import moved_names

pytestmark = pytest.mark.fast
# Modules, and module:name pairs, that records made at ffbbf7f6 can contain.
NAMES = (Path(__file__).parents[2] / "data" / "names_in_records_of_ffbbf7f6.list").read_text().split()


def test_each_name_that_an_old_record_can_contain_resolves() -> None:
    missing = []
    for entry in NAMES:
        module, _, name = entry.partition(":")
        try:
            if name:
                moved_names.loads(f"c{module}\n{name}\n.".encode())  # a pickle of this class or function
            else:
                importlib.import_module(module)
        except (ImportError, AttributeError) as error:
            missing.append(f"{entry}: {error}")
    assert not missing


@pytest.mark.parametrize(
    ("former", "name"), [("search.algorithms.single", "SingleRunSearcher"), ("training.task_addresses", "rank")]
)
def test_short_lived_former_name_resolves(former: str, name: str) -> None:
    assert moved_names.loads(f"chopsml.{former}\n{name}\n.".encode()).__name__ == name
    assert getattr(importlib.import_module(f"hopsml.{former}"), name).__name__ == name


def test_each_entry_of_the_table_names_an_existing_object() -> None:
    for former, now in moved_names.MOVED.items():
        module, _, name = now.partition(":")
        assert ":" in former or not name
        assert not name or hasattr(importlib.import_module(module), name), now


def test_moved_module_is_importable_under_its_former_name() -> None:
    code = (
        "import hopsml.states; from hopsml.states import Lifecycle; from hopsml.core import states\n"
        "assert Lifecycle is states.Lifecycle and hopsml.states.Lifecycle is Lifecycle\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_module_and_unknown_name_are_still_errors() -> None:
    with pytest.raises(ModuleNotFoundError, match="nothing"):
        importlib.import_module("hopsml.nothing")
    with pytest.raises(AttributeError, match="nothing"):
        moved_names.loads(b"chopsml.states\nnothing\n.")


def test_pickle_without_moved_names_is_loaded_unchanged() -> None:
    value = {"path": Path("a"), "state": importlib.import_module("hopsml.core.states").Lifecycle.FAILED}
    assert moved_names.loads(pickle.dumps(value)) == value
