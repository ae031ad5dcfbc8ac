"""Training function that stores files in HDFS with nothing but delegation tokens, each through new connections."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

CHILD = """
import sys
from hopsml.storage.filesystem import for_url
for_url(sys.argv[1]).write_bytes(sys.argv[1], b"child")
"""


def store_until(local: str, folder: str, with_child: bool = False) -> None:
    """Write a file to HDFS each second until ``stop`` exists in the local folder; leave number and token file there.

    Open connections outlive the tokens with which they began, so each file has new ones. ``written-RANK`` in the local
    folder has name and length of each file once HDFS has confirmed it.
    """
    import hopsml
    from hopsml.storage import filesystem
    from hopsml.storage.filesystem import for_url

    rank = int(os.environ["RANK"])
    count = 0
    while not Path(local, "stop").exists():
        url = f"{folder}/{rank}-{count}"
        filesystem.close_all()
        for_url(url).write_bytes(url, b"worker")
        _note(local, rank, f"{rank}-{count}", b"worker")
        if with_child:
            subprocess.run([sys.executable, "-c", CHILD, f"{url}-child"], check=True)
            _note(local, rank, f"{rank}-{count}-child", b"child")
        count += 1
        hopsml.report(step=count)
        print(f"file {count}", flush=True)
        time.sleep(1.0)
    path = os.environ.get("HADOOP_TOKEN_FILE_LOCATION", "")  # none with a ticket
    mode = stat.S_IMODE(os.stat(path).st_mode) if path else 0
    Path(local, f"rank-{rank}.json").write_text(json.dumps({"count": count, "path": path, "mode": mode}))


def _note(local: str, rank: int, name: str, content: bytes) -> None:
    """Note in ``written-RANK`` that HDFS has confirmed a file."""
    with Path(local, f"written-{rank}").open("a") as notes:
        notes.write(f"{name} {len(content)}\n")


def log_until(local: str) -> int:
    """Write into the run's folder of events, and print, each 0.1 s until ``stop`` exists; return the number of times.

    hopsml stores both, so that the function does not notice a store that refuses them; ``events-RANK`` in the local folder
    is what must be stored.
    """
    import hopsml

    rank, count = int(os.environ["RANK"]), 0
    events = Path(hopsml.tensorboard.logdir(), f"events.out.tfevents.{rank}")
    while not Path(local, "stop").exists():
        count += 1
        for path in (events, Path(local, f"events-{rank}")):
            with path.open("ab") as file:
                file.write(b"%08d" % count)
        print(f"line {count}", flush=True)
        hopsml.report(step=count)
        time.sleep(0.1)
    return count


def evaluate_until(folder: str, local: str) -> dict[str, float]:
    """Return a loss for a checkpoint; ``evaluator`` in the local folder gets the token file of this process."""
    Path(local, "evaluator").write_text(os.environ.get("HADOOP_TOKEN_FILE_LOCATION", ""))
    return {"loss": float(len(list(Path(folder).iterdir())))}


def commit_steps(local: str, folder: str) -> int:
    """Commit training state, and store a file by new connections, in each step; return the last one.

    ``tokens-PID`` in the local folder has the path of the agent's token file. ``last`` gets the number of the last step,
    so far ahead that all workers read it in time, as they must end together.
    """
    import hopsml
    from hopsml.storage import filesystem
    from hopsml.storage.filesystem import for_url

    Path(local, f"tokens-{os.getpid()}").write_text(os.environ["HADOOP_TOKEN_FILE_LOCATION"])
    state = hopsml.elastic.State(step=0)
    for _ in state.resume(hopsml.elastic.Sampler(1_000_000, 2)):
        if Path(local, "last").exists() and state.step >= int(Path(local, "last").read_text()):
            break
        state.step += 1
        name = f"{os.getpid()}-{state.step}"
        filesystem.close_all()
        for_url(folder).write_bytes(f"{folder}/{name}", b"worker")
        _note(local, os.getpid(), name, b"worker")
        state.commit(every=1)
        time.sleep(0.3)
    return int(state.step)
