"""``make demo-yarn``: train digits by spark-submit in cluster mode on a real HDFS and YARN, one executor for each GPU.

The cluster is started for this and stopped afterwards, whatever happens. GPUs are emulated if there are none.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from hopsml import submission
from hopsml.core import profiles
from hopsml.storage import filesystem, urls
from tools.hadoop.cluster import Cluster
from tools.hadoop.jars import ensure_jars
from tools.hadoop.spark import spark_conf, submit_env

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "spark_jobs" / "train_digits.py"
HOME = ROOT / ".cache" / "hadoop" / "demo"


def main() -> int:
    """Start the cluster, submit the job, show the result, stop the cluster; return the exit status."""
    began = time.monotonic()
    say("fetching Hadoop's jars (once)")
    jars = ensure_jars()
    cluster = Cluster(HOME)
    if cluster.started:
        cluster.stop(now=True, remove=True)
    try:
        say("starting NameNode, DataNodes, ResourceManager and two NodeManagers with two GPUs each")
        cluster.start(jars, guarded=True)
        say(f"ready after {time.monotonic() - began:.1f} s: {cluster.namenode_url}, {cluster.resource_manager.base}")
        record = train(cluster)
        record["total_seconds"] = round(time.monotonic() - began, 1)
    finally:
        say("stopping all daemons")
        cluster.stop(now=True, remove=True)
    print(json.dumps(record), flush=True)
    return 0 if record["state"] == "FINISHED" and record["yarn_final_state"] == "SUCCEEDED" else 1


def train(cluster: Cluster) -> dict[str, Any]:
    """Run spark-submit in cluster mode, and return the record of the run in HDFS."""
    project = f"{cluster.namenode_url}/Projects/demo"
    conf = spark_conf(executors=2, memory="1g", gpus=1)
    conf["spark.yarn.appMasterEnv.HOPSML_PROJECT_URL"] = project
    command = submission.build_command(profiles.load("yarn-cluster"), str(SCRIPT), conf=conf)
    say(f"hopsml submit --profile yarn-cluster {SCRIPT.name}: spark-submit, two executors, one GPU each")
    with subprocess.Popen(command, env=submit_env(cluster.conf_dir), stderr=subprocess.PIPE, text=True) as job:
        app_id = follow(job)
    state = cluster.wait_application(app_id)
    say(f"application {app_id}: {state.state}, {state.final_status}")
    if job.returncode:
        print(cluster.application_logs(app_id)[-6000:])
    return show(project, app_id, state.final_status)


def follow(job: subprocess.Popen[str]) -> str:
    """Print changes of YARN's state, and return the application's id."""
    app_id = last = ""
    assert job.stderr is not None
    for line in job.stderr:
        if "Submitted application " in line:
            app_id = line.split("Submitted application ")[1].split()[0]
        if "(state: " in line and (state := line.split("(state: ")[1].split(")")[0]) != last:
            last = state
            say(f"YARN: {state}")
        if not app_id and (" ERROR " in line or "Exception" in line):
            print(line, end="", flush=True)
    job.wait()
    if not app_id:
        raise SystemExit("spark-submit ended without an application; its output is above")
    return app_id


def show(project: str, app_id: str, final: str) -> dict[str, Any]:
    """Print the files of the run in HDFS, and return its record."""
    run = urls.join(project, "Experiments", f"{app_id}_1")
    say(f"files in {run}:")
    for file in sorted(filesystem.walk(run), key=lambda file: file.url):
        if not file.is_dir:
            print(f"  {file.length:>9} {urls.relative(file.url, run)}")
    status = read(urls.join(run, "status.json"))
    outputs = read(urls.join(run, ".outputs.json")) if status.get("state") == "FINISHED" else {}
    for worker in status.get("workers", []):
        gpus = ",".join(map(str, worker["gpu_indices"]))
        print(f"  rank {worker['rank']} on {worker['host']}, executor {worker['executor']}, GPU {gpus}")
    say(f"accuracy {outputs.get('accuracy')}, YARN's final state {final}")
    return {
        "accuracy": outputs.get("accuracy"),
        "workers": len(status.get("workers", [])),
        "run_dir": run,
        "state": status.get("state"),
        "application": app_id,
        "yarn_final_state": final,
    }


def read(url: str) -> dict[str, Any]:
    """Return the contents of a JSON file on any store; an empty dict if it does not exist."""
    if not filesystem.exists(url):
        return {}
    content: dict[str, Any] = json.loads(filesystem.for_url(url).read_bytes(url))
    return content


def say(text: str) -> None:
    """Print one line of progress."""
    print(f"hopsml demo-yarn: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
