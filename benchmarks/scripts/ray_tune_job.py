"""Searches of the benchmark by Ray Tune, on a Ray that this starts: FOLDER EXECUTORS CASE REUSE; writes result.json.

CASE is sixteen or asha; REUSE 1 reuses the trials' actors. A second search in the same Ray measures the ``seconds`` of
a running session.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.scripts import search_workload as work


def sleeping(config: dict[str, Any]) -> dict[str, float]:
    """Sleep for the configured seconds; the trial function of most searches."""
    time.sleep(config["seconds"])
    return {"metric": config["seconds"]}


def stepwise(config: dict[str, Any]) -> None:
    """Report a learning curve step by step; a trial that a scheduler can end."""
    from ray import tune

    for step in range(1, work.MAX_STEP + 1):
        time.sleep(config["trial"]["step_s"])
        tune.report({"metric": work.value_at(step, config["trial"]["quality"])})


def search(case: str, folder: str, executors: int, reuse: bool) -> dict[str, Any]:
    """Run one search and return its seconds from call to result, best value, trials and steps."""
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler

    scheduler = None
    function: Any = sleeping
    space: dict[str, Any] = {"seconds": tune.grid_search(list(work.SIXTEEN))}
    if case == "asha":
        function, trials = stepwise, work.asha_trials()
        scheduler = ASHAScheduler(
            max_t=work.MAX_STEP, grace_period=1, reduction_factor=work.FACTOR, metric="metric", mode="max"
        )
        space = {"trial": tune.grid_search(trials)}
    began = time.monotonic()
    tuner = tune.Tuner(
        tune.with_resources(function, {"cpu": 1}),
        param_space=space,
        tune_config=tune.TuneConfig(scheduler=scheduler, reuse_actors=reuse, max_concurrent_trials=executors),
        run_config=tune.RunConfig(storage_path=os.path.join(folder, "results"), verbose=0),
    )
    results = tuner.fit()
    seconds = time.monotonic() - began
    best = results.get_best_result("metric", "max")
    steps = sum((result.metrics or {}).get("training_iteration", 0) for result in results)
    return {"seconds": seconds, "best": best.metrics["metric"], "trials": len(results), "steps": steps}


if __name__ == "__main__":
    import ray

    folder, executors, case, reuse = sys.argv[1:]
    ray.init(num_cpus=int(executors), include_dashboard=False, _temp_dir=os.environ["TMPDIR"])
    facts = search(case, folder, int(executors), reuse == "1")
    facts["ended"] = time.monotonic()
    if case == "asha":
        again = search(case, folder, int(executors), reuse == "1")
        facts |= {"seconds": again["seconds"], "steps": again["steps"]}
    fresh = Path(folder, "result.tmp")
    fresh.write_text(json.dumps(facts))
    fresh.rename(Path(folder, "result.json"))
