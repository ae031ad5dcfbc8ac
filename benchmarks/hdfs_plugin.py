"""Files of a real HDFS through TensorFlow's ``tf.io.gfile``, compared with the bare client inside hopsml's plugin."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from benchmarks.figures import Report, measured, ratio_of
from benchmarks.launched import ROOT, Command, Launched, temporary_folder
from benchmarks.options import Options
from benchmarks.peers.base import SCRIPTS
from benchmarks.scripts.hdfs_files import BARE, OURS
from tools import build_tf_hdfs
from tools.hadoop.cluster import Cluster
from tools.hadoop.jars import CACHE, ensure_jars

LARGE, SMALL_FILES = 200 << 20, 1000
TIMEOUT_S = 900.0


def run(options: Options) -> Report:
    """Measure throughput relative to the bare client: its seconds over hopsml's, in the rounds of one process."""
    build_tf_hdfs.build()
    rounds, size = options.rounds_of(7, 2), options.choose(LARGE, LARGE // 4)
    found = _turns(options, rounds, size)
    figures = [
        ratio_of(f"data.plugin_{what}_ratio", found[what][BARE], found[what][OURS], BARE)
        for what in ("read", "write", "small")
    ]
    for what in ("read", "write"):
        speeds = [size / 1e6 / seconds for seconds in found[what][OURS]]
        figures.append(measured(f"data.plugin_{what}_mb_s", speeds, "MB/s"))
    notes = [
        f"plugin: a NameNode and DataNodes of this machine, loopback; a file of {size >> 20} MiB in pieces of 1 MiB, one "
        f"after the other; small: {SMALL_FILES} files of 1 kB, listed, then read one by one"
    ]
    return Report(figures, notes)


def _turns(options: Options, rounds: int, size: int) -> dict[str, dict[str, list[float]]]:
    with temporary_folder() as name:
        folder, cluster = Path(name), Cluster(Path(name) / "hadoop")
        cluster.start(ensure_jars(CACHE), guarded=True)
        try:
            answer = folder / "turns.json"
            script = SCRIPTS / "hdfs_files.py"
            numbers = [str(rounds), str(size), str(SMALL_FILES)]
            command = [sys.executable, str(script), cluster.namenode_url, *numbers, str(answer)]
            variables = {"PYTHONPATH": str(ROOT), "HADOOP_CONF_DIR": str(cluster.conf_dir), "TF_CPP_MIN_LOG_LEVEL": "2"}
            variables |= {"CUDA_VISIBLE_DEVICES": "", "HADOOP_USER_NAME": os.environ.get("USER", "root")}
            with Launched([Command(command, variables)], folder) as launched:
                launched.wait_until(answer.exists, TIMEOUT_S, "the end of the turns")
                found: dict[str, dict[str, list[float]]] = json.loads(answer.read_text())
        finally:
            cluster.stop(now=True, remove=True)
    options.say(f"of the plugin and of the bare client, seconds: {found}")
    return found
