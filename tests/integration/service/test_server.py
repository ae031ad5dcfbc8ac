"""Tests of ``hopsml ui`` as a process: a line with its address, a continued stream, an orderly end."""

from __future__ import annotations

import html
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx
import pytest

from tests.helpers.clock import END_S
from tests.helpers.cluster.workloads import wait_until
from tests.helpers.service.project import ProjectOnDisk

pytestmark = pytest.mark.local

UI = (sys.executable, "-m", "hopsml", "ui", "--no-browser")


@contextmanager
def served(project: ProjectOnDisk, limits: tuple[str, ...] = ()) -> Iterator[tuple[str, httpx.Client]]:
    """Yield the root address and a client with the cookie; ``limits`` is a command that sets limits."""
    process = subprocess.Popen([*limits, *UI, project.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    try:
        line = process.stdout.readline()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}\n", line), process.stderr.read()
        with httpx.Client(timeout=20) as client:
            assert client.get(line.strip(), follow_redirects=True).status_code == 200
            root = line.split("?")[0]
            yield root, client
            with client.stream("GET", f"{root}api/events") as stream:  # it is open when the server receives the signal
                next(stream.iter_lines())
                process.send_signal(signal.SIGINT)
                process.wait(END_S)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=END_S)
    assert (process.returncode, out) == (0, "") and (errors == "" or limits)


def events(lines: Iterator[str]) -> Iterator[dict[str, str]]:
    found: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            found[name] = value
        elif found:
            yield found
            found = {}


def test_event_stream_sends_changes_and_resumes_after_the_last_event(project: ProjectOnDisk) -> None:
    run = project.run("app_1", state=None, driver_process={})
    with served(project) as (root, client):
        with client.stream("GET", f"{root}api/events") as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            assert stream.headers["x-accel-buffering"] == "no"
            received = events(stream.iter_lines())
            assert next(received)["event"] == "hello"
            project.run("app_2")
            seen = next(one for one in received if one["event"] == "run")
            assert seen["data"] == '{"run":"app_2"}'
        run.write("status.json", {"state": "FINISHED", "seconds": 1.0})
        with client.stream("GET", f"{root}api/events", headers={"last-event-id": seen["id"]}) as stream:
            assert any(one["event"] == "run" and "app_1" in one["data"] for one in events(stream.iter_lines()))
        assert client.get(f"{root}api/runs").json()["states"] == {"FINISHED": 2}


def test_idle_connections_do_not_block_an_authenticated_client(project: ProjectOnDisk) -> None:
    project.run("app_1")
    few = ("prlimit", "--nofile=128:128")
    with served(project, few) as (root, client), ExitStack() as idle:
        address = urlsplit(root)
        for number in range(300):
            connection = idle.enter_context(socket.create_connection((address.hostname, address.port), timeout=END_S))
            if number % 2:
                connection.sendall(b"GET / HTTP/1.1\r\n")
        with httpx.Client(cookies=client.cookies, timeout=END_S) as another:
            assert another.get(f"{root}api/runs").json()["total"] == 1


# Program in place of a browser: writes its arguments, and those of all processes.
BROWSER = """#!{python}
import json, sys
from pathlib import Path
shown = [path.read_bytes().decode(errors="replace") for path in Path("/proc").glob("[0-9]*/cmdline")]
Path("{folder}", "new").write_text(json.dumps([sys.argv[1:], shown]))
Path("{folder}", "new").rename("{folder}/opened")
"""


def test_browser_is_opened_by_a_private_file_and_no_argument_contains_the_token(
    project: ProjectOnDisk, tmp_path: Path
) -> None:
    browser, opened, home = (tmp_path / name for name in ("browser", "opened", "home"))
    browser.write_text(BROWSER.format(python=sys.executable, folder=tmp_path))
    browser.chmod(0o700)
    left = home / ".hopsml" / "ui" / "left.html"
    left.parent.mkdir(mode=0o700, parents=True)
    left.touch()
    os.utime(left, (1.0, 1.0))  # of a command that was killed
    environment = {**os.environ, "HOME": str(home), "BROWSER": f"{browser} %s"}
    command = [sys.executable, "-m", "hopsml", "ui", project.url]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            wait_until(opened.exists, "the browser")
            (target,), shown = json.loads(opened.read_text())
            file = Path(unquote(urlsplit(target).path))
            assert target.startswith("file://") and file.parent == left.parent
            assert file.stat().st_mode & 0o777 == 0o600
            with httpx.Client(timeout=20) as client:
                followed = re.search(r"url=([^\"]+)", file.read_text())
                assert followed is not None and html.unescape(followed[1]) == address
                assert client.get(address, follow_redirects=True).status_code == 200
            token = address.partition("token=")[2]
            assert token and not any(token in line for line in shown) and any("hopsml\0ui" in line for line in shown)
            assert not left.exists()
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(END_S)
    assert process.returncode == 0 and not list(left.parent.iterdir())


def test_no_browser_is_opened_from_a_folder_of_all_users(project: ProjectOnDisk, tmp_path: Path) -> None:
    folder = tmp_path / ".hopsml" / "ui"
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    environment = {**os.environ, "HOME": str(tmp_path), "BROWSER": "false %s"}
    command = [sys.executable, "-m", "hopsml", "ui", project.url]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            assert "?token=" in process.stdout.readline()
            assert re.match(r"no browser was opened.* 755\); open the address above", process.stderr.readline())
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=END_S)
    assert process.returncode == 0 and not list(folder.iterdir())


def test_host_other_than_loopback_is_refused_in_one_sentence(project: ProjectOnDisk) -> None:
    ended = subprocess.run([*UI, project.url, "--host", "0.0.0.0"], capture_output=True, text=True, timeout=END_S)
    assert ended.returncode == 1 and ended.stderr.startswith("hopsml: host='0.0.0.0'") and not ended.stdout


def test_job_service_prints_that_it_starts_and_then_its_address(tmp_path: Path) -> None:
    state = tmp_path / "state"
    command = [sys.executable, "-m", "hopsml", "server", "--state", str(state), "--port", "0"]
    environment = {**os.environ, "HOPSML_PROJECT_URL": f"file://{tmp_path}/project"}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            first = process.stderr.readline()
            assert first.startswith(f"starting the job service (its data is in {state})") and "address follows" in first
            assert process.stdout.readline().startswith("http://127.0.0.1:")
            assert (state / "client.json").exists() and not (state / "starting").exists()
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=END_S)
    assert process.returncode == 0
