"""The job service's server: submissions per second, recovery after kill -9, response times.

The server is a separate process, called over HTTP, with SQLite on this disk. Live jobs are real processes.
"""

from __future__ import annotations

import functools
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, measured, ratio_of
from benchmarks.options import Options
from benchmarks.pairing import alternate
from benchmarks.spread import spread_of
from hopsml.service.workspaces import zip_folder

SUBMITTERS, SUBMISSIONS = 16, 1000
LIVE_JOBS = 200
RUNS, COMPARED, POINTS = 10_000, 200, 1000
JOB = "name: {name}\nqueue: default\ntasks: {{main: {{script: job.py}}}}\n"
WAIT_S = 600.0
# Cost of any page in browser and server: a page of one kilobyte with one word to paint.
CONTROL = "control.html"
CONTROL_PAGE = (
    "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>control</title></head><body>hopsml</body></html>"
)
_KEEPS = {"Content-Type": "application/json"}


class BenchmarkServer:
    """``hopsml server`` over one state folder, restarted as often as needed."""

    def __init__(self, state: Path, cores: int) -> None:
        self.state, self._cores = state, cores
        self.process: subprocess.Popen[str] | None = None
        self.address, self.token = "", ""

    def start(self) -> float:
        """Start the server and return the seconds from the start of the process to its address."""
        began = time.perf_counter()
        code = (
            "import sys; from hopsml.service import server; from hopsml.service.scheduler.resources import Resources;"
            "from hopsml.service.rest import page_files; from pathlib import Path; read = page_files.read_page_files;"
            f"page_files.read_page_files = lambda: {{**read(), **read(Path({str(self.state / 'control')!r}))}};"
            f"server.machine_resources = lambda gpus: Resources(gpus, {self._cores}, 1 << 30);"
            f"server.run_server(server.ServerSettings(Path({str(self.state)!r}), profile='local',"
            f" project_url='file://{self.state}/project'), lambda address: print(address, flush=True))"
        )
        self.process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address, _, self.token = self.process.stdout.readline().strip().partition("?token=")
        return time.perf_counter() - began

    def end(self, number: int = signal.SIGTERM) -> None:
        """Send a signal to the server and wait for its end."""
        if self.process is not None and self.process.stdout is not None:
            self.process.send_signal(number)
            self.process.wait()
            self.process.stdout.close()
            self.process = None

    def connection(self) -> http.client.HTTPConnection:
        """Return a connection that stays open between requests."""
        return http.client.HTTPConnection(urllib.parse.urlsplit(self.address).netloc, timeout=WAIT_S)

    def ask(self, connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None = None) -> Any:
        """Return the JSON of a response.

        Raises:
            RuntimeError: the server refused the request.
        """
        connection.request(method, path, body, {**_KEEPS, "Authorization": f"Bearer {self.token}"})
        answer = connection.getresponse()
        content = answer.read()
        if answer.status >= 400:
            raise RuntimeError(f"{path}: {answer.status} {content[:300]!r}")
        return json.loads(content)


@contextmanager
def _server(cores: int) -> Iterator[BenchmarkServer]:
    with tempfile.TemporaryDirectory(prefix="hopsml-bench-service-") as folder:
        server = BenchmarkServer(Path(folder), cores)
        try:
            yield server
        finally:
            server.end(signal.SIGKILL)
            _end_drivers(Path(folder))


def _end_drivers(state: Path) -> None:
    for file in state.glob("applications/*/running"):
        try:
            os.killpg(json.loads(file.read_bytes())["driver"], signal.SIGKILL)
        except (ProcessLookupError, ValueError):
            continue
    while any(_is_alive(file) for file in state.glob("applications/*/running")):
        time.sleep(0.02)


def _is_alive(file: Path) -> bool:
    return not (file.parent / "ended").exists() and Path("/proc", str(json.loads(file.read_bytes())["pid"])).exists()


def _uploaded(server: BenchmarkServer) -> str:
    code = server.state / "code"
    code.mkdir(exist_ok=True)
    (code / "job.py").write_text("import time\ntime.sleep(3600)\n")
    return str(server.ask(server.connection(), "POST", "/api/v1/workspaces", zip_folder(code))["workspace"])


def submits(options: Options) -> list[Figure]:
    """Measure ``service.submits_per_s``: jobs submitted by many REST clients at once, each client's in its order."""
    rates = []
    for _ in range(options.rounds_of(5, 1)):
        with _server(cores=1) as server:  # one runs, the others wait
            server.start()
            rates.append(_submit_all(server, options.choose(SUBMISSIONS, 200)))
    spread = spread_of(rates)
    return [Figure("service.submits_per_s", spread.median, "1/s", spread.n, spread.low, spread.high)]


def _submit_all(server: BenchmarkServer, count: int) -> float:
    workspace = _uploaded(server)
    problems: list[BaseException] = []

    def submit(number: int) -> None:
        connection = server.connection()
        try:
            for position in range(count // SUBMITTERS):
                asked = {"spec": JOB.format(name=f"j-{number}-{position}"), "workspace": workspace}
                server.ask(connection, "POST", "/api/v1/jobs", json.dumps(asked).encode())
        except BaseException as error:  # noqa: BLE001 raised below
            problems.append(error)

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(SUBMITTERS)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    if problems:
        raise problems[0]
    jobs = server.ask(server.connection(), "GET", "/api/v1/jobs?limit=1000")["jobs"]
    for number in range(SUBMITTERS):
        mine = [int(job["name"].rpartition("-")[2]) for job in reversed(jobs) if job["name"].startswith(f"j-{number}-")]
        if mine != list(range(count // SUBMITTERS)):
            raise RuntimeError(f"submitter {number}: {len(mine)} jobs, or not in its order")
    return count // SUBMITTERS * SUBMITTERS / seconds


def recovery(options: Options) -> list[Figure]:
    """Measure ``service.recover_s``: from the start of a new server to true states of all jobs.

    Half of the jobs ended while no server was running.
    """
    count = options.choose(LIVE_JOBS, 20)
    times = []
    for _ in range(options.rounds_of(3, 1)):
        with _server(cores=count) as server:
            times.append(_recovered(server, count, options))
    spread = spread_of(times)
    return [Figure("service.recover_s", spread.median, "s", spread.n, spread.low, spread.high)]


def _recovered(server: BenchmarkServer, count: int, options: Options) -> float:
    server.start()
    workspace = _uploaded(server)
    connection = server.connection()
    for number in range(count):
        asked = {"spec": JOB.format(name=f"live-{number}"), "workspace": workspace}
        server.ask(connection, "POST", "/api/v1/jobs", json.dumps(asked).encode())
    _wait(server, {"RUNNING": count})
    options.say(f"{count} jobs run")
    server.end(signal.SIGKILL)
    ended = sorted(server.state.glob("applications/*/running"))[: count // 2]
    for file in ended:
        os.killpg(json.loads(file.read_bytes())["driver"], signal.SIGKILL)
    while any(not (file.parent / "ended").exists() for file in ended):
        time.sleep(0.05)
    began = time.perf_counter()
    server.start()
    _wait(server, {"RUNNING": count - len(ended), "FAILED": len(ended)}, pause_s=0.02)
    return time.perf_counter() - began


def _wait(server: BenchmarkServer, wanted: dict[str, int], pause_s: float = 0.5) -> None:
    connection, deadline = server.connection(), time.monotonic() + WAIT_S
    while True:
        jobs = server.ask(connection, "GET", "/api/v1/jobs?limit=1000")["jobs"]
        states = {state: sum(job["state"] == state for job in jobs) for state in wanted}
        if states == wanted:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"{states} instead of {wanted}")
        time.sleep(pause_s)


def lists(options: Options) -> list[Figure]:
    """Measure ``service.list_ms`` (10 000 runs) and ``service.compare_ms`` (200 runs, 1000 points each)."""
    runs = options.choose(RUNS, 500)
    with _server(cores=0) as server:
        _project(server.state / "project", runs)
        server.start()
        connection = server.connection()
        queries = ["filter=lr%3E0.05&sort=metric", "filter=digits&sort=seconds&order=ascending", "filter=state:failed"]
        server.ask(connection, "GET", f"/api/runs?{queries[0]}")  # reads the records
        listed = [1e3 * _timed(server, connection, f"/api/runs?{query}") for _ in range(5) for query in queries]
        named = "&".join(f"run=app_{number}" for number in range(min(COMPARED, runs)))
        compared = [1e3 * _timed(server, connection, f"/api/compare?{named}&tag=loss") for _ in range(5)]
    options.say(f"list {listed[0]:.0f} ms, comparison the first time {compared[0]:.0f} ms")
    each = {"service.list_ms": spread_of(listed), "service.compare_ms": spread_of(compared)}
    figures = [Figure(name, spread.median, "ms", spread.n, spread.low, spread.high) for name, spread in each.items()]
    return [*figures, Figure("service.first_compare_ms", compared[0], "ms", 1, compared[0], compared[0])]


def _timed(server: BenchmarkServer, connection: http.client.HTTPConnection, path: str) -> float:
    began = time.perf_counter()
    server.ask(connection, "GET", path)
    return time.perf_counter() - began


def _project(folder: Path, runs: int) -> None:
    """Write run records as runs leave them, with curves for those that are compared."""
    for number in range(runs):
        run = folder / "Experiments" / f"app_{number}"
        run.mkdir(parents=True)
        record: dict[str, object] = {"name": "digits" if number % 2 else "letters", "workers": 2}
        record |= {
            "verb": "collective_all_reduce",
            "user": "ana",
            "started": 1000.0 + number,
            "arguments": {"lr": number % 100 / 100},
        }
        state = "FAILED" if number % 7 == 0 else "FINISHED"
        (run / "run.json").write_text(json.dumps(record))
        (run / "status.json").write_text(json.dumps({"state": state, "seconds": 3.5 + number % 11}))
        (run / ".outputs.json").write_text(json.dumps({"accuracy": number % 1000 / 1000}))
        if number < COMPARED:
            points = ({"time": 1000.0 + step, "step": step, "loss": 1 / (1 + step)} for step in range(POINTS))
            (run / "metrics.jsonl").write_text("".join(json.dumps(point) + "\n" for point in points))


def page(options: Options) -> list[Figure]:
    """Measure ``service.page_kb``, the compressed size of the page's files, and ``service.first_paint_ms`` in Chromium.

    A control page of the same server is measured in the same rounds: the excess over it is the page's own cost.
    """
    from hopsml.service.rest import page_files

    kilobytes = (
        sum(
            len(file.compressed)
            for file in page_files.read_page_files().values()
            if file.media_type[:4] != "text/plain"
        )
        / 1e3
    )
    figures = [Figure("service.page_kb", kilobytes, "kB", 1, kilobytes, kilobytes)]
    with _server(cores=0) as server:
        _project(server.state / "project", options.choose(1000, 50))
        (server.state / "control").mkdir()
        (server.state / "control" / CONTROL).write_text(f"{CONTROL_PAGE}<!--{'-' * (1000 - len(CONTROL_PAGE))}-->")
        server.start()
        paints = _paints(server, options)
    if paints:
        beside = "a page of 1 kB of the same server"
        figures.append(measured("service.first_paint_ms", paints["page"], "ms", beside, paints["control"]))
        figures.append(measured("service.control_paint_ms", paints["control"], "ms"))
        figures.append(ratio_of("service.first_paint_ratio", paints["page"], paints["control"], beside))
    return figures


def _paints(server: BenchmarkServer, options: Options) -> dict[str, list[float]]:
    """Return milliseconds from the navigation to the first contentful paint, with an empty browser cache."""
    import shutil

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        options.say("no chromium: apt-get install chromium")
        return {}
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"])
        places = {"page": "", "control": CONTROL}
        turns = {
            name: functools.partial(_paint, browser, f"{server.address}{place}?token={server.token}")
            for name, place in places.items()
        }
        for turn in turns.values():  # the browser starts its own processes
            turn()
        found = alternate(options.rounds_of(9, 2), turns)
        browser.close()
    return found


def _paint(browser: Any, address: str) -> float:
    context = browser.new_context()
    seen = context.new_page()
    seen.goto(address)
    painted = 0.0
    while not painted:  # Playwright's own wait evaluates a text within the page, which the page's policy forbids
        painted = float(seen.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"))
        seen.wait_for_timeout(20)
    context.close()
    return painted


STUDIES: Sequence[Callable[[Options], list[Figure]]] = (submits, recovery, lists, page)
