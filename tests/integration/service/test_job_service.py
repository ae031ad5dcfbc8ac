"""Tests of the local job service: submitted jobs run as processes, outlive it, and are found again."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hopsml.cli import service_jobs
from hopsml.client import Client, ServiceJobDetail
from hopsml.core.states import Lifecycle
from hopsml.errors import ArgumentError, JobNotFound, ServiceError
from hopsml.service.store import JobStore
from hopsml.service.store.accounts import Secrets, secrets_key
from hopsml.service.workspaces import Workspaces
from tests.helpers.cluster.workloads import wait_until
from tests.helpers.power_loss import ForgetfulDisk

pytestmark = pytest.mark.local

# What a job runs: it holds a lock while it lives, so that a second one of the same job is seen, and ends when it may.
SCRIPT = """
import argparse, fcntl, os, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--name"); parser.add_argument("--folder")
asked = parser.parse_args()
lock = open(f"{asked.folder}/{asked.name}.lock", "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    open(f"{asked.folder}/DOUBLED", "a").write(asked.name)
open(f"{asked.folder}/{asked.name}.starts", "a").write(os.environ["HOPSML_JOB_TAG"] + "\\n")
print("running", asked.name, flush=True)
while not os.path.exists(f"{asked.folder}/{asked.name}.end"):
    time.sleep(0.02)
sys.exit(int(open(f"{asked.folder}/{asked.name}.end").read() or 0))
"""
# A training of 200 samples, one a step, each recorded before its commit.
COUNT = """
def count(folder):
    import os, time, hopsml
    state = hopsml.elastic.State(seen=0)
    for batch in state.resume(hopsml.elastic.Sampler(200, global_batch_size=1, seed=1, epochs=1)):
        open(f"{folder}/samples", "a").write("".join(f"{int(sample)}\\n" for sample in batch))
        state.seen += 1
        print("has seen", state.seen, flush=True)
        hopsml.report(step=state.seen, seen=state.seen)
        state.commit(every=1)
        time.sleep(0.0 if os.path.exists(f"{folder}/hurry") else 0.05)
    return {"seen": state.seen}
"""
WAIT_S = 60.0


class JobService:
    """Successive server processes over the same state, and the folder of their jobs."""

    def __init__(self, folder: Path) -> None:
        self.state, self.jobs, self.code = folder / "state", folder / "jobs", folder / "code"
        for each in (self.jobs, self.code):
            each.mkdir()
        (self.code / "script.py").write_text(SCRIPT)
        self.process: subprocess.Popen[str] | None = None
        self.database = ""  # empty: SQLite in its state folder
        self.log = folder / "server.log"
        self.variables: dict[str, str] = {}

    def start(self, cores: int = 2, act: int | None = None, lease_s: float | None = None) -> Client:
        """Start the server; returns at once if it dies at ``act``, else when it answers.

        The client continues with the next server, unless another server was running.
        """
        command = [sys.executable, "-m", "tests.integration.service.crashing_server", str(self.state), str(cores)]
        command += ["-" if act is None else str(act), self.database, *([] if lease_s is None else [str(lease_s)])]
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, **self.variables}
            )
        assert self.process.stdout is not None
        address = self.process.stdout.readline()
        if not address:
            return Client("http://127.0.0.1:1", "gone")
        url, _, token = address.strip().partition("?token=")
        own = Client.of_state(self.state)
        return own if own._address == url.rstrip("/") else Client(url, token)

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.kill()
        self.ended()

    def stop(self) -> int:
        """End the server with SIGTERM and return its exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> int:
        """Wait for the end of the server and return its exit status."""
        assert self.process is not None and self.process.stdout is not None
        status = self.process.wait(WAIT_S)
        self.process.stdout.close()
        self.process = None
        return status

    def job(self, name: str, **more: object) -> Path:
        """Write the file of a job with one worker that runs until ``end``."""
        path = self.code / f"{name}.yaml"
        extra = "".join(f"{key}: {value}\n" for key, value in more.items() if key != "cores")
        path.write_text(
            f"name: {name}\n{extra}tasks: {{main: {{script: script.py, resources: {{cores: {more.get('cores', 1)}}}, "
            f"arguments: {{name: {name}, folder: {self.jobs}}}}}}}\n"
        )
        return path

    def end(self, name: str, status: int = 0) -> None:
        """Let the job end."""
        (self.jobs / f"{name}.end").write_text(str(status))

    def again(self, name: str) -> None:
        """Let its next try run."""
        (self.jobs / f"{name}.end").unlink()

    def starts(self, name: str) -> list[str]:
        """Return the tags of all starts of a job."""
        path = self.jobs / f"{name}.starts"
        return path.read_text().split() if path.exists() else []

    def runs(self) -> list[int]:
        """Return the process ids of running drivers."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                command = Path("/proc", pid, "cmdline").read_bytes()
                if b"hopsml_job_driver" in command and str(self.state).encode() in command:
                    found.append(int(pid))
        return found


@pytest.fixture
def service(tmp_path: Path) -> Iterator[JobService]:
    yield from served(tmp_path)


def served(folder: Path) -> Iterator[JobService]:
    """Yield a service, and end it with all its processes afterwards."""
    made = JobService(folder)
    yield made
    if made.process is not None:
        made.kill()
    for pid in made.runs():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not made.runs(), "the end of all drivers")


def reaches(client: Client, job: str, *states: Lifecycle) -> Callable[[], ServiceJobDetail | None]:
    def find() -> ServiceJobDetail | None:
        found = client.job(job)
        return found if found.state in states else None

    return find


def listed(client: Client, job: str) -> str:
    """Return the line of a job in the output of ``hopsml jobs ls --all``."""
    known = {**os.environ, "HOPSML_SERVER": client._address, "HOPSML_TOKEN": client._token}
    line = [sys.executable, "-m", "hopsml", "jobs", "ls", "--all"]
    printed = subprocess.run(line, env=known, capture_output=True, text=True, timeout=WAIT_S, check=True).stdout
    return next(each for each in printed.splitlines() if each.startswith(f"{job} "))


def test_job_runs_and_ends_while_another_waits_with_a_reason(service: JobService) -> None:
    client = service.start(cores=2)
    first = client.submit(service.job("first", cores=2))
    assert first.id == "first-1" and first.state == Lifecycle.WAITING
    wait_until(reaches(client, "first-1", Lifecycle.RUNNING), "the first")
    second = client.submit(service.job("second"))
    wait_until(lambda: "needs 1 slot of 1 core" in client.why(second.id), "the reason")
    assert f"{first.owner}'s first-1 holds" in client.why(second.serial)
    assert "needs 1 slot of 1 core" in listed(client, second.id)
    assert [job.id for job in client.jobs()] == ["second-2", "first-1"]
    wait_until(lambda: "running first" in client.log("first-1")[0], "its log")
    service.end("first")
    wait_until(reaches(client, "first-1", Lifecycle.FINISHED), "its end")
    wait_until(reaches(client, "second-2", Lifecycle.RUNNING), "the second")
    service.end("second")
    assert client.wait("second-2", WAIT_S).state == Lifecycle.FINISHED
    states = [change.state for change in client.changes("second-2") if not change.task]
    assert states == [Lifecycle.WAITING, Lifecycle.STARTING, Lifecycle.RUNNING, Lifecycle.FINISHED]
    assert service.stop() == 0


@pytest.mark.variant
def test_files_of_an_ended_job_are_removed_by_command(service: JobService) -> None:
    client = service.start()
    service.end("one")
    job = client.submit(service.job("one"))
    known = {**os.environ, "HOPSML_SERVER": client._address, "HOPSML_TOKEN": client._token}

    def remove() -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "hopsml", "jobs", "rm", job.id]
        return subprocess.run(line, env=known, capture_output=True, text=True, timeout=WAIT_S)

    assert client.wait(job.id, WAIT_S).state == Lifecycle.FINISHED
    aside = service.state / "applications" / ".ended"
    wait_until(lambda: any(aside.iterdir()), "the end of the driver to be stored")
    assert "running one" in client.log(job.id)[0]
    assert remove().stdout == "one-1: its files are deleted\n" == remove().stdout
    assert not any(aside.iterdir()) and not any((service.state / "jobs").iterdir())
    assert client.job(job.id).state == Lifecycle.FINISHED and client.log(job.id) == ("", 0)
    assert service.stop() == 0


def test_interrupted_wait_for_a_job_explains_that_the_job_continues(service: JobService) -> None:
    client = service.start(cores=2)
    known = {**os.environ, "HOPSML_SERVER": client._address, "HOPSML_TOKEN": client._token}
    command = [sys.executable, "-m", "hopsml", "jobs", "submit", "--wait", str(service.job("one"))]
    with subprocess.Popen(command, env=known, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waits:
        assert waits.stdout is not None and waits.stderr is not None
        assert waits.stdout.readline() == "one-1\n"
        assert "running one" in waits.stdout.readline()
        waits.send_signal(signal.SIGINT)
        message = "one-1 continues: `hopsml jobs logs -f one-1` follows the job, `hopsml jobs cancel one-1` ends it\n"
        assert waits.stderr.read() == message and waits.wait(WAIT_S) == 128 + signal.SIGINT
    follows = [sys.executable, "-m", "hopsml", "jobs", "logs", "--follow", "one-1"]
    with subprocess.Popen(follows, env=known, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as reads:
        assert reads.stdout is not None and reads.stderr is not None
        assert "running one" in reads.stdout.readline()
        reads.send_signal(signal.SIGINT)
        assert reads.stderr.read() == message and reads.wait(WAIT_S) == 128 + signal.SIGINT
    assert client.job("one-1").state == Lifecycle.RUNNING
    service.end("one")
    client.wait("one-1", WAIT_S)
    service.stop()


def test_job_that_is_waited_for_names_what_holds_its_slots(service: JobService) -> None:
    client = service.start(cores=1)
    holder = client.submit(service.job("one"))
    wait_until(lambda: client.job(holder.id).state == Lifecycle.RUNNING, "the first job")
    known = {**os.environ, "HOPSML_SERVER": client._address, "HOPSML_TOKEN": client._token}
    command = [sys.executable, "-m", "hopsml", "jobs", "submit", "--wait", str(service.job("two"))]
    with subprocess.Popen(command, env=known, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waits:
        assert waits.stderr is not None
        line = waits.stderr.readline()
        assert line.startswith("two-2 waits: ") and "one-1" in line, line
        service.end("one")
        service.end("two")
        assert waits.wait(WAIT_S) == 0
    assert service.stop() == 0


@pytest.mark.variant
def test_terminal_sequences_in_a_job_cause_are_removed_from_output(service: JobService) -> None:
    client = service.start()
    (service.code / "script.py").write_text(
        r"import sys; sys.exit('\x1b]0;owned\x07\x1b[2J\x9b31mred over \u202eleft')"
    )
    job = client.submit(service.job("evil"))
    assert client.wait(job.id, WAIT_S).state == Lifecycle.FAILED
    assert "\x1b" in client.job(job.id).cause
    known = {**os.environ, "HOPSML_SERVER": client._address, "HOPSML_TOKEN": client._token}
    for command in (["show", job.id], ["why", job.id], ["ls", "--all"]):
        shown = subprocess.run(
            [sys.executable, "-m", "hopsml", "jobs", *command], env=known, capture_output=True, text=True, check=True
        ).stdout
        assert "over" in shown and "left" in shown
        assert not [letter for letter in shown if letter != "\n" and not letter.isprintable()], repr(shown)
    service.stop()


@pytest.mark.variant
def test_failed_job_is_retried_and_its_cause_states_the_exit_status(service: JobService) -> None:
    client = service.start()
    job = client.submit(service.job("shaky", retries=1))
    service.end("shaky", status=3)
    wait_until(lambda: len(service.starts("shaky")) == 2, "the second try")
    ended = client.wait(job.id, WAIT_S)
    assert ended.state == Lifecycle.FAILED and "exit status 3" in ended.cause and ended.tries == 2
    assert "exit status 3" in listed(client, job.id)
    assert len(set(service.starts("shaky"))) == 2
    service.stop()


def test_job_is_paused_resumed_cancelled_moved_and_cloned(service: JobService) -> None:
    client = service.start(cores=1)
    job = client.submit(service.job("one"))
    wait_until(reaches(client, job.id, Lifecycle.RUNNING), "the job")
    client.pause(job.id)
    paused = wait_until(reaches(client, job.id, Lifecycle.PAUSED), "the pause")
    assert "paused by" in paused.cause and not service.runs()
    other = client.submit(service.job("two"))
    wait_until(reaches(client, other.id, Lifecycle.RUNNING), "its slots are free")
    client.resume(job.id)
    wait_until(lambda: client.why(job.id), "it waits")
    client.move(job.id, priority=90)
    wait_until(lambda: client.job(job.id).priority == 90, "the move")
    with pytest.raises(ArgumentError, match="no queue"):
        client.move(job.id, queue="nowhere")
    client.cancel(other.id)
    cancelled = wait_until(reaches(client, other.id, Lifecycle.CANCELLED), "the cancel")
    (task,) = cancelled.applications
    assert (task.state, task.cause) == (Lifecycle.CANCELLED, cancelled.cause) and "cancelled by" in task.cause
    wait_until(reaches(client, job.id, Lifecycle.RUNNING), "it goes on")
    assert client.cancel(other.id).state == Lifecycle.CANCELLED
    twin = client.clone(job.id)
    assert twin.id == "one-3"
    client.cancel(twin.id)
    wait_until(reaches(client, twin.id, Lifecycle.CANCELLED), "a job that waits is cancelled at once")
    service.end("one")
    assert client.wait(job.id, WAIT_S).state == Lifecycle.FINISHED
    with pytest.raises(JobNotFound):
        client.job("one-2")
    service.stop()


def test_paused_training_continues_from_its_last_commit(service: JobService) -> None:
    (service.code / "count.py").write_text(COUNT)
    path = service.code / "counts.yaml"
    path.write_text(
        "name: counts\ntasks: {main: {function: count.py:count, framework: distributed, min: 1, max: 2, "
        f"arguments: {{folder: {service.jobs}}}}}}}\n"
    )
    client = service.start(cores=2)
    job, samples = client.submit(path), service.jobs / "samples"
    wait_until(lambda: samples.exists() and len(samples.read_text().split()) > 20, "some steps")
    printed: list[str] = []
    follows = threading.Thread(target=lambda: printed.extend(client.rank_log(job.id, 0, follow=True)))
    follows.start()
    client.pause(job.id)
    wait_until(reaches(client, job.id, Lifecycle.PAUSED), "the pause")
    (service.jobs / "hurry").touch()
    client.resume(job.id)
    assert client.wait(job.id, WAIT_S).state == Lifecycle.FINISHED
    trained = samples.read_text().split()
    assert {int(sample) for sample in trained} == set(range(200))
    assert len(trained) <= 200 + 2 * 2, "no step but those under way was made twice"
    runs = sorted(path.name for path in (service.state / "project" / "Experiments").iterdir())
    assert len(runs) == 2 and all(name.startswith("counts-1-") and "-main_" in name for name in runs)
    follows.join(WAIT_S)
    assert {line for line in printed if "has seen" in line} >= {f"has seen {count}" for count in (1, 100)}
    assert printed[-1] == "has seen 200", "from the one run to the other, to the end of the job"
    assert [metric.last for run in client.metrics(job.id) for metric in run.metrics][-1] == 200.0
    service.stop()


@pytest.mark.variant
def test_empty_log_is_explained_with_the_job_state(
    service: JobService, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOPSML_SERVER_STATE", str(service.state))
    client = service.start(cores=1)
    job = client.submit(service.job("first"))
    wait_until(reaches(client, job.id, Lifecycle.RUNNING), "the first")
    waits = client.submit(service.job("second"))
    capsys.readouterr()
    service_jobs.logs(waits.id, rank=None, number=None, task="", run="")
    assert capsys.readouterr() == ("", f"{waits.id} (WAITING): its driver has not started yet\n")
    service_jobs.logs(waits.id, rank=1, number=None, task="", run="")
    assert capsys.readouterr() == ("", f"{waits.id} (WAITING): it has made no run yet\n")
    client.cancel(waits.id)
    service.end("first")
    assert client.wait(job.id, WAIT_S).state == Lifecycle.FINISHED
    service.stop()


@pytest.mark.variant
def test_job_that_can_never_run_is_refused_with_the_available_resources(service: JobService) -> None:
    client = service.start(cores=2)
    wait_until(lambda: client.cluster()["capacity"]["cores"], "the nodes")
    with pytest.raises(ArgumentError, match=r"can never run here.*2 cores"):
        client.submit(service.job("huge", cores=64))
    with pytest.raises(ArgumentError, match="no queue 'reserch'"):
        client.submit(service.job("lost", queue="reserch"))
    assert client.jobs(limit=5) == []
    service.stop()


@pytest.mark.variant
def test_jobs_continue_during_a_service_outage(service: JobService) -> None:
    client = service.start(cores=2)
    jobs = [client.submit(service.job(name)) for name in ("ends", "runs", "waits")]
    for job in jobs[:2]:
        wait_until(reaches(client, job.id, Lifecycle.RUNNING), job.id)
    service.kill()
    service.end("ends")
    wait_until(lambda: len(service.runs()) == 1, "its end while nobody looks")
    client = service.start(cores=2)
    started_s = time.monotonic()
    wait_until(reaches(client, jobs[0].id, Lifecycle.FINISHED), "what had ended")
    assert client.job(jobs[1].id).state == Lifecycle.RUNNING
    wait_until(reaches(client, jobs[2].id, Lifecycle.RUNNING), "what had waited")
    assert time.monotonic() - started_s < WAIT_S
    for name in ("runs", "waits"):
        service.end(name)
    assert [client.wait(job.id, WAIT_S).state for job in jobs] == [Lifecycle.FINISHED] * 3
    assert [len(service.starts(name)) for name in ("ends", "runs", "waits")] == [1, 1, 1]
    service.stop()


def run_scenario_twice(service: JobService, scenario: Callable[[Client], None], act: int) -> Client:
    """Run a scenario with a server that dies at one of its actions, and again with the next server."""
    with contextlib.suppress(ServiceError):
        scenario(service.start(cores=2, act=act))
    assert service.process is not None
    if service.process.poll() is None:
        service.stop()  # it had fewer acts
    else:
        assert service.ended() == -signal.SIGKILL
    client = service.start(cores=2)
    scenario(client)
    return client


@pytest.mark.parametrize(
    "act", [3, *(pytest.param(act, marks=pytest.mark.variant) for act in (0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13))]
)
def test_server_crash_at_any_action_loses_no_job_and_starts_none_twice(service: JobService, act: int) -> None:
    stays, goes = service.job("stays"), service.job("goes")

    def scenario(client: Client) -> None:
        one, other = (client.submit(path, idempotency_key=key).id for path, key in ((stays, "a"), (goes, "b")))
        wait_until(reaches(client, other, Lifecycle.RUNNING, Lifecycle.CANCELLED), "goes")
        client.cancel(other)
        wait_until(reaches(client, other, Lifecycle.CANCELLED), "the cancel")
        service.end("stays")
        client.wait(one, WAIT_S)

    client = run_scenario_twice(service, scenario, act)
    assert sorted((job.name, job.state) for job in client.jobs(limit=10)) == [  # a number may have been left out
        ("goes", Lifecycle.CANCELLED),
        ("stays", Lifecycle.FINISHED),
    ]
    assert not (service.jobs / "DOUBLED").exists()
    wait_until(lambda: not service.runs(), "no application is left")
    service.stop()


@pytest.mark.variant
def test_standby_server_waits_and_takes_over(service: JobService, tmp_path: Path) -> None:
    client = service.start()
    job = client.submit(service.job("one"))
    wait_until(reaches(client, job.id, Lifecycle.RUNNING), "the job")
    first = service.process
    second = service.start()
    two = client.submit(service.job("two", cores=2))
    wait_until(lambda: "another server runs the jobs" in second.why(two.id), "its answer")
    assert second.cluster()["leads"] is False and second.cluster()["leader"] in client._address + "/"
    assert first is not None and first.stdout is not None
    first.kill()
    first.wait()
    first.stdout.close()
    wait_until(lambda: second.cluster()["leads"], "the other one to lead")
    service.end("one")
    assert second.wait(job.id, WAIT_S).state == Lifecycle.FINISHED
    service.end("two")
    assert second.wait("two-2", WAIT_S).state == Lifecycle.FINISHED
    assert [len(service.starts(name)) for name in ("one", "two")] == [1, 1]
    service.stop()


def stop_outside_of_a_transaction(process: subprocess.Popen[str], database: Path) -> None:
    """SIGSTOP; a process that holds SQLite's lock would keep every other one from the database."""

    def stopped() -> bool:
        process.send_signal(signal.SIGSTOP)
        wait_until(
            lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", "SIGSTOP"
        )
        if not database.exists():  # PostgreSQL ends the transaction
            return True
        with contextlib.closing(sqlite3.connect(database, timeout=0.0, isolation_level=None)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                process.send_signal(signal.SIGCONT)
                return False
            connection.execute("ROLLBACK")
            return True

    wait_until(stopped, "a moment between two transactions")


def test_suspended_former_leader_does_not_touch_jobs_of_its_successor(service: JobService) -> None:
    client = service.start(cores=3, lease_s=2.0)
    old = client.submit(service.job("old"))
    wait_until(reaches(client, old.id, Lifecycle.RUNNING), "a job of the first server")
    first = service.process
    assert first is not None and first.stdout is not None
    stop_outside_of_a_transaction(first, service.state / "service.db")
    second = service.start(cores=3, lease_s=2.0)
    wait_until(lambda: second.cluster()["leads"], "the other one to lead", WAIT_S)
    ended, fresh = second.submit(service.job("ended")), second.submit(service.job("fresh"))
    for each in (ended, fresh):
        wait_until(reaches(second, each.id, Lifecycle.RUNNING), "jobs of the second server", WAIT_S)
    service.end("ended")
    assert second.wait(ended.id, WAIT_S).state == Lifecycle.FINISHED
    service.stop()
    first.send_signal(signal.SIGCONT)
    wait_until(lambda: client.cluster()["leads"], "its lead")
    later = client.submit(service.job("later"))
    wait_until(lambda: not client.why(later.id), "its slot")
    assert [client.job(job.id).state for job in (old, ended, fresh)] == [
        Lifecycle.RUNNING,
        Lifecycle.FINISHED,
        Lifecycle.RUNNING,
    ]
    for name in ("old", "fresh"):
        service.end(name)
        assert client.wait(f"{name}-{1 if name == 'old' else 3}", WAIT_S).state == Lifecycle.FINISHED
    assert [len(service.starts(name)) for name in ("old", "ended", "fresh")] == [1, 1, 1]
    assert not (service.jobs / "DOUBLED").exists()
    service.process = first
    service.stop()


def test_acknowledged_changes_survive_a_power_failure(service: JobService, tmp_path: Path) -> None:
    disk = ForgetfulDisk(tmp_path / "disk")
    service.variables = disk.variables
    client = service.start(cores=1)
    client.submit(service.job("blocks"))
    process = service.process
    assert process is not None

    def state_after_power_loss(name: str) -> Path:
        """Return the server's state as a power failure would leave it now."""
        stop_outside_of_a_transaction(process, service.state / "service.db")
        found = disk.rebuild(service.state, tmp_path / name)
        process.send_signal(signal.SIGCONT)
        return found

    first = client.submit(service.job("first"))
    submitted = state_after_power_loss("submitted")
    client.put_secret("s3-key", "hunter2-and-more")
    secret_stored = state_after_power_loss("kept")
    client.pause(first.id)
    paused = state_after_power_loss("paused")
    with contextlib.closing(JobStore.open(f"sqlite:///{submitted}/service.db")) as store:
        row = store.job(first.serial)
        assert row.name == "first"
        code = Workspaces(submitted, "file:///project", lambda owner, names: {}).folder(row.workspace)
        assert (code / "script.py").read_text() == SCRIPT
    with contextlib.closing(JobStore.open(f"sqlite:///{secret_stored}/service.db")) as store:
        assert Secrets(store, secrets_key(secret_stored)).values(first.owner, ["s3-key"]) == {
            "s3-key": "hunter2-and-more"
        }
    with contextlib.closing(JobStore.open(f"sqlite:///{paused}/service.db")) as store:
        assert store.job(first.serial).state == Lifecycle.PAUSED or [
            request.kind for request in store.open_requests()
        ] == ["PAUSE"]
    service.stop()
