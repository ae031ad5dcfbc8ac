"""Tests of a real server: started, called, rolled, disturbed and stopped."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopsml import model, serving
from hopsml.errors import AlreadyServed, ArgumentError, ModelNotFound, QuotaExceeded
from hopsml.service.browse import servings
from hopsml.serving import ServingError, ServingNotFound, definitions, starting
from hopsml.serving.definitions import ServingDefinition, ServingFolder
from hopsml.storage import trust
from tests.integration.serving.conftest import VERSIONS

pytestmark = pytest.mark.local
ROWS = np.ones((2, 4))
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def served(project: Path) -> Iterator[str]:
    """Serve version 1 by two replicas, with a request log."""
    serving.start("digits", version=1, replicas=2, log_requests=True)
    yield "digits"
    serving.stop("digits")


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.mark.parametrize("what", ["its log", "its process"])
def test_supervisor_that_cannot_be_started_leaves_no_open_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    folder = ServingFolder(tmp_path / "machine")
    if what == "its process":
        folder.path.mkdir()
        monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    with (tmp_path / "lock").open("wb") as lock:
        before = set(os.listdir("/proc/self/fd"))
        with pytest.raises(FileNotFoundError):
            starting._announced(folder, lock.fileno(), -1, PATIENCE_S)
        assert set(os.listdir("/proc/self/fd")) == before


def answered() -> float:
    return float(serving.predict("digits", ROWS)[0])


class Load:
    """Threads that send predictions one after another during a block."""

    def __init__(self, threads: int = 4) -> None:
        self.answers: list[float] = []
        self.errors: list[Exception] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(threads)]

    def _ask(self) -> None:
        while not self._over.is_set():
            try:
                self.answers.append(answered())
            except Exception as error:  # noqa: BLE001 counted
                self.errors.append(error)

    def more(self, count: int) -> None:
        """Wait for ``count`` further answers."""
        wanted = len(self.answers) + count
        until(lambda: len(self.answers) >= wanted or bool(self.errors), "answers stopped")

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        self.more(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


def test_printed_status_has_a_working_prediction_command(served: str) -> None:
    status = serving.status(served)
    assert (status.state, status.version, status.ready, status.model) == ("Running", 1, 2, "digits")
    line = next(one for one in str(status).splitlines() if one.startswith("a prediction:")).partition(":")[2]
    line = line.replace("[...]", "[[1, 2, 3, 4]]")
    output = subprocess.run(
        ["bash", "-c", line.replace("curl ", "curl -s ")], capture_output=True, text=True, check=True
    )
    assert json.loads(output.stdout) == {"predictions": [1.0]}
    assert oct(Path(status.token_file).stat().st_mode & 0o777) == "0o600"


def test_request_without_the_token_or_beyond_the_size_limit_is_refused(served: str) -> None:
    status = serving.status(served)
    request = urllib.request.Request(f"{status.url}/v1/models/digits:predict", b"{}")
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(request)
    token = Path(status.token_file).read_text()
    long = urllib.request.Request(request.full_url, b" " * (100 << 20), {"authorization": f"Bearer {token}"})
    with pytest.raises(urllib.error.HTTPError, match="413") as refused:
        urllib.request.urlopen(long)
    assert "the request is larger than 67108864 bytes" in refused.value.read().decode()


def test_invalid_prediction_is_refused_with_the_reason(served: str) -> None:
    assert serving.predict(served, {"X": ROWS.tolist()}, version=1).tolist() == [1.0, 1.0]
    with pytest.raises(
        ArgumentError, match=r"input 'X': it has the shape \(2, 3\), but the model takes float64 \(any, 4\)"
    ):
        serving.predict(served, ROWS[:, :3])
    with pytest.raises(ArgumentError, match="version 7 is not served; the served versions are 1"):
        serving.predict(served, ROWS, version=7)
    with pytest.raises(ServingNotFound, match=r"there is no serving 'digit' in .*; did you mean digits"):
        serving.predict("digit", ROWS)


def test_second_server_is_refused_with_the_address_of_the_first(served: str) -> None:
    with pytest.raises(AlreadyServed) as refused:
        serving.start(served, version=2)
    assert serving.status(served).url in str(refused.value) and answered() == 1.0


def test_no_request_fails_during_a_roll_canary_replica_kill_or_failed_roll(served: str, project: Path) -> None:
    """Killed replicas restart and follow later rolls; a version that cannot be loaded changes nothing."""
    broken = model.export(_folder_with(project.parent / "broken", "model.pickle", b"no pickle"), "digits")
    text = Path(broken.url.removeprefix("file://"), "model.json")
    good = json.loads(Path(model.find("digits", 1).url.removeprefix("file://"), "model.json").read_text())
    described = json.loads(text.read_text())
    text.write_text(json.dumps({**described, **{key: good[key] for key in ("flavor", "artifacts", "signature")}}))
    with Load() as load:
        assert serving.roll(served, 2).version == 2
        load.more(20)
        assert serving.canary(served, 3, 0.5).canary == 3
        load.more(40)
        assert {2.0, 3.0} <= set(load.answers[-20:])
        with pytest.raises(ArgumentError, match="version 2 of 'digits' is already the default"):
            serving.canary(served, 2, 0.5)
        with pytest.raises(ServingError, match=r"(?s)continues without the change: replica \d: Unpickling"):
            serving.roll(served, broken.version)
        assert serving.canary(served, 3, 0).canary is None
        model.delete("digits", 2)  # the registry's copy
        before = serving.status(served).pids
        os.kill(before[0], signal.SIGKILL)
        load.more(20)
        until(lambda: serving.status(served).restarts == 1, "nobody has noticed the end of a replica")
        until(lambda: serving.status(served).ready == 2, "the replica did not come again")
        load.more(20)
        assert set(load.answers[-10:]) == {2.0}
        assert serving.roll(served, 1).version == 1
        load.more(20)
    assert not load.errors and set(load.answers) == {1.0, 2.0, 3.0}
    assert "was killed by signal 9" in serving.logs(served)


def test_interrupted_or_unrecorded_start_leaves_no_server(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        until(lambda: bool(starting._started.keys() - before), "no supervisor was started")
        os.kill(os.getpid(), signal.SIGINT)

    before = set(starting._started)
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        serving.start("unwanted", 1, model="digits")
    thread.join()
    with pytest.raises(ServingNotFound):
        serving.status("unwanted")
    monkeypatch.setattr(definitions, "write_definition", _no_room)
    with pytest.raises(QuotaExceeded):
        serving.start("unwanted", 1, model="digits")
    assert set(starting._started) == before
    with starting.exclusive_folder("unwanted", f"file://{project}"):
        pass  # its lock is free


def _no_room(definition: Any) -> None:
    raise QuotaExceeded("the disk is full", definition.name)


def test_suspended_supervisor_is_resumed_by_a_status_request(served: str) -> None:
    os.kill(serving.status(served).supervisor, signal.SIGSTOP)
    assert serving.status(served).ready == 2


def _folder_with(folder: Path, name: str, content: bytes) -> str:
    folder.mkdir()
    (folder / name).write_bytes(content)
    return str(folder)


def test_metrics_sum_all_replicas(served: str) -> None:
    def counted() -> float:
        status = serving.status(served)
        token = Path(status.token_file).read_text()
        request = urllib.request.Request(f"{status.url}/metrics", headers={"authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request) as answer:
            lines = answer.read().decode().splitlines()
        assert "hopsml_replicas 2" in lines
        (line,) = [one for one in lines if one.startswith('hopsml_requests_total{version="1",status="200"}')]
        return float(line.split()[-1])

    answered()
    before = counted()
    for _ in range(20):
        answered()
    assert counted() == before + 20


def test_load_is_published_for_the_web_page(served: str, project: Path) -> None:
    answered()
    found = servings.list_servings(f"file://{project}").servings

    def known() -> bool:
        found[:] = servings.list_servings(f"file://{project}").servings
        return found[0].load is not None and found[0].load.ready == 2 and bool(found[0].load.versions)

    until(known, "the load of two replicas that have answered")
    assert (found[0].name, found[0].state, found[0].model) == (served, "RUNNING", "digits")
    load = found[0].load
    assert load is not None and load.url == serving.status(served).url
    assert (load.replicas, load.version, load.versions[0].failed) == (2, 1, 0)
    token = Path(serving.status(served).token_file).read_text()
    assert token not in (project / "Serving" / f"{served}.load.json").read_text()


def test_stopped_serving_is_reported_and_its_request_log_is_in_the_project(project: Path) -> None:
    """Uses a separate serving, with its own log."""
    serving.start(
        "logged", model="digits", version="best", log_requests=True, token="a token of my own".replace(" ", "-")
    )
    assert serving.predict("logged", ROWS).tolist() == [VERSIONS, VERSIONS]
    status = serving.status("logged")
    with pytest.raises(ModelNotFound, match="no version or alias 'bst'"):
        serving.roll("logged", "bst")
    serving.stop("logged")
    assert not any(Path("/proc", str(pid)).exists() for pid in (*status.pids, status.supervisor))
    assert serving.status("logged").state == "Stopped" and not Path(status.token_file).exists()
    with pytest.raises(ServingError, match=r"'logged' is stopped; start it by hopsml.serving.start"):
        serving.predict("logged", ROWS)
    (segment,) = (project / "Serving" / "logged.requests").rglob("*.jsonl")
    (line,) = map(json.loads, segment.read_text().splitlines())
    assert line["inputs"] == {"X": ROWS.tolist()} and line["outputs"] == {"predict": [VERSIONS, VERSIONS]}
    serving.delete("logged")
    assert not serving.exists("logged") and segment.exists()


def test_replicas_of_a_killed_supervisor_end_and_the_serving_can_be_restarted(project: Path) -> None:
    first = serving.start("fragile", model="digits", version=1)
    os.kill(first.supervisor, signal.SIGKILL)
    until(lambda: not any(Path("/proc", str(pid)).exists() for pid in first.pids), "replicas stayed")
    assert serving.status("fragile").state == "Stopped"
    with pytest.raises(ServingError, match="does not answer"):
        serving.predict("fragile", ROWS)
    again = serving.start("fragile")
    assert serving.predict("fragile", ROWS).tolist() == [1.0, 1.0] and again.version == 1
    os.kill(again.supervisor, signal.SIGKILL)
    serving.delete("fragile")
    assert not (project / "Serving" / "fragile.server.json").exists()


def test_serving_that_cannot_start_is_explained_and_leaves_nothing(project: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        in_use = (
            f"cannot listen at 127.0.0.1:{port}: Address already in use; use an address of this machine, and another"
        )
        with pytest.raises(ServingError, match=in_use):
            serving.start("unstarted", model="digits", version=1, port=port)
    files = project / "Models" / "digits" / "1"
    copied = project.parent / "kept"
    shutil.copytree(files, copied)
    other = model.export(str(copied), "other")
    with pytest.raises(
        ArgumentError,
        match=r"version 1 of the model 'other' cannot be served: hopsml serves .* this version contains none",
    ):
        serving.start("unstarted", model="other", version=other.version)
    with pytest.raises(ModelNotFound, match="there is no model 'nothing'"):
        serving.start("unstarted", model="nothing")
    definitions.write_definition(ServingDefinition("of-old", "digits", version=99))
    with pytest.raises(
        ModelNotFound, match=r"has no version 99; .*version of the last start; .*version='latest' \(--version latest\)"
    ):
        serving.start("of-old")
    serving.delete("of-old")
    with pytest.raises(ArgumentError, match="replicas=0: the value must be 1 to 1024"):
        serving.start("unstarted", model="digits", replicas=0)
    with pytest.raises(ArgumentError, match=r"listen at 127.0.0.1 behind a proxy"):
        serving.start("unstarted", model="digits", host="0.0.0.0", without_token=True)
    assert not serving.exists("unstarted") and not (project / "Serving" / "unstarted.server.json").exists()


def test_saved_model_of_another_user_is_not_served(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "exported").mkdir()
    (tmp_path / "exported" / "saved_model.pb").write_bytes(b"a graph that reads files")
    model.export(tmp_path / "exported", "theirs")
    monkeypatch.setattr(trust, "own_owner_names", lambda url: frozenset({"somebody"}))
    with pytest.raises(ArgumentError, match="loading a model executes its content"):
        serving.start("theirs")


def test_record_of_a_server_on_another_machine_is_respected(project: Path) -> None:
    place = project / "Serving" / "elsewhere.server.json"
    record: dict[str, Any] = {"name": "elsewhere", "host": "0.0.0.0", "port": 80, "machine": "other.example", "pid": 1}
    place.parent.mkdir(exist_ok=True)
    place.write_text(json.dumps({**record, "user": "anna", "folder": "/x", "started": "2026-01-01T00:00:00Z"}))
    place.chmod(0o600)
    with pytest.raises(AlreadyServed, match=r"already served at http://other.example:80 by anna on other.example"):
        serving.start("elsewhere", model="digits", version=1)
    place.chmod(0o666)
    with pytest.raises(ArgumentError, match="can be written by users other than"):
        serving.start("elsewhere", model="digits", version=1)


def test_serve_command_serves_until_it_is_ended(project: Path) -> None:
    command = [sys.executable, "-m", "hopsml", "serve", "run", "command", "--model", "digits", "--version", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("command: version 1 of digits answers at http://127.0.0.1:")
        assert serving.predict("command", ROWS).tolist() == [1.0, 1.0]
        supervisor = serving.status("command").supervisor
        process.kill()
    until(lambda: not Path("/proc", str(supervisor)).exists(), "the server outlived the command")
    assert serving.status("command").state == "Stopped"


@pytest.mark.variant  # of the kill, and of what Supervision decides
def test_hanging_replica_is_killed_and_restarted(project: Path) -> None:
    status = serving.start("still", model="digits", version=1, replicas=2)
    try:
        os.kill(status.pids[0], signal.SIGSTOP)
        until(lambda: serving.status("still").restarts == 1, "nobody has noticed that a replica stands still")
        until(lambda: serving.status("still").ready == 2, "the replica did not come again")
        assert status.pids[0] not in serving.status("still").pids
        output = serving.logs("still")
        assert "replica 0 is stopped: it has sent nothing for 10 s" in output and "hopsml did not send it" not in output
    finally:
        serving.stop("still")
