"""What a checkpoint to HDFS each 50 steps costs the training: blocks of steps with and without, in turns.

A real NameNode and DataNode (tools/hadoop) on the same machine, so copying takes its share of the same cores. The mean
step of a block counts, not the median: a stall in one step of fifty would not show there.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from benchmarks.figures import Report, measured, ratio_of
from benchmarks.launched import Command, Launched, temporary_folder
from benchmarks.options import Options
from benchmarks.peers.base import SCRIPTS
from benchmarks.peers.hopsml import PEER
from benchmarks.scripts.checkpoint_job import BATCH, BLOCK
from hopsml.storage import filesystem, urls
from tools.hadoop.cluster import Cluster
from tools.hadoop.jars import CACHE, ensure_jars
from tools.hadoop.settings import Shape

TIMEOUT_S = 600.0


def run(options: Options) -> Report:
    """One run of two workers on a fresh HDFS."""
    jars, python = ensure_jars(), PEER.python(options.say)
    cluster = Cluster(CACHE / f"bench-{os.getpid()}")
    options.say("starting a NameNode and a DataNode")
    cluster.start(jars, Shape(datanodes=1, nodemanagers=1), guarded=True)
    try:
        times = measure(python, cluster, options.rounds_of(24, 6))
    finally:
        cluster.stop(now=True, remove=True)
        filesystem.close_all()
    steps = {kind: [seconds * 1000 / BLOCK for seconds in times[kind]] for kind in ("with", "without")}
    beside = "the same without checkpoints"
    return Report(
        [
            ratio_of("checkpoint.stall_ratio", steps["with"], steps["without"], beside),
            measured("checkpoint.step_ms", steps["with"], "ms", beside, steps["without"]),
            measured("checkpoint.save_ms", [seconds * 1000 for seconds in times["saves"]], "ms"),
            measured("checkpoint.others_ms", others_ms(times, "with"), "ms", beside, others_ms(times, "without")),
        ],
        [
            f"checkpoint: blocks of {BLOCK} steps of {BATCH} examples with one checkpoint of 0.9 MB and blocks without; "
            "save: how long the chief's training function is in Checkpointer.save; others: processor time in such a block "
            "of all that is not a worker, on the same two cores: HDFS, mirror, agents"
        ],
    )


def others_ms(times: dict[str, Any], kind: str) -> list[float]:
    """Processor time of a block that none of the workers used."""
    blocks = zip(*(worker[kind] for worker in times["used"]), strict=True)
    return [1000 * (workers[0][1] - sum(own for own, _ in workers)) for workers in blocks]


def measure(python: Path, cluster: Cluster, blocks: int) -> dict[str, Any]:
    """What scripts/checkpoint_job.py found, once its checkpoints have arrived in HDFS."""
    with temporary_folder() as name:
        folder = Path(name)
        report = folder / "times.json"
        project = f"{cluster.namenode_url}/Projects/bench"
        variables = {"HOPSML_PROJECT_URL": project, "HADOOP_CONF_DIR": str(cluster.conf_dir), "HOPSML_PROFILE": "local"}
        script = [str(python), str(SCRIPTS / "checkpoint_job.py"), str(report), str(blocks)]
        with Launched([Command(script, variables)], folder) as launched:
            launched.wait_until(lambda: launched.processes[0].poll() is not None, TIMEOUT_S, "the end of the run")
            if launched.processes[0].returncode:
                raise RuntimeError(f"the run failed:\n{launched.tail()}")
        arrived = [file.url for file in filesystem.walk(urls.join(project, "Experiments")) if "/step-" in file.url]
        if not arrived:
            raise RuntimeError(f"no checkpoint has arrived below {project}; the figure would mean nothing")
        workers = [json.loads(Path(f"{report}-{rank}").read_text()) for rank in range(2)]
        return {**workers[0], "used": [worker["used"] for worker in workers]}
