"""Program in client mode that tests interrupt or kill; it reads commands as JSON lines.

{"do": "train", "folder": "..."}          collective_all_reduce that does not end by itself
{"do": "stop-spark", "folder": "..."}     the same, with the SparkContext stopped during it, by Python or Spark
{"do": "elastic", "folder": "..."}        an elastic training that does not end by itself
{"do": "search", "folder": "..."}         a random search over twelve numbers, which records finished trials
{"do": "quick"}                           a run that returns at once
{"do": "roles", "folder": "..."}          a chief and its servers without a framework; answers the GPUs of each, by role
"""

from __future__ import annotations

import json
import sys
from typing import Any

from hopsml import experiment
from tests.helpers.clock import END_S
from tests.helpers.cluster import workloads


def train(folder: str) -> Any:
    return experiment.collective_all_reduce(
        workloads.sleep_with_trace, args={"folder": folder}, num_workers=2, keep_warm=60, progress=False
    )


def elastic(folder: str) -> Any:
    return experiment.collective_all_reduce(
        workloads.sleep_with_trace, args={"folder": folder}, min_workers=2, max_workers=2, progress=False
    )


def stop_spark(folder: str, by_itself: bool = False, **size: int) -> Any:
    from pathlib import Path

    from pyspark import SparkContext

    run = experiment.submit(workloads.sleep_with_trace, args={"folder": folder}, progress=False, **size)
    workloads.traces(Path(folder))
    context = SparkContext._active_spark_context
    if by_itself:  # as if the master removes the application: the Python object is not notified
        context._jsc.sc().stop()
    else:
        context.stop()
    return run.result(END_S)


def noted(x: int, folder: str) -> float:
    import time
    from pathlib import Path

    time.sleep(0.3)
    with Path(folder, "ended").open("a") as file:
        file.write(f"{x}\n")
    return float(x)


def search(folder: str) -> Any:
    space = {"x": ("DISCRETE", list(range(12)))}
    return experiment.search(
        noted, space, searcher="random", num_trials=None, args={"folder": folder}, progress=False, deadline=200
    ).value


def quick() -> Any:
    return experiment.collective_all_reduce(lambda: "works", num_workers=2, keep_warm=60, progress=False).value


def roles(folder: str, servers: int, size: int, evaluator_gpu: bool = False) -> Any:
    from pathlib import Path

    from hopsml.cluster.shared.spec import Roles
    from tests.helpers.cluster.role_gpus import held_by_role
    from tests.helpers.cluster.roles_contract import submit

    done_file = Path(folder, "told")
    return held_by_role(submit(done_file, Roles(servers, True, evaluator_gpu), size=size), done_file)


VERBS = {"train": train, "elastic": elastic, "stop-spark": stop_spark, "search": search, "quick": quick, "roles": roles}


def answer(command: dict[str, Any]) -> dict[str, str]:
    verb = VERBS[command.pop("do")]
    try:
        return {"value": verb(**command)}
    except BaseException as error:  # noqa: BLE001 KeyboardInterrupt is one of the answers
        return {"error": type(error).__name__, "message": str(error)}


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
