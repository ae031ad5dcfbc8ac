"""Tests of ``experiment.jax`` in elastic groups: a new process and ``jax.distributed`` for each generation."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from hopsml.experiment import collective, plan
from hopsml.experiment.options import FrameworkOptions
from tests.helpers.clock import END_S
from tests.helpers.cluster.workloads import wait_until
from tests.integration.experiment.test_torch import logged_steps

pytestmark = pytest.mark.torch


def trains(folder: str) -> dict[str, Any]:
    """Least squares over the devices of all workers; writes down each step."""
    import os
    import time
    from pathlib import Path

    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    import hopsml

    assert (jax.process_index(), jax.process_count()) == (hopsml.distributed.rank(), hopsml.distributed.world_size())
    rows = NamedSharding(Mesh(np.array(jax.devices()), ("workers",)), PartitionSpec("workers"))
    x = np.random.default_rng(0).random((96, 3)).astype(np.float32)
    y = x @ np.array([1.0, -2.0, 0.5], np.float32)

    @jax.jit
    def step(w: Any, x: Any, y: Any) -> Any:
        return w - 0.3 * jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)

    state = hopsml.elastic.State(w=np.zeros(3, np.float32), worlds=[])
    log = Path(folder, f"steps-{os.getpid()}")
    for batch in state.resume(hopsml.elastic.Sampler(96, global_batch_size=12, seed=1, epochs=40)):
        parts = (jax.make_array_from_process_local_data(rows, one[batch]) for one in (x, y))
        state.w = np.asarray(step(state.w, *parts))
        state.worlds = [*state.worlds, jax.process_count()]
        with log.open("a") as file:
            file.write(f"{jax.process_index()} {jax.process_count()} {state.batches}\n")
        state.commit(every=5)
        if not Path(folder, "hurry").exists():
            time.sleep(0.02)
    return {"json": [state.w.tolist(), state.worlds]}


@pytest.mark.variant
def test_jax_group_loses_only_steps_since_the_last_commit_even_with_rank_0(store: Path, tmp_path: Path) -> None:
    options = FrameworkOptions(trains, progress=False, min_workers=1, max_workers=2, args={"folder": str(tmp_path)})
    run = plan.start(collective.build(options, "jax", "jax"))

    def both(but: frozenset[int]) -> dict[int, int]:
        """Processes by rank, once two that are new have made steps enough for a commit."""
        found = {
            made[-1][0]: pid for pid, made in logged_steps(tmp_path).items() if pid not in but and made[-1][1] == 2
        }
        enough = all(len(logged_steps(tmp_path)[pid]) > 10 for pid in found.values())
        return found if found.keys() == {0, 1} and enough else {}

    seen: set[int] = set()
    for victim in (1, 0):
        workers = wait_until(lambda but=frozenset(seen): both(but), "steps of two")
        os.kill(workers[victim], signal.SIGKILL)
        seen |= set(logged_steps(tmp_path))
    wait_until(lambda: logged_steps(tmp_path).keys() - seen, "steps behind the second loss")
    (tmp_path / "hurry").touch()
    weights, worlds = run.result(END_S).metrics["json"]
    assert len(worlds) == 320 and 2 in worlds
    assert weights == pytest.approx([1.0, -2.0, 0.5], abs=1e-3)
    assert len(logged_steps(tmp_path)) >= 5, "no process was in two generations"
