"""Tests of import hook, wait for the leader and ring order, without TensorFlow."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from hopsml.errors import ArgumentError, StartTimeout
from hopsml.training.tensorflow import import_hook, setup
from hopsml.training.tensorflow.distribution.strategy import ring_order_text
from hopsml.training.tensorflow.setup import split_address, wait_for_port
from tests.helpers.training.group import ROOT

pytestmark = pytest.mark.fast


@pytest.fixture
def module_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package that can be imported once, and the hook's finder taken out afterwards."""
    package = tmp_path / "hopsml_hook_probe"
    package.mkdir()
    (package / "__init__.py").write_text("value = 1\n")
    (package / "inner.py").write_text("value = 2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(import_hook, "_finder", None)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name in ("hopsml_hook_probe", "hopsml_hook_probe.inner"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return "hopsml_hook_probe"


def test_import_hook_runs_its_action_once_after_the_import(module_name: str) -> None:
    seen: list[int] = []
    import_hook.after_import(module_name, lambda module: seen.append(module.value))
    import_hook.after_import(f"{module_name}.inner", lambda module: seen.append(module.value))
    assert seen == []
    __import__(module_name)
    assert seen == [1]
    __import__(f"{module_name}.inner")
    __import__(module_name)
    assert seen == [1, 2]


def test_import_hook_runs_its_action_at_once_for_an_imported_module(module_name: str) -> None:
    __import__(module_name)
    seen: list[int] = []
    import_hook.after_import(module_name, lambda module: seen.append(module.value))
    assert seen == [1]


def test_import_hook_leaves_the_module_loader_unchanged(module_name: str) -> None:
    import_hook.after_import(module_name, lambda module: None)
    module = __import__(module_name)
    assert type(module.__spec__.loader).__name__ == "SourceFileLoader"
    assert module.__spec__.loader.get_data(module.__file__) == b"value = 1\n"


def test_import_hook_does_not_hide_a_missing_module(module_name: str) -> None:
    import_hook.after_import("hopsml_no_such_module", lambda module: None)
    with pytest.raises(ModuleNotFoundError):
        __import__("hopsml_no_such_module")


def test_importing_hopsml_tensorflow_imports_no_framework() -> None:
    code = (
        "import sys, hopsml.tensorflow, hopsml.training.tensorflow.setup as s; s.install_import_hook();"
        "print([n for n in ('tensorflow', 'keras', 'tf_keras', 'numpy') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_wait_for_port_returns_once_the_leader_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as leader:
        leader.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{leader.getsockname()[1]}"
        refused: list[float] = []

        def open_port(pause_s: float) -> None:
            refused.append(time.monotonic())
            if len(refused) == 3:
                leader.listen()

        monkeypatch.setattr(setup, "time", SimpleNamespace(monotonic=time.monotonic, sleep=open_port))
        waited = wait_for_port(address, timeout_s=30)
        assert len(refused) == 3 and refused[2] - refused[0] <= waited < 30


def test_leader_that_never_listens_is_named_in_the_error() -> None:
    with socket.socket() as leader:
        leader.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{leader.getsockname()[1]}"
        with pytest.raises(StartTimeout, match=f"{address} did not open within 0.1 s"):
            wait_for_port(address, timeout_s=0.1)


@pytest.mark.parametrize(
    ("address", "expected"),
    [("10.0.0.9:80", ("10.0.0.9", 80)), ("[::1]:8080", ("::1", 8080)), ("h:1", ("h", 1))],
)
def test_split_address_separates_host_and_port(address: str, expected: tuple[str, int]) -> None:
    assert split_address(address) == expected


def test_ring_order_argument_is_used_and_default_is_empty() -> None:
    assert ring_order_text([2, 0, 1], "", devices=3) == "2,0,1"
    assert ring_order_text(None, "", devices=3) == ""


@pytest.mark.parametrize("order", [[0], [0, 1, 1], [1, 2, 3], []])
def test_invalid_ring_order_is_refused(order: list[int]) -> None:
    with pytest.raises(ArgumentError, match="ring_order="):
        ring_order_text(order, "", devices=3)


def test_ring_order_of_the_run_is_converted_to_local_device_indices() -> None:
    assert ring_order_text(None, "6,4,7", devices=3) == "1,0,2"
    assert ring_order_text(None, "0,1", devices=3) == ""  # of other devices than this worker sees
