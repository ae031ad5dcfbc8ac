"""Tests of ``hopsml.load_checkpoint``: the trained model, from every kind of checkpoint."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import hopsml
from hopsml.errors import ArgumentError
from hopsml.storage import checkpoints, trust
from hopsml.training.elastic import commits
from hopsml.training.elastic.commits import Snapshot
from tests.helpers.training.group import run_group


@pytest.mark.tensorflow
def test_load_checkpoint_restores_keras_models_of_every_kind_of_checkpoint(tmp_path: Path) -> None:
    (found,) = run_group("loading:loaded", tmp_path, workers=1, place=str(tmp_path / "there"))
    assert len(found["same"]) == 7 and all(found["same"].values()), found["same"]
    assert found["values"]["fit"] == {"step": 0, "fit": 1, "done": 0, "history": {"loss": [1.0]}, "rate": None}
    assert found["values"]["saved"] == {"step": 7, "epoch": 2}
    for name, width, deeper, unbuilt in found["refused"]:
        assert "has no object 'net'; it has: " in name and "model" in name
        assert "shape" in width.lower()
        assert "is from another model: it lacks ['model/" in deeper
        assert "load_checkpoint(): objects must be built, as for a State: " in unbuilt


@pytest.mark.torch
@pytest.mark.usefixtures("torch_imported")
def test_load_checkpoint_restores_a_torch_module_with_or_without_wrapper(tmp_path: Path) -> None:
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
        pieces = commits.encode(state._snapshot())
        (folder / "state.hopsml").write_bytes(b"".join(bytes(piece) for piece in pieces))
        for model in (build(), Wrapper(build())):
            assert hopsml.load_checkpoint(folder, net=model) == {"step": 0, "losses": [0.5]}
            torch.testing.assert_close(getattr(model, "module", model).state_dict(), trained.state_dict())
        with pytest.raises(ArgumentError, match=r"no object 'model'; it has: losses, net, optimizer"):
            hopsml.load_checkpoint(folder, model=build())
        with pytest.raises(ArgumentError, match=r"(?s)contains a different net: .*size mismatch"):
            hopsml.load_checkpoint(folder, net=build(5))
        with pytest.raises(ArgumentError, match="a list has no load_state_dict"):
            hopsml.load_checkpoint(folder, losses=[])


@pytest.mark.fast
def test_load_checkpoint_names_a_folder_that_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").touch()
    with pytest.raises(
        ArgumentError, match=r"holds neither state\.hopsml nor checkpoint\.json.*with the library that wrote them"
    ):
        hopsml.load_checkpoint(tmp_path)
    (tmp_path / "state.hopsml").write_bytes(b"short")
    with pytest.raises(ArgumentError, match="not a commit"):
        hopsml.load_checkpoint(tmp_path)


class _RunsCode:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


@pytest.mark.fast
def test_checkpoint_of_an_untrusted_user_is_not_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(trust.VARIABLE, raising=False)
    mark, made, run = tmp_path / "code-ran", tmp_path / "made", str(tmp_path / "checkpoints")
    made.mkdir()
    pieces = commits.encode(Snapshot(3, {}, {"planted": pickle.dumps(_RunsCode(mark))}))
    (made / "state.hopsml").write_bytes(b"".join(bytes(piece) for piece in pieces))
    stored = Path(checkpoints.commit(made, run, 3))
    (stored / "state.hopsml").chmod(0o664)
    loads: list[Callable[[], object]] = [
        lambda: hopsml.load_checkpoint(stored),
        lambda: checkpoints.fetch(run, 3, tmp_path / "fetched"),
        lambda: commits.newest_commit(cast("Any", SimpleNamespace(commits=None, resume_checkpoint=stored))),
    ]
    for load in loads:
        with pytest.raises(ArgumentError, match=r"can be written by users other than .*loading a checkpoint executes"):
            load()
    if os.geteuid() == 0:
        (stored / "state.hopsml").chmod(0o644)
        os.chown(stored / "state.hopsml", 65534, 65534)
        for load in loads:
            with pytest.raises(ArgumentError, match="belongs to nobody, and loading a checkpoint executes"):
                load()
        assert not mark.exists() and not (tmp_path / "fetched").exists()
        monkeypatch.setenv(trust.VARIABLE, "nobody")
        loads[1]()
        hopsml.load_checkpoint(tmp_path / "fetched")
        assert mark.exists()


@pytest.mark.fast
def test_state_committed_in_a_group_folder_is_writable_by_its_owner_only(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "state.hopsml").write_bytes(b"x")
    shared = tmp_path / "checkpoints"
    shared.mkdir()
    shared.chmod(0o770)
    before = os.umask(0o002)
    try:
        stored = Path(checkpoints.commit(tmp_path / "made", str(shared), 1))
    finally:
        os.umask(before)
    assert (stored / "state.hopsml").stat().st_mode & 0o777 == 0o640
    assert checkpoints.fetch(str(shared), 1, tmp_path / "fetched").is_dir()
