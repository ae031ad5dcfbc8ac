"""What a checkpoint to HDFS each 50 steps costs the training: blocks of steps with and without, in turns.

A real NameNode and DataNode (tools/hadoop) on the same machine, so copying takes its share of the same cores. The mean
step of a block counts, not the median: a stall in one step of fifty would not show there.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from benchmarks.figures import Report, measured, ratio_of
from benchmarks.launched import Command, Launched, temporary_folder
from benchmarks.options import Options
from benchmarks.peers.base import SCRIPTS
from benchmarks.scripts.checkpoint_job import BATCH, BLOCK, EVERY
from hopsml.storage import filesystem, urls
from tools.hadoop.cluster import Cluster
from tools.hadoop.jars import CACHE, ensure_jars
from tools.hadoop.settings import Shape

TIMEOUT_S = 600.0


def run(options: Options) -> Report:
    """One run of two workers on a fresh HDFS."""
    jars = ensure_jars()
    cluster = Cluster(CACHE / f"bench-{os.getpid()}")
    options.say("starting a NameNode and a DataNode")
    cluster.start(jars, Shape(datanodes=1, nodemanagers=1), guarded=True)
    try:
        times = measure(cluster, options.rounds_of(12, 3))
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
        ],
        [
            f"checkpoint: blocks of {BLOCK} steps of {BATCH} examples, a checkpoint of 0.9 MB each {EVERY} steps; save: how "
            "long the chief's training function is in Checkpointer.save"
        ],
    )


def measure(cluster: Cluster, blocks: int) -> dict[str, list[float]]:
    """What scripts/checkpoint_job.py found, once its checkpoints have arrived in HDFS."""
    with temporary_folder() as name:
        folder = Path(name)
        report = folder / "times.json"
        project = f"{cluster.namenode_url}/Projects/bench"
        variables = {"HOPSML_PROJECT_URL": project, "HADOOP_CONF_DIR": str(cluster.conf_dir), "HOPSML_PROFILE": "local"}
        script = [sys.executable, str(SCRIPTS / "checkpoint_job.py"), str(report), str(blocks)]
        with Launched([Command(script, variables)], folder) as launched:
            launched.wait_until(lambda: launched.processes[0].poll() is not None, TIMEOUT_S, "the end of the run")
            if launched.processes[0].returncode:
                raise RuntimeError(f"the run failed:\n{launched.tail()}")
        arrived = [file.url for file in filesystem.walk(urls.join(project, "Experiments")) if "/step-" in file.url]
        if not arrived:
            raise RuntimeError(f"no checkpoint has arrived below {project}; the figure would mean nothing")
        return dict(json.loads(report.read_text()))
