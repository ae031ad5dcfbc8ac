"""Checkpoints without a framework: arrays in one file, written by a process that a test can delay."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from hopsml.training.checkpoint_files import CheckpointDescription, FileDescription, complete_checkpoints, folder_name
from hopsml.training.checkpoint_writer import CheckpointSender, HeldCheckpoint, pack

_WRITE = f"{__name__}:write"


def write(prefix: str, arrays: dict[str, Any]) -> None:
    """Write this process's pid to ``writer`` next to the checkpoint directory, and wait while ``hold`` exists."""
    place = Path(prefix).parents[2]
    (place / "writer").write_text(str(os.getpid()))
    while (place / "hold").exists():
        time.sleep(0.005)
    np.savez(prefix, **arrays)


def save(
    handover: CheckpointSender, directory: Path, step: int, keep: int = 3, megabytes: float = 0.01
) -> HeldCheckpoint:
    """All numbers of the state are its step."""
    target = str(directory / folder_name(step))
    description = CheckpointDescription(target, f'{{"step": {step}}}'.encode(), step, keep, True, 0o077)
    arrays = {"state": np.full(int(megabytes * 250_000), step, np.float32), "text": np.array(b"\0a\0", object)}
    held = handover.send_snapshot(pack(arrays, description, _WRITE), target)
    assert held is not None
    return held


def save_file(handover: CheckpointSender, path: Path, content: int) -> HeldCheckpoint:
    """Write a file with this number, and its description next to it."""
    description = FileDescription(str(path), 0o077, f"{path}.txt", str(content))
    held = handover.send_snapshot(pack({"state": np.full(99, content)}, description, _WRITE), description.target)
    assert held is not None
    return held


def read_file(path: Path) -> int:
    """Return the number in a file, which its description must also contain."""
    with np.load(path) as content:
        (number,) = set(content["state"].tolist())
    assert Path(f"{path}.txt").read_text() == str(number)
    return int(number)


def found(directory: Path) -> list[int]:
    """The steps of a directory's checkpoints, each of which holds what was saved."""
    steps = []
    for saved in complete_checkpoints(directory):
        with np.load(saved.folder / "variables.npz", allow_pickle=True) as content:
            assert set(content["state"]) == {saved.step} and content["text"].item() == b"\0a\0"
        steps.append(saved.step)
    return steps
