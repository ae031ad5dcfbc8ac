"""GPUs that members of a run of ``roles_contract.submit`` hold and see, by role."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

from hopsml.experiment.run import Run
from tests.helpers.clock import END_S
from tests.helpers.cluster.roles_contract import answers

Held = tuple[tuple[int, ...], str]  # GPUs that its slot has, CUDA_VISIBLE_DEVICES of its worker


def held_by_role(run: Run, end_file: Path) -> dict[str, list[Held]]:
    """Let the run finish, and return the GPUs of its members; ``end_file``: the file that ends it."""
    answers(run, worker0=0, ps0=0)
    end_file.touch()
    result = run.result(END_S)
    logs = Path(run.run_dir.removeprefix("file://"), "logs")
    held = defaultdict[str, list[Held]](list)
    for worker in result.workers:
        config, visible, *_ = (logs / f"g0-rank{worker['rank']}.log").read_text().splitlines()
        held[json.loads(config)["task"]["type"]].append((tuple(worker["gpu_indices"]), visible))
    return dict(held)
