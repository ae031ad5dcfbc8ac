"""Tests of the variables by which NCCL's algorithms are set."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopsml.errors import ArgumentError
from hopsml.experiment import collective
from hopsml.experiment.options import TorchOptions
from hopsml.experiment.result import merging_text
from hopsml.training.torch import gpu_collective

pytestmark = pytest.mark.fast


def train() -> None:
    """Do nothing."""


def test_settings_of_nccl_in_the_drivers_environment_reach_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("NCCL_PROTO", "Simple")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth7")  # of this host
    spec = collective.build(TorchOptions(train, environment={"NCCL_PROTO": "LL"}), "torch", "torch").spec
    assert spec.environment == {"NCCL_ALGO": "Ring", "NCCL_PROTO": "LL"}


@pytest.mark.parametrize("name", ["NCCL_GRAPH_FILE", "NCCL_TOPO_FILE"])
def test_missing_file_of_nccl_is_an_error(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu_collective.require_nccl_files()
    monkeypatch.setenv(name, str(tmp_path / "rings.xml"))
    with pytest.raises(ArgumentError, match=f"{name}=.*rings.xml: .* has no such file, and NCCL would choose"):
        gpu_collective.require_nccl_files()
    (tmp_path / "rings.xml").touch()
    gpu_collective.require_nccl_files()


def test_summary_shows_settings_of_gradients_and_of_nccl() -> None:
    facts = {"workers": 2, "formed": True, "by": "nccl", "size": 2, "settings": "fp16", "nccl": "NCCL_ALGO=Ring"}
    assert merging_text({**facts, "why": "its workers have GPUs"}) == (
        "a group of 2 by nccl (fp16), because its workers have GPUs; NCCL_ALGO=Ring"
    )
