"""Test of a job of several tasks on a real YARN: they find each other, one is relaunched, and all end with the trainer."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from hopsml.core.states import Lifecycle
from hopsml.storage.filesystem import for_url
from tests.helpers.cluster.workloads import wait_until
from tests.integration.yarn.conftest import Hadoop
from tests.integration.yarn.test_job_service import WAIT_S, YarnService, reaches, service

pytestmark = [pytest.mark.hadoop]
__all__ = ["service"]

CODE = """
def note(folder, name, **facts):
    import json, os
    with open(f"{folder}/{name}.starts", "a") as file:
        file.write(json.dumps({"pid": os.getpid(), **facts}) + "\\n")
def listen(answer):
    import os, socket
    import hopsml
    with socket.create_server((hopsml.distributed.host(), int(os.environ["HOPSML_PORT_RPC"]))) as server:
        while True:
            connection, _ = server.accept()
            with connection:
                connection.sendall(str(answer(connection.recv(99).decode())).encode())
def ask(address, word):
    import socket, time
    host, _, port = address.rpartition(":")
    while True:
        try:
            with socket.create_connection((host, int(port)), 10) as connection:
                connection.sendall(word.encode())
                return int(connection.recv(99))
        except ConnectionRefusedError:
            time.sleep(0.05)
def serve(folder):
    import hopsml
    note(folder, f"server-{hopsml.distributed.rank()}")
    weights = []
    def answer(word):
        if word != "get":
            weights.append(int(word))
        return sum(weights)
    listen(answer)
def cache(folder):
    import os, pathlib
    path = pathlib.Path(os.environ["HOPSML_DATASET_DIGITS"])
    note(folder, "cache", path=str(path), passed=os.environ["HOPSML_DATASET_PLAIN"])
    rows = list(map(int, path.read_text().split()))
    listen(lambda word: rows[int(word)])
def train(folder):
    import os, time
    import hopsml
    from hopsml.storage.filesystem import for_url
    (cache,), servers = hopsml.job.addresses("cache"), hopsml.job.addresses("server")
    for index, server in enumerate(servers):
        ask(server, str(ask(cache, str(index))))
    note(folder, "train", servers=servers)
    while not os.path.exists(f"{folder}/end"):
        time.sleep(0.05)
    url = os.environ["HOPSML_WORKSPACE"] + "/trained"
    for_url(url).write_bytes(url, b"weights")
def evaluate(folder):
    import os, threading
    import hopsml
    from hopsml.storage.filesystem import for_url
    servers = hopsml.job.addresses("server")
    url = f"{os.environ['HOPSML_WORKSPACE']}/evaluated"
    for_url(url).append_bytes(url, b"x")
    note(folder, "evaluate", servers=servers, weights=[ask(server, "get") for server in servers])
    threading.Event().wait()
"""
JOB = """
name: whole
retries: 1
workspace: true
datasets: {{digits: {{url: "{data}", fetch: copy}}, plain: "{data}"}}
tasks:
  train: {{function: tasks.py:train, {more}}}
  server: {{function: tasks.py:serve, count: 2, ports: [rpc], ends_with: train, {more}}}
  evaluate: {{function: tasks.py:evaluate, restart: relaunch, ends_with: train, {more}}}
  cache: {{function: tasks.py:cache, ports: [rpc], ends_with: train, {more}}}
"""


def starts(folder: Path, name: str) -> list[dict[str, object]]:
    """Return what each start of a worker has noted."""
    path = folder / f"{name}.starts"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.variant  # of the local tests of a job's tasks, with containers, HDFS and addresses of nodes
def test_tasks_find_each_other_one_is_relaunched_and_all_end_with_the_trainer(
    hadoop: Hadoop, service: YarnService
) -> None:
    folder, data = service.folder, f"{hadoop.namenode_url}/{service.folder.name}-digits.txt"
    for_url(data).write_bytes(data, b"3\n4\n")
    (folder / "code" / "tasks.py").write_text(CODE)
    path = folder / "code" / "whole.yaml"
    more = f"framework: distributed, arguments: {{folder: {folder}}}"
    path.write_text(JOB.format(data=data, more=more))
    client = service.start()
    job = client.submit(path)
    wait_until(lambda: starts(folder, "evaluate") or client.job(job.id).state.is_final, "the evaluator", 3 * WAIT_S)
    wait_until(lambda: starts(folder, "train") or client.job(job.id).state.is_final, "the trainer", WAIT_S)
    assert client.job(job.id).state in (Lifecycle.STARTING, Lifecycle.RUNNING), client.job(job.id).cause
    (cache,), (train,), (first,) = (starts(folder, name) for name in ("cache", "train", "evaluate"))
    assert Path(str(cache["path"])).name == data.rpartition("/")[2] and cache["passed"] == data
    wait_until(reaches(client, job.id, Lifecycle.RUNNING), "all drivers", WAIT_S)

    os.kill(int(str(first["pid"])), signal.SIGKILL)
    wait_until(lambda: len(starts(folder, "evaluate")) == 2 or client.job(job.id).state.is_final, "another", 2 * WAIT_S)
    again = starts(folder, "evaluate")[-1]
    assert again["servers"] == train["servers"] == first["servers"] and again["weights"] == [3, 4]
    assert [len(starts(folder, name)) for name in ("train", "server-0", "server-1", "cache")] == [1] * 4

    (folder / "end").touch()
    ended = client.wait(job.id, 2 * WAIT_S)
    assert (ended.state, ended.tries) == (Lifecycle.FINISHED, 1), ended.cause
    newest = {one.task: (one.state, one.cause) for one in ended.applications}
    assert newest.pop("train")[0] == Lifecycle.FINISHED
    assert newest == dict.fromkeys(("server", "evaluate", "cache"), (Lifecycle.STOPPED, "ended with task train"))
    wait_until(lambda: not service.running(), "no application is left", WAIT_S)
    project = f"{hadoop.namenode_url}/Projects/{folder.name}"
    (shared,) = for_url(project).list_dir(f"{project}/Workspaces")
    assert {one.name: one.length for one in for_url(project).list_dir(shared.url)} == {"evaluated": 2, "trained": 7}
    assert service.signal(signal.SIGTERM) == 0
