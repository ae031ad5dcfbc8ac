"""Cost of a checkpoint to HDFS every 50 steps: blocks of steps with and without checkpoints, alternating.

A real NameNode and DataNode (tools/hadoop) run on the same machine, so copying uses a share of the same cores. On a
cluster that work runs on other machines. ``stall_ratio`` therefore counts the training's own processes only: the
processor time that HDFS used is subtracted from each block. ``wall_ratio`` is without that correction, and HDFS's time
is reported for both. The mean step of a block is used, not the median: a stall in one step of fifty would not change
the median.
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
WARM = 3  # checkpoints before those that are counted; they allocate the memory
_OWN, _HDFS, _ALL = range(3)  # processor seconds of a block


def run(options: Options) -> Report:
    """Measure two workers with a fresh HDFS, and one worker alone with a large state."""
    report = run_on_hdfs(options)
    report.add(run_large(options))
    return report


def run_on_hdfs(options: Options) -> Report:
    """Measure the same training with checkpoints and without."""
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
    hdfs = {kind: [1000 * used[_HDFS] for used in times["used"][0][kind]] for kind in steps}
    own = {kind: own_ms(steps[kind], hdfs[kind]) for kind in steps}
    beside = "the same without checkpoints"
    return Report(
        [
            ratio_of("checkpoint.stall_ratio", own["with"], own["without"], beside),
            ratio_of("checkpoint.wall_ratio", steps["with"], steps["without"], beside),
            measured("checkpoint.hdfs_ms", hdfs["with"], "ms", beside, hdfs["without"]),
            measured("checkpoint.step_ms", steps["with"], "ms", beside, steps["without"]),
            measured("checkpoint.save_ms", [seconds * 1000 for seconds in times["saves"]], "ms"),
            measured("checkpoint.others_ms", others_ms(times, "with"), "ms", beside, others_ms(times, "without")),
        ],
        [
            f"checkpoint: blocks of {BLOCK} steps of {BATCH} examples with one checkpoint of 0.9 MB and blocks without; "
            "save: how long the chief's training function is in Checkpointer.save; hdfs: processor time of NameNode and "
            "DataNode in such a block; others: of all that is neither them nor a worker: mirror, writer, agents, kernel; "
            "stall: by the training's own processes, so each block is shortened by hdfs over the number of cores; wall: as "
            "it is"
        ],
    )


def measure_save(size_mb: int, saves: int) -> dict[str, list[float]]:
    """Return milliseconds of each ``save`` call and of the delay that it causes; runs in a worker.

    ``call`` is the call alone; ``hold`` adds the time by which the next update is slower than the update before the
    call.
    """
    import time

    import tensorflow as tf

    import hopsml

    variable = tf.Variable(tf.ones([size_mb * 250_000]))
    change = tf.ones_like(variable)
    checkpointer = hopsml.tensorflow.Checkpointer(variable=variable)
    found: dict[str, list[float]] = {"call": [], "hold": []}

    def update() -> float:
        began = time.perf_counter()
        variable.assign_sub(change)
        return 1000 * (time.perf_counter() - began)

    update()  # traced and warm
    for step in range(saves):
        usual, began = update(), time.perf_counter()
        checkpointer.save(step)
        found["call"].append(1000 * (time.perf_counter() - began))
        found["hold"].append(found["call"][-1] + update() - usual)
        checkpointer.wait()
    return {name: values[WARM:] for name, values in found.items()}


def run_large(options: Options) -> Report:
    """Measure for how long ``save`` delays a training with a state of 100 MB."""
    from hopsml import experiment

    with temporary_folder() as folder:
        os.environ["HOPSML_PROJECT_URL"] = f"file://{folder}"
        try:
            args = {"size_mb": 100, "saves": WARM + options.choose(20, 5)}
            run = experiment.submit(measure_save, args=args, num_workers=1, profile="local", progress=False)
            values = run.result(TIMEOUT_S).value
        finally:
            del os.environ["HOPSML_PROJECT_URL"]
            experiment.shutdown()
    return Report(
        [
            measured("checkpoint.hold_100mb_ms", values["hold"], "ms"),
            measured("checkpoint.call_100mb_ms", values["call"], "ms"),
        ],
        [
            "checkpoint of 100 MB: call is Checkpointer.save; hold is that and what the update behind it, which copies a "
            f"variable that is still being read, takes longer than the one before; without the first {WARM}, whose memory "
            "is being made; each is on disk before the next"
        ],
    )


def own_ms(steps_ms: list[float], hdfs_ms: list[float]) -> list[float]:
    """Return each block's mean step in ms without HDFS's share of the cores, a lower bound of the cost."""
    cores = len(os.sched_getaffinity(0))
    return [step - used / cores / BLOCK for step, used in zip(steps_ms, hdfs_ms, strict=True)]


def others_ms(times: dict[str, Any], kind: str) -> list[float]:
    """Return processor time in ms of each block that neither the workers nor HDFS used."""
    blocks = zip(*(worker[kind] for worker in times["used"]), strict=True)
    return [1000 * (workers[0][_ALL] - workers[0][_HDFS] - sum(used[_OWN] for used in workers)) for workers in blocks]


def measure(python: Path, cluster: Cluster, blocks: int) -> dict[str, Any]:
    """Run scripts/checkpoint_job.py and return its times, after its checkpoints have arrived in HDFS."""
    with temporary_folder() as name:
        folder = Path(name)
        report = folder / "times.json"
        project = f"{cluster.namenode_url}/Projects/bench"
        hdfs = [str(pid) for name, pid in cluster.state.pids.items() if name.startswith(("nn", "dn"))]
        variables = {"HOPSML_PROJECT_URL": project, "HADOOP_CONF_DIR": str(cluster.conf_dir), "HOPSML_PROFILE": "local"}
        script = [str(python), str(SCRIPTS / "checkpoint_job.py"), str(report), str(blocks), *hdfs]
        with Launched([Command(script, variables)], folder) as launched:
            launched.wait_until(lambda: launched.processes[0].poll() is not None, TIMEOUT_S, "the end of the run")
            if launched.processes[0].returncode:
                raise RuntimeError(f"the run failed:\n{launched.tail()}")
        arrived = [file.url for file in filesystem.walk(urls.join(project, "Experiments")) if "/step-" in file.url]
        if not arrived:
            raise RuntimeError(f"no checkpoint has arrived below {project}; the figure would mean nothing")
        workers = [json.loads(Path(f"{report}-{rank}").read_text()) for rank in range(2)]
        return {**workers[0], "used": [worker["used"] for worker in workers]}
