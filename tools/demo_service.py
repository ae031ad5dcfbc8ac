"""``make demo-service``: kill the job service on a real YARN by -9, and check that no job is lost or doubled.

It submits ``spark_jobs/digits_job`` (a search, an elastic training, an evaluator) and two further jobs, kills the service
while they run and wait, restarts it, and waits for the end. The last line of output is JSON.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import yaml

from hopsml.client import Client, ServiceJob
from hopsml.core.states import Lifecycle
from tools.hadoop.cluster import Cluster
from tools.hadoop.jars import ensure_jars
from tools.hadoop.settings import Shape
from tools.hadoop.spark import spark_conf, submit_env

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / ".cache" / "hadoop" / "demo-service"
CODE = ROOT / "spark_jobs" / "digits_job"
WAIT_S = 900.0
SHAPE = Shape(nodemanagers=2, memory_mb=6144, vcores=6)
# A job with one task that calls the same functions.
ALONE = (
    "name: {name}\ntime_limit: 30m\ntasks: {{main: {{function: digits_job.py:{function}, framework: distributed}}}}\n"
)


def main() -> int:
    """Start the cluster, run the demo, stop the cluster; return the exit status."""
    say("fetching Hadoop's jars (once)")
    jars = ensure_jars()
    cluster = Cluster(HOME)
    if cluster.started:
        cluster.stop(now=True, remove=True)
    try:
        say("starting HDFS and YARN with two NodeManagers")
        cluster.start(jars, SHAPE, guarded=True)
        outcome = play(cluster, HOME / "service")
    finally:
        say("stopping all daemons")
        cluster.stop(now=True, remove=True)
    print(json.dumps(outcome), flush=True)
    return (
        0
        if outcome["finished"] == outcome["jobs"] and not outcome["lost"] + outcome["doubled"] + outcome["left_over"]
        else 1
    )


class Server:
    """Successive processes of ``hopsml server`` with the same state."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        conf = spark_conf(executors=1)
        profile = {
            "master": "yarn",
            "deploy_mode": "cluster",
            "store": f"{cluster.namenode_url}/Projects/demo",
            "spark": conf,
        }
        (folder / "demo.yaml").write_text(yaml.safe_dump(profile))
        self._folder = folder
        self._environment = {**submit_env(cluster.conf_dir), "HOPSML_CONF_DIR": str(folder), "PYTHONPATH": str(ROOT)}
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> Client:
        """Start a server process and return its client when it answers."""
        command = [sys.executable, "-c", "from hopsml.cli import main; main()", "server", "--profile", "demo"]
        command += ["--state", str(self._folder / "state")]
        self._process = subprocess.Popen(command, env=self._environment, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        url, _, token = self._process.stdout.readline().strip().partition("?token=")
        if not token:
            raise SystemExit("hopsml demo-service: the service did not start; its output is above")
        say(f"hopsml server: {url}")
        return Client(url, token)

    def end(self, number: signal.Signals) -> None:
        """Send a signal to the server process, and wait for its end."""
        if self._process is not None and self._process.stdout is not None:
            self._process.send_signal(number)
            self._process.wait()
            self._process.stdout.close()
            self._process = None


def play(cluster: Cluster, folder: Path) -> dict[str, int]:
    """Submit the jobs, kill and restart the service, wait for the jobs, and return the counts."""
    server = Server(cluster, folder)
    try:
        client = server.start()
        jobs = [client.submit(CODE / "job.yaml"), *(client.submit(path) for path in alone(folder))]
        for job in jobs:
            say(f"hopsml jobs submit: {job.id}")
        wait_for(client, jobs[0], Lifecycle.RUNNING)
        say(f"kill -9 of the service, while {jobs[0].id} runs; {', '.join(told(client, jobs[1:]))}")
        server.end(signal.SIGKILL)
        client = server.start()
        states = {job.id: wait_for(client, job, *(state for state in Lifecycle if state.is_final)) for job in jobs}
        outcome = count(cluster, client, jobs, states)
    finally:
        server.end(signal.SIGTERM)
    return outcome


def alone(folder: Path) -> list[Path]:
    """Write the files of two more jobs with the same code, and return them."""
    code = folder / "code"
    shutil.copytree(CODE, code)
    paths = []
    for name, function in (("once-more", "train"), ("and-again", "train")):
        paths.append(code / f"{name}.yaml")
        paths[-1].write_text(ALONE.format(name=name, function=function))
    return paths


def told(client: Client, jobs: list[ServiceJob]) -> list[str]:
    """Return a text with the state of each job, and why it waits."""
    return [
        f"{found.id} {found.state}" + (f" ({found.why})" if found.why else "")
        for found in map(client.job, (job.id for job in jobs))
    ]


def wait_for(client: Client, job: ServiceJob, *states: Lifecycle) -> Lifecycle:
    """Print each change of a job until it is in one of these states; return the state."""
    last, deadline = "", time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        found = client.job(job.id)
        if (now := f"{found.state}: {found.cause}") != last:
            say(f"{job.id}: {now}" + (f"; {found.why}" if found.why else ""))
            last = now
        if found.state in states:
            return found.state
        time.sleep(0.5)
    raise SystemExit(f"hopsml demo-service: {job.id} is {last} after {WAIT_S:g} s")


def count(cluster: Cluster, client: Client, jobs: list[ServiceJob], states: dict[str, Lifecycle]) -> dict[str, int]:
    """Return the counts of lost jobs, of launches that YARN started twice, and of applications that still run."""
    listed = cluster.resource_manager.applications()
    tags = [tag for app in listed for tag in str(app.get("applicationTags", "")).split(",") if tag.count("-") > 3]
    launches = {one.tag for job in jobs for one in client.job(job.id).applications}
    for job in jobs:
        for one in client.job(job.id).applications:
            say(f"{job.id} {one.task}: {one.state} {one.application_id}")
    return {
        "jobs": len(jobs),
        "finished": sum(state == Lifecycle.FINISHED for state in states.values()),
        "lost": sum(not state.is_final for state in states.values()) + len(launches - set(tags)),
        "doubled": sum(tags.count(tag) - 1 for tag in launches & set(tags)),
        "left_over": sum(app["state"] not in ("FINISHED", "FAILED", "KILLED") for app in listed),
    }


def say(text: str) -> None:
    """Print one line of progress."""
    print(f"hopsml demo-service: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
