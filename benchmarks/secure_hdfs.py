"""Large files of a Kerberized HDFS with ``privacy`` and encrypted transfer: hopsml's store and the bare client."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.figures import Report, measured, ratio_of
from benchmarks.launched import ROOT, Command, Launched, temporary_folder
from benchmarks.options import Options
from benchmarks.peers.base import SCRIPTS
from benchmarks.scripts.secure_files import BARE, OURS, PIECE
from tools.hadoop.cluster import Cluster
from tools.hadoop.jars import CACHE, ensure_jars
from tools.hadoop.kerberos import Security
from tools.hadoop.settings import Shape

LARGE = 200 << 20
TIMEOUT_S = 900.0
SHAPE, SECURITY = Shape(datanodes=1, nodemanagers=0, resourcemanagers=0), Security("privacy", encrypt=True)


def run(options: Options) -> Report:
    """Measure throughput relative to the bare client: its seconds over hopsml's, in pairs of one process."""
    rounds, size = options.rounds_of(3, 3), options.choose(LARGE, LARGE // 4)
    found = _turns(options, rounds, size)
    report = Report()
    for what in ("write", "read", "stream"):
        report.figures.append(ratio_of(f"data.secure_{what}_ratio", found[what][BARE], found[what][OURS], BARE))
        speeds = [size / 1e6 / seconds for seconds in found[what][OURS]]
        report.figures.append(measured(f"data.secure_{what}_mb_s", speeds, "MB/s"))
    report.notes.append(
        f"secure: Kerberos, privacy and dfs.encrypt.data.transfer with AES; a NameNode and a DataNode of this machine; a "
        f"file of {size >> 20} MiB in pieces of {PIECE >> 20} MiB; write and read: from and to a local file, as mirrors and "
        "checkpoints do; stream: by open_read, which fetches ranges"
    )
    return report


def _turns(options: Options, rounds: int, size: int) -> dict[str, dict[str, list[float]]]:
    with temporary_folder() as name:
        folder, cluster = Path(name), Cluster(Path(name) / "hadoop")
        cluster.start(ensure_jars(CACHE), SHAPE, guarded=True, security=SECURITY)
        try:
            answer = folder / "turns.json"
            script = [sys.executable, str(SCRIPTS / "secure_files.py")]
            command = [*script, cluster.namenode_url, str(rounds), str(size), str(answer)]
            ticket = cluster.kdc.environment("alice")
            variables = {**ticket, "PYTHONPATH": str(ROOT), "HADOOP_CONF_DIR": str(cluster.conf_dir)}
            with Launched([Command(command, variables)], folder) as launched:
                launched.wait_until(answer.exists, TIMEOUT_S, "the end of the turns")
                found: dict[str, dict[str, list[float]]] = json.loads(answer.read_text())
        finally:
            cluster.stop(now=True, remove=True)
    options.say(f"of hopsml's store and of the bare client, seconds: {found}")
    return found
