"""hopsml's server against MLServer and the bare signature, and the cost of a roll and of a killed replica.

Both servers have one process, and answer the same requests of the Open Inference Protocol for the same SavedModel, one
row each, over 16 connections. They run at once and alternate; the one that gets no requests is idle.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks import environments
from benchmarks.figures import Report, measured, ratio_of, worst_of
from benchmarks.launched import Command, Launched, environment, temporary_folder
from benchmarks.options import Options
from benchmarks.pairing import alternate
from benchmarks.peers.bare import free_ports
from benchmarks.peers.base import SCRIPTS

CONNECTIONS = 16
ROWS = (1, 32)  # per request
START_TIMEOUT_S = 300.0
MLSERVER = "mlserver"
Facts = dict[str, float]


def run(options: Options) -> Report:
    """Measure throughput, CPU time against the bare signature, and rolls."""
    report = Report()
    with temporary_folder() as name, project(Path(name), options) as folder:
        for part in (beside_mlserver, beside_the_signature, rolls):
            report.add(part(folder, options))
    return report


@contextmanager
def project(folder: Path, options: Options) -> Iterator[Path]:
    """Export the model to a registry, and point ``hopsml.serving`` of this process to it."""
    url = f"file://{folder}/project"
    command = [sys.executable, str(SCRIPTS / "digits_model.py"), str(folder), url]
    ran(command, environment({}, folder))
    mine = {"HOPSML_PROJECT_URL": url, "HOPSML_SERVING_FOLDER": str(folder / "machine"), "HOPSML_MLFLOW": "0"}
    before = {key: os.environ.get(key) for key in mine}
    os.environ.update(mine)
    try:
        yield folder
    finally:
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value


@contextmanager
def ours(replicas: int = 1) -> Iterator[Any]:
    """Start hopsml's server, which ends with this process in any case."""
    from hopsml import serving

    lifeline, end = os.pipe()
    try:
        yield serving.start("digits", version=1, replicas=replicas, lifeline=lifeline)
    finally:
        serving.stop("digits")
        os.close(end)
        os.close(lifeline)


@contextmanager
def mlserver(folder: Path, options: Options) -> Iterator[tuple[int, int]]:
    """Start MLServer with adaptive batching and no further process; yield its port and its pid."""
    python = environments.ensure(MLSERVER, options.say)
    place = folder / "mlserver"
    place.mkdir()
    rest, grpc, metrics = free_ports(3)
    settings = {
        "host": "127.0.0.1",
        "http_port": rest,
        "grpc_port": grpc,
        "metrics_port": metrics,
        "parallel_workers": 0,
    }
    model = {
        "name": "digits",
        "implementation": "benchmarks.scripts.mlserver_digits.Digits",
        "max_batch_size": CONNECTIONS,
        "max_batch_time": 0.002,
        "parameters": {"uri": str(folder / "saved_model")},
    }
    (place / "settings.json").write_text(json.dumps({**settings, "debug": False}))
    (place / "model-settings.json").write_text(json.dumps(model))
    command = Command([str(python.with_name("mlserver")), "start", str(place)], {"TF_CPP_MIN_LOG_LEVEL": "2"})
    with Launched([command], place) as launched:
        url = f"http://127.0.0.1:{rest}/v2/models/digits/ready"
        launched.wait_until(lambda: answers(url), START_TIMEOUT_S, "MLServer answers")
        yield rest, launched.processes[0].pid


def answers(url: str) -> bool:
    """Return True if a GET is answered with 200."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def body(folder: Path, rows: int) -> Path:
    """Return a file with a request of so many rows."""
    from hopsml import model

    signature = model.find("digits", 1).description.signature
    assert signature is not None
    (name,) = signature.inputs  # the name that Keras has chosen
    path = folder / f"request-{rows}.json"
    values = [round((number * 7 % 17) / 16, 4) for number in range(64)] * rows
    inputs = [{"name": name, "shape": [rows, 64], "datatype": "FP32", "data": values}]
    path.write_text(json.dumps({"inputs": inputs}))
    return path


def load(folder: Path, port: int, rows: int, seconds: float, token: str = "") -> Facts:
    """Return the results of sending requests for ``seconds``."""
    command = [sys.executable, str(SCRIPTS / "http_load.py"), "127.0.0.1", str(port)]
    command += ["/v2/models/digits/infer", str(body(folder, rows)), str(CONNECTIONS), str(seconds)]
    facts: Facts = json.loads(ran(command, environment({}, folder), f"{token}\n"))
    return facts


def ran(command: list[str], variables: dict[str, str], given: str = "") -> str:
    """Return the output of a program.

    Raises:
        RuntimeError: the program failed; contains the end of its error output.
    """
    done = subprocess.run(command, env=variables, input=given, text=True, capture_output=True)
    if done.returncode:
        raise RuntimeError(f"{command[1]} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def of_process(pid: int, asked: Callable[[], Facts]) -> Facts:
    """Return ``per_s``, requests per second, and ``cpu_ms``, the server's CPU time per request."""
    before = cpu_s(pid)
    facts = asked()
    if facts["failed"] or not facts["requests"]:
        raise RuntimeError(f"requests failed where nothing was done to the server: {facts}")
    cpu_ms = (cpu_s(pid) - before) * 1000 / facts["requests"]
    return {"per_s": facts["requests"] / facts["seconds"], "cpu_ms": cpu_ms}


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process and its children since their start."""
    process = psutil.Process(pid)
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return float(sum(one.user + one.system for one in times))


def beside_mlserver(folder: Path, options: Options) -> Report:
    """Measure requests per second, and CPU time per request, against MLServer."""
    seconds = options.choose(8.0, 3.0)
    with ours() as status, mlserver(folder, options) as (port, pid):
        token = Path(status.token_file).read_text()
        own = int(status.url.rpartition(":")[2])
        turns: dict[str, Callable[[], Facts]] = {
            "hopsml": lambda: of_process(status.pids[0], lambda: load(folder, own, 1, seconds, token)),
            MLSERVER: lambda: of_process(pid, lambda: load(folder, port, 1, seconds)),
        }
        alternate(1, turns)  # warm
        rounds = alternate(options.rounds_of(5, 3), turns)
    found = {
        name: {key: [one[key] for one in values] for key in ("per_s", "cpu_ms")} for name, values in rounds.items()
    }
    peer = "MLServer 1.7.1, batching"
    return Report(
        [
            ratio_of("serving.throughput_ratio", found["hopsml"]["per_s"], found[MLSERVER]["per_s"], peer),
            measured("serving.requests_per_s", found["hopsml"]["per_s"], "1/s", peer, found[MLSERVER]["per_s"]),
            measured("serving.request_cpu_ms", found["hopsml"]["cpu_ms"], "ms", peer, found[MLSERVER]["cpu_ms"]),
        ],
        ["serving: digits CNN, one row a request, 16 connections, one process each; who asks has the same cores"],
    )


def beside_the_signature(folder: Path, options: Options) -> Report:
    """Measure CPU time per row: the signature called in a loop with one request's rows, over the server's."""
    report = Report()
    seconds, rounds = options.choose(6.0, 2.0), options.rounds_of(3, 2)
    worst = None
    for rows in ROWS:
        with ours() as status:
            token, port = Path(status.token_file).read_text(), int(status.url.rpartition(":")[2])
            pid = status.pids[0]

            def served(rows: int = rows, pid: int = pid, port: int = port, token: str = token) -> float:
                facts = of_process(pid, lambda: load(folder, port, rows, seconds, token))
                return facts["cpu_ms"]

            served()

            def bare(rows: int = rows) -> float:
                return bare_ms(folder, rows, options)

            values = alternate(rounds, {"bare": bare, "ours": served})
        figure = ratio_of(f"serving.bare_ratio_rows{rows}", values["bare"], values["ours"], "the bare signature")
        report.figures.append(figure)
        if worst is None or figure.value < worst[0].value:
            worst = figure, values
    assert worst is not None
    values = worst[1]
    report.figures.append(ratio_of("serving.bare_ratio", values["bare"], values["ours"], "the bare signature"))
    report.notes.append(
        "serving.bare_ratio: CPU of the signature called with the rows of one request, over the server's CPU for that "
        f"request; the lower of requests of {' and '.join(map(str, ROWS))} rows"
    )
    return report


def bare_ms(folder: Path, rows: int, options: Options) -> float:
    """Return the CPU milliseconds of one call, in a separate process."""
    threads = {"TF_NUM_INTRAOP_THREADS": str(len(os.sched_getaffinity(0))), "TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [sys.executable, str(SCRIPTS / "bare_signature.py"), str(folder / "saved_model")]
    command += [str(rows), str(options.choose(3000, 1000))]
    return float(ran(command, environment(threads, folder)).split()[-1])


def rolls(folder: Path, options: Options) -> Report:
    """Count requests that fail while two replicas change versions and back, and one of them is killed."""
    failed, retried, asked = [], [], []
    for _ in range(options.rounds_of(2, 1)):
        with ours(replicas=2) as status:
            facts = harmed(folder, status, options)
        failed.append(facts["failed"])
        retried.append(facts["retried"])
        asked.append(facts["requests"])
        options.say(f"roll and kill: {facts}")
    return Report(
        [
            worst_of("roll.failed_requests", failed, "requests"),
            worst_of("roll.retried_requests", retried, "requests"),
            measured("roll.answered_requests", asked, "requests"),
        ],
        [
            "roll: a roll, a canary, kill -9 of one of two replicas, a roll back, under load over 16 connections; "
            "retried: were in the replica that was killed, and sent once more, as hopsml.serving.predict does"
        ],
    )


def harmed(folder: Path, status: Any, options: Options) -> Facts:
    """Return the results of requests during rolls, a canary and the kill of a replica."""
    from hopsml import serving

    token, port = Path(status.token_file).read_text(), int(status.url.rpartition(":")[2])
    over: list[Facts] = []
    asking = threading.Thread(target=lambda: over.append(load(folder, port, 1, 40.0, token)))
    asking.start()
    began = time.monotonic()
    serving.roll("digits", 2)
    serving.canary("digits", 3, 0.2)
    os.kill(serving.status("digits").pids[0], signal.SIGKILL)
    while (now := serving.status("digits")).restarts == 0 or (now.ready or 0) < 2:
        if time.monotonic() - began > START_TIMEOUT_S:
            raise RuntimeError(f"the replica did not come again: {now}")
        time.sleep(0.1)
    serving.roll("digits", 1)
    options.say(f"rolls and a kill took {time.monotonic() - began:.1f} s of the load's 40")
    asking.join()
    if not over:
        raise RuntimeError("the load broke off")
    return over[0]
