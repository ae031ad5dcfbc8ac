"""Tests of ``hopsml.load_checkpoint``: the trained model, from every kind of checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hopsml
from hopsml.errors import ArgumentError
from hopsml.training.elastic import commit_format
from tests.training.group import run_group


@pytest.mark.tensorflow
def test_a_model_of_keras_of_fit_of_a_state_and_of_a_checkpointer(tmp_path: Path) -> None:
    (found,) = run_group("loading:loaded", tmp_path, workers=1, place=str(tmp_path / "there"))
    assert len(found["same"]) == 7 and all(found["same"].values()), found["same"]
    assert found["values"]["fit"] == {"step": 0, "fit": 1, "done": 0, "history": {"loss": [1.0]}, "rate": None}
    assert found["values"]["saved"] == {"step": 7, "epoch": 2}
    for name, width, deeper, unbuilt in found["refused"]:
        assert "holds nothing named 'net'; it has: " in name and "model" in name
        assert "shape" in width.lower()
        assert "is of another model: it lacks ['model/" in deeper
        assert "load_checkpoint(): objects have to be built, as for a State: " in unbuilt


@pytest.mark.torch
@pytest.mark.usefixtures("torch_imported")
def test_a_module_of_torch_also_out_of_a_wrapper(tmp_path: Path) -> None:
    import torch

    def build(units: int = 2) -> Any:
        return torch.nn.Sequential(torch.nn.Linear(3, units), torch.nn.BatchNorm1d(units))

    class Wrapper(torch.nn.Module):
        def __init__(self, module: Any) -> None:
            super().__init__()
            self.module = module

    trained = build()
    optimizer = torch.optim.Adam(trained.parameters())
    trained(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    for name, module in (("plain", trained), ("wrapped", Wrapper(trained))):
        folder = tmp_path / name
        folder.mkdir()
        state = hopsml.elastic.State(net=module, optimizer=optimizer, losses=[0.5])
        pieces = commit_format.encode(state._snapshot())
        (folder / "state.hopsml").write_bytes(b"".join(bytes(piece) for piece in pieces))
        for model in (build(), Wrapper(build())):
            assert hopsml.load_checkpoint(folder, net=model) == {"step": 0, "losses": [0.5]}
            torch.testing.assert_close(getattr(model, "module", model).state_dict(), trained.state_dict())
        with pytest.raises(ArgumentError, match=r"nothing named 'model'; it has: losses, net, optimizer"):
            hopsml.load_checkpoint(folder, model=build())
        with pytest.raises(ArgumentError, match=r"(?s)holds another net: .*size mismatch"):
            hopsml.load_checkpoint(folder, net=build(5))
        with pytest.raises(ArgumentError, match="a list has no load_state_dict"):
            hopsml.load_checkpoint(folder, losses=[])


@pytest.mark.fast
def test_a_folder_of_the_users_own_is_named(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").touch()
    with pytest.raises(
        ArgumentError, match=r"holds neither state\.hopsml nor checkpoint\.json.*are read by what wrote them"
    ):
        hopsml.load_checkpoint(tmp_path)
    (tmp_path / "state.hopsml").write_bytes(b"short")
    with pytest.raises(ArgumentError, match="not a commit"):
        hopsml.load_checkpoint(tmp_path)
