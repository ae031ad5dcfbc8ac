"""Tests of a local job's ports, addresses of other tasks, secrets and schedule."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hopsml.client import Client
from hopsml.core.states import Lifecycle
from hopsml.errors import ArgumentError
from tests.helpers.cluster.workloads import wait_until
from tests.integration.service.test_job_service import WAIT_S, JobService, service

pytestmark = pytest.mark.local
__all__ = ["service"]

# Two workers that answer with their rank until they receive "end".
SERVE = """
def serve():
    import os, socket
    import hopsml
    with socket.create_server((hopsml.distributed.host(), int(os.environ["HOPSML_PORT_ECHO"]))) as server:
        while True:
            connection, _ = server.accept()
            with connection:
                if connection.recv(9) == b"end":
                    return
                connection.sendall(b"rank %d" % hopsml.distributed.rank())
"""
# Connects to each of them; fails at the first try, so that all are restarted.
ASK = """
import argparse, json, os, socket, time
import hopsml
parser = argparse.ArgumentParser()
parser.add_argument("--out")
out = parser.parse_args().out
first = os.environ["HOPSML_APPLICATION_ATTEMPT"] == "1"
found = hopsml.job.addresses("server", timeout_s=60)
def ask(address, word):
    host, _, port = address.rpartition(":")
    for _ in range(600):
        try:
            with socket.create_connection((host, int(port)), 10) as connection:
                connection.sendall(word)
                return connection.recv(9).decode()
        except ConnectionRefusedError:
            time.sleep(0.05)
told = [ask(address, b"who") for address in found]
open(out, "a").write(json.dumps([found, told]) + "\\n")
if first:
    raise SystemExit(3)
for address in found:
    ask(address, b"end")
"""

SECRET = "Hush-93-wolves"  # its name does not identify it as a secret
# Writes a hash of the secret, and runs until its end file exists.
HIDE = """
def hide(out):
    import hashlib, os, time
    open(f"{out}.told", "w").write(hashlib.sha256(os.environ["DB_LOGIN"].encode()).hexdigest())
    while not os.path.exists(f"{out}.end"):
        time.sleep(0.02)
    raise RuntimeError(f"refused with {os.environ['DB_LOGIN']}")
"""
WHISPER = """
import argparse, hashlib, os
parser = argparse.ArgumentParser()
parser.add_argument("--out")
open(f"{parser.parse_args().out}.script", "w").write(hashlib.sha256(os.environ["DB_LOGIN"].encode()).hexdigest())
"""


def test_tasks_of_the_same_try_find_each_other_and_not_those_of_earlier_tries(service: JobService) -> None:
    (service.code / "serve.py").write_text(SERVE)
    (service.code / "ask.py").write_text(ASK)
    out = service.jobs / "out"
    path = service.code / "pair.yaml"
    path.write_text(
        "name: pair\nretries: 1\ntasks:\n"
        "  server: {function: serve.py:serve, framework: distributed, count: 2, ports: [echo]}\n"
        f"  client: {{script: ask.py, arguments: {{out: {out}}}}}\n"
    )
    client = service.start(cores=4)
    job = client.submit(path)
    ended = client.wait(job.id, 2 * WAIT_S)
    assert (ended.state, ended.tries) == (Lifecycle.FINISHED, 2), client.log(job.id, "server")
    (first, found), (second, told_again) = map(json.loads, out.read_text().splitlines())
    assert found == told_again == ["rank 0", "rank 1"]
    assert not set(first) & set(second) and len(set(second)) == 2
    (folder,) = (service.state / "project" / "Jobs").glob("pair-1-*")
    assert [path.name for path in folder.iterdir()] == ["2"], "what the first try said is gone"
    service.stop()


def hopsml(client: Client, *words: str, stdin: str = "") -> str:
    """Run a command and return its output."""
    variables = {**os.environ, "HOPSML_SERVER": client._address, "HOPSML_TOKEN": client._token}
    line = [sys.executable, "-m", "hopsml", *words]
    done = subprocess.run(line, input=stdin, env=variables, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def holders() -> list[str]:
    """Return processes with the secret in their command line or initial environment."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for name in ("cmdline", "environ"):
            with contextlib.suppress(OSError):
                if SECRET.encode() in Path("/proc", pid, name).read_bytes():
                    found.append(f"{pid}/{name}")
    return found


@pytest.mark.variant  # of tests/unit/service/test_secrets.py, in a job that runs
def test_secret_is_visible_only_to_the_code_that_needs_it(service: JobService) -> None:
    (service.code / "hide.py").write_text(HIDE)
    (service.code / "whisper.py").write_text(WHISPER)
    out, digest = service.jobs / "out", hashlib.sha256(SECRET.encode()).hexdigest()
    path = service.code / "keeper.yaml"
    path.write_text(
        "name: keeper\nsecrets: [db-login]\ntasks:\n"
        f"  main: {{function: hide.py:hide, framework: distributed, arguments: {{out: {out}}}}}\n"
        f"  whisper: {{script: whisper.py, arguments: {{out: {out}}}}}\n"
    )
    client = service.start(cores=2)
    with pytest.raises(ArgumentError, match="no secret db-login"):
        client.submit(path)
    assert hopsml(client, "secrets", "put", "db-login", stdin=f"{SECRET}\n") == ""
    assert hopsml(client, "secrets", "ls").startswith("db-login ")
    job = client.submit(path)
    for end in ("told", "script"):
        there = Path(f"{out}.{end}")
        wait_until(lambda there=there: there.exists() or client.job(job.id).state.is_final, end)
        assert there.exists(), (client.job(job.id), client.log(job.id), client.log(job.id, "whisper"))
    wait_until(lambda: Path(f"{out}.told").read_text() == Path(f"{out}.script").read_text() == digest, "both have it")
    assert not holders()
    Path(f"{out}.end").touch()
    ended = client.wait(job.id, WAIT_S)
    log = client.log(job.id)[0]
    assert ended.state == Lifecycle.FAILED and "refused with (redacted)" in log and SECRET not in log + ended.cause
    assert SECRET not in ended.spec + repr(client.changes(job.id))
    service.stop()
    everywhere = [
        path for folder in (service.state, service.log.parent) for path in folder.rglob("*") if path.is_file()
    ]
    found = [path for path in everywhere if SECRET.encode() in path.read_bytes()]
    assert found == [], "neither database, nor logs, nor records, nor what was handed over"
    assert not list(service.state.rglob("*.sealed"))


@pytest.mark.variant
def test_submitted_schedule_starts_jobs(service: JobService) -> None:
    client = service.start(cores=2)
    path = service.job("nightly", schedule='"0 3 * * *"')
    assert hopsml(client, "jobs", "submit", str(path)) == "nightly-1\n" and client.jobs() == []
    assert "0 3 * * * UTC  next 20" in hopsml(client, "schedules", "ls")
    hopsml(client, "schedules", "pause", "nightly-1")
    assert "; paused" in hopsml(client, "schedules", "show", "1")
    assert hopsml(client, "schedules", "trigger", "1") == "nightly-1\n"
    service.end("nightly")
    assert client.wait("nightly-1", WAIT_S).state == Lifecycle.FINISHED
    hopsml(client, "schedules", "resume", "1")
    hopsml(client, "schedules", "rm", "1")
    assert client.schedules() == []
    service.stop()


@pytest.mark.variant
def test_logs_of_all_tasks_are_printed_and_followed(service: JobService) -> None:
    client = service.start(cores=3)
    for name in ("one", "two"):
        (service.code / f"{name}.py").write_text(f"print('first of {name}')\nprint('last of {name}')\n")
    path = service.code / "both.yaml"
    path.write_text("name: both\ntasks: {a: {script: one.py}, b: {script: two.py}}\n")
    followed = hopsml(client, "jobs", "submit", "--wait", str(path)).splitlines()
    assert followed[0] == "both-1"
    assert sorted(followed[1:]) == ["a: first of one", "a: last of one", "b: first of two", "b: last of two"]
    assert hopsml(client, "jobs", "logs", "both-1").splitlines() == [
        *("==> task a <==", "first of one", "last of one"),
        *("==> task b <==", "first of two", "last of two"),
    ]
    assert hopsml(client, "jobs", "logs", "both-1", "--task", "b").splitlines() == ["first of two", "last of two"]
    with pytest.raises(ArgumentError, match="no task 'c'; there are: a, b"):
        client.log("both-1", "c")
    service.stop()


@pytest.mark.variant
def test_metrics_of_a_search_are_those_of_its_best_trial(service: JobService) -> None:
    client = service.start(cores=2)
    (service.code / "t.py").write_text(
        "def train(lr):\n    import hopsml\n    for s in (1, 2, 3):\n        hopsml.report(step=s, loss=lr * s)\n"
        "    return {'loss': lr}\n"
    )
    path = service.code / "search.yaml"
    path.write_text(
        "name: s\ntasks: {train: {function: t.py:train}}\n"
        "search: {space: {lr: [DISCRETE, [1.0, 0.5]]}, searcher: grid, num_trials: 2, metric: loss, direction: min}\n"
    )
    job = client.submit(path)
    assert client.wait(job.id, WAIT_S).state == Lifecycle.FINISHED
    (run,) = client.metrics(job.id)
    (metric,) = run.metrics
    assert (metric.name, metric.reports, metric.step, metric.last, metric.lowest, metric.highest) == (
        "loss", 3, 3, 1.5, 0.5, 1.5,
    )  # fmt: skip
    shown = hopsml(client, "jobs", "metrics", job.id)
    assert f"trial {run.trial}" in shown and "loss" in shown and run.trial
    service.stop()


def test_project_url_of_a_server_does_not_depend_on_its_working_directory(tmp_path: Path) -> None:
    found = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        command = "from pathlib import Path; from hopsml.service.server import *; from hopsml.service import server; "
        command += f"print(server._project_url(ServerSettings(Path({str(tmp_path)!r}, 'state'), profile='local')))"
        known = {key: value for key, value in os.environ.items() if not key.startswith(("HOPSML_", "HADOOP_"))}
        ended = subprocess.run([sys.executable, "-c", command], cwd=folder, env=known, capture_output=True, text=True)
        found.append(ended.stdout.strip() or ended.stderr)
    assert found == [f"file://{tmp_path}/state/project"] * 2


# The trainer appends to a file of the shared folder, and ends its first try with an error; the reader waits for both.
SHARE = """
def write():
    import os, pathlib
    place = pathlib.Path(os.environ["HOPSML_WORKSPACE"], "written")
    with place.open("a") as file:
        file.write(pathlib.Path(os.environ["HOPSML_DATASET_DIGITS"]).read_text())
    if place.read_text().count("\\n") < 2:
        raise SystemExit("first try")
def read(out):
    import os, pathlib, time
    place = pathlib.Path(os.environ["HOPSML_WORKSPACE"], "written")
    while not place.exists() or place.read_text().count("\\n") < 2:
        time.sleep(0.02)
    pathlib.Path(out).write_text(place.read_text() + pathlib.Path(os.environ["HOPSML_DATASET_PLAIN"]).read_text())
"""


def test_tasks_share_a_workspace_over_tries_and_read_data_sets_by_name(service: JobService) -> None:
    (service.code / "src").mkdir()
    (service.code / "src" / "share.py").write_text(SHARE)
    data, out = service.jobs / "digits.csv", service.jobs / "out"
    data.write_text("1,2,3\n")
    path = service.code / "share.yaml"
    path.write_text(
        "name: share\ncode: src\nworkspace: true\nretries: 1\n"
        f"datasets: {{digits: {{url: {data.as_uri()}, fetch: copy}}, plain: {data}}}\ntasks:\n"
        "  writer: {function: share.py:write, framework: distributed}\n"
        f"  reader: {{function: share.py:read, framework: distributed, arguments: {{out: {out}}}}}\n"
    )
    service.variables["HOPSML_DATA_CACHE"] = str(service.state / "cache")
    client = service.start(cores=4)
    job = client.submit(path)
    ended = client.wait(job.id, 2 * WAIT_S)
    assert (ended.state, ended.tries) == (Lifecycle.FINISHED, 2), (ended.cause, client.log(job.id, "writer"))
    assert out.read_text() == "1,2,3\n" * 3
    (shared,) = (service.state / "project" / "Workspaces").iterdir()
    assert shared.name.startswith("share-1-") and (shared / "written").read_text() == "1,2,3\n" * 2
    assert len(list((service.state / "cache" / "datasets").glob("*/digits.csv"))) == 1
    client.remove(job.id)
    assert (shared / "written").exists(), "it is data of the user's, as the runs are"
    service.stop()


# A server that answers until it is ended, a trainer that asks it once, and a program that ignores the request to end.
CHIEF = """
def serve():
    import os, socket
    import hopsml
    with socket.create_server((hopsml.distributed.host(), int(os.environ["HOPSML_PORT_RPC"]))) as server:
        while True:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"answer")
def train():
    import socket, time
    import hopsml
    (address,) = hopsml.job.addresses("server")
    hopsml.job.addresses("stubborn")
    host, _, port = address.rpartition(":")
    while True:
        try:
            with socket.create_connection((host, int(port)), 10) as connection:
                assert connection.recv(9) == b"answer"
                return
        except ConnectionRefusedError:
            time.sleep(0.05)
"""
STUBBORN = """
import signal, threading
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("is here", flush=True)
threading.Event().wait()
"""


def test_tasks_end_with_their_chief_and_the_job_is_finished(service: JobService) -> None:
    (service.code / "chief.py").write_text(CHIEF)
    (service.code / "stubborn.py").write_text(STUBBORN)
    path = service.code / "chief.yaml"
    path.write_text(
        "name: chief\ntasks:\n  train: {function: chief.py:train, framework: distributed}\n"
        "  server: {function: chief.py:serve, framework: distributed, ports: [rpc], ends_with: train}\n"
        "  stubborn: {script: stubborn.py, ports: [none], ends_with: train}\n"
    )
    client = service.start(cores=4)
    job = client.submit(path)
    ended = client.wait(job.id, 3 * WAIT_S)
    assert ended.state == Lifecycle.FINISHED, (ended.cause, client.log(job.id, "server"))
    assert "server, stubborn ended with the task that is named in the job file" in ended.cause
    states = {one.task: (one.state, one.cause) for one in ended.applications}
    assert states["train"][0] == Lifecycle.FINISHED
    assert states["server"] == states["stubborn"] == (Lifecycle.STOPPED, "ended with task train")
    service.stop()
