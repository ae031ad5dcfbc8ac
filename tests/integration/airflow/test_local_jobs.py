"""Tests of jobs on this machine: real processes that outlive their parent process, and leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hopsml.airflow import local_jobs
from hopsml.airflow.jobs import Job, Request
from hopsml.core import file_locks, processes
from hopsml.core.states import Lifecycle
from hopsml.engines import local_driver
from hopsml.engines.local_driver import ENDED
from hopsml.errors import ArgumentError
from tests.helpers.clock import END_S, wait_until

pytestmark = pytest.mark.airflow  # for its time: nothing of Airflow is needed


@pytest.fixture
def request_of(tmp_path: Path) -> Iterator[Callable[..., Request]]:
    """Build requests for scripts, and end their jobs after the test."""
    made: list[Request] = []

    def build(text: str, *arguments: str, **more: object) -> Request:
        script = tmp_path / f"script{len(made)}.py"
        script.write_text(textwrap.dedent(text))
        project = f"file://{tmp_path}/project"
        request = Request(
            "hopsml-task-x", str(script), "local", sys.executable, project, arguments, folder=str(tmp_path / "jobs")
        )
        made.append(replace(request, **more))  # type: ignore[arg-type]
        return made[-1]

    yield build
    for request in made:
        for known in local_jobs.find(request):
            local_jobs.end(known.job)


def ended(job: Job) -> Lifecycle:
    wait_until(lambda: local_jobs.status(job).state.is_final)
    return local_jobs.status(job).state


def log_of(job: Job) -> str:
    return local_jobs.read_log(job, 0)[0]


SLEEP = """
    import os, sys, subprocess, time
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    print(os.getpid(), child.pid, flush=True)
    time.sleep(600)
"""


def test_script_gets_its_arguments_and_variables_but_none_of_airflow(request_of, monkeypatch):
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "postgresql://user:password@host/db")
    request = request_of(
        """
        import json, os, sys
        names = ("HOPSML_PROJECT_URL", "HOPSML_PROFILE", "HOPSML_LOCAL_SLOTS", "COLOUR")
        airflow = [name for name in os.environ if "AIRFLOW" in name]
        print(json.dumps({"arguments": sys.argv[1:], "airflow": airflow, **{name: os.environ[name] for name in names}}))
        """,
        "--part", "1", environment={"COLOUR": "red"}, num_workers=3,
    )  # fmt: skip
    job = local_jobs.start(request)
    assert ended(job) is Lifecycle.FINISHED, log_of(job)
    assert local_jobs.outcome(job, request)["metrics"] == {
        "arguments": ["--part", "1"], "airflow": [], "HOPSML_PROJECT_URL": request.project_url, "HOPSML_PROFILE": "local",
        "HOPSML_LOCAL_SLOTS": "3", "COLOUR": "red",
    }  # fmt: skip
    assert "password" not in "".join(path.read_text() for path in Path(job.id).iterdir())


def test_driver_outlives_its_starter_and_is_found_again(request_of):
    request = request_of(SLEEP)
    text = (
        f"from hopsml.airflow import local_jobs; from hopsml.airflow.jobs import Request; local_jobs.start({request!r})"
    )
    starter = subprocess.Popen([sys.executable, "-c", text + "; import os; os.kill(os.getpid(), 9)"])
    assert starter.wait(END_S) == -signal.SIGKILL
    (known,) = local_jobs.find(request)
    assert (known.state, known.delivered) == (Lifecycle.RUNNING, False)
    with pytest.raises(ArgumentError, match="follow that job instead"):
        local_jobs.start(request)
    assert len(local_jobs.find(request)) == 1


def test_ending_a_job_ends_all_its_processes(request_of):
    job = local_jobs.start(request_of(SLEEP))
    wait_until(lambda: log_of(job))
    local_jobs.end(job)
    assert local_jobs.status(job).state is Lifecycle.STOPPED
    wait_until(lambda: not alive(log_of(job)))
    local_jobs.end(job)  # once more is nothing


SERVES = """
import subprocess, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
waits = ["bash", "-c", "sleep 600 & echo begun; wait"]
for name, words in (("server", ["", "-m", "hopsml.serving.supervisor", "folder"]), ("other", [])):
    child = subprocess.Popen([*waits, *words], start_new_session=True, stdout=subprocess.PIPE)
    child.stdout.readline()
    (folder / f"{name}.part").write_text(str(child.pid))
    (folder / f"{name}.part").rename(folder / name)
while not (folder / "go").exists():
    time.sleep(0.01)
"""


@pytest.mark.parametrize("is_killed", [False, True])
def test_model_server_survives_the_normal_end_of_its_driver(request_of, tmp_path, is_killed):
    job = local_jobs.start(request_of(SERVES, str(tmp_path)))
    wait_until((tmp_path / "other").exists)
    server, other = (int((tmp_path / name).read_text()) for name in ("server", "other"))
    below = processes.descendants_of(server)
    if is_killed:
        local_jobs.end(job)
    else:
        (tmp_path / "go").touch()
    assert ended(job) == (Lifecycle.STOPPED if is_killed else Lifecycle.FINISHED)
    try:
        assert not Path(f"/proc/{other}").exists()
        assert [Path(f"/proc/{pid}").exists() for pid in (server, *below)] == [not is_killed, not is_killed]
    finally:
        for pid in (server, *below):
            processes.kill_quietly(pid)


def test_driver_is_killed_with_its_supervisor(request_of):
    job = local_jobs.start(request_of(SLEEP))
    wait_until(lambda: log_of(job))
    driver, child = map(int, log_of(job).split())
    os.kill(json.loads(Path(job.id, "running").read_text())["pid"], signal.SIGKILL)
    assert ended(job) is Lifecycle.FAILED
    assert "was killed" in local_jobs.status(job).detail
    wait_until(lambda: not alive(str(driver)))
    processes.kill_quietly(child)  # a grandchild that detached itself is out of a dead keeper's reach


ENDED_WHEN_IT_IS_KNOWN = """
write = os.pwrite
def write_and_end(*arguments):
    write(*arguments)
    os.kill(os.getpid(), signal.SIGTERM)
os.pwrite = write_and_end
"""
ENDED_WHEN_ITS_DRIVER_RUNS = """
start = subprocess.Popen.__init__
def start_and_end(self, *line, **named):
    start(self, *line, **named)
    while not (folder / "begun").exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)
subprocess.Popen.__init__ = start_and_end
"""
DRIVER = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
try:
    (folder / "begun").touch()
    time.sleep(600)
except KeyboardInterrupt:
    (folder / "in order").touch()
"""


@pytest.mark.parametrize(
    "moment", [ENDED_WHEN_IT_IS_KNOWN, ENDED_WHEN_ITS_DRIVER_RUNS], ids=["once it is recorded", "once its driver runs"]
)
def test_job_can_be_ended_in_order_at_any_moment(tmp_path: Path, moment: str) -> None:
    code = f"""
import json, os, signal, subprocess, time
from pathlib import Path
from hopsml.engines.local_driver import DriverOrder, main
folder = Path({str(tmp_path)!r})
{moment}
main(folder, DriverOrder(**json.loads(input())))
"""
    order = {
        "command": [sys.executable, "-c", DRIVER, str(tmp_path)],
        "environment": dict(os.environ),
        "is_bound": True,
    }
    subprocess.run([sys.executable, "-c", code], input=json.dumps(order), text=True, check=True, timeout=END_S)
    wait_until((tmp_path / ENDED).exists)
    seen = local_driver.status_of(tmp_path)
    assert seen is not None and seen.state is Lifecycle.STOPPED and seen.was_requested
    assert (tmp_path / "in order").exists() == (tmp_path / "begun").exists() == (moment == ENDED_WHEN_ITS_DRIVER_RUNS)


def test_cause_of_a_driver_failure_is_reported(request_of):
    left = local_jobs.start(request_of("import sys; sys.exit(3)"))
    assert ended(left) is Lifecycle.FAILED and "exit status 3" in local_jobs.status(left).detail
    killed = local_jobs.start(request_of("import os; os.kill(os.getpid(), 9)"))
    assert ended(killed) is Lifecycle.FAILED and "SIGKILL" in local_jobs.status(killed).detail
    odd = local_jobs.start(request_of("import os; os.kill(os.getpid(), 40)"))
    assert ended(odd) is Lifecycle.FAILED and "SIGRTMIN+6" in local_jobs.status(odd).detail
    absent = local_jobs.start(replace(request_of(""), python="/nowhere/python"))
    assert (
        ended(absent) is Lifecycle.FAILED and "/nowhere/python could not be started" in local_jobs.status(absent).detail
    )
    assert [known.job for known in local_jobs.find(request_of(""))] == [absent, odd, killed, left], "the youngest first"


def test_log_is_read_incrementally_by_complete_lines(request_of, tmp_path):
    go = tmp_path / "go"
    request = request_of(
        f"""
        import os, sys, time
        print("one"); print("tw", end="", flush=True)
        while not os.path.exists({str(go)!r}): time.sleep(0.01)
        print("o"); print("three", end="")
        """
    )
    job = local_jobs.start(request)
    wait_until(lambda: Path(job.id, "output.log").read_bytes() == b"one\ntw")
    text, offset = local_jobs.read_log(job, 0)
    assert text == "one\n", "half a line waits for its other half"
    go.touch()
    ended(job)
    assert local_jobs.read_log(job, offset)[0] == "two\nthree"


def test_job_of_another_machine_is_lost(tmp_path):
    seen = local_jobs.status(Job("local", str(tmp_path / "elsewhere" / "1")))
    assert seen.state is Lifecycle.LOST and "on this machine" in seen.detail


def test_crashed_starter_without_a_supervisor_does_not_block_a_new_job(request_of, tmp_path):
    request = request_of("print('works')")
    Path(request.folder, request.tag, "1").mkdir(parents=True)
    Path(request.folder, request.tag, "1", "lock").touch()
    assert local_jobs.find(request)[0].state is Lifecycle.FAILED
    assert ended(local_jobs.start(request)) is Lifecycle.FINISHED


def test_jobs_that_ended_long_ago_are_removed(request_of):
    first = local_jobs.start(request_of(""))
    ended(first)
    long_ago = time.time() - 2 * local_jobs.KEEP_S
    os.utime(Path(first.id, ENDED), (long_ago, long_ago))
    second = local_jobs.start(request_of(""))
    ended(second)
    assert second.id != first.id, "a number is never given twice"
    third = local_jobs.start(request_of("", tag="hopsml-task-y"))
    ended(third)
    assert [Path(job.id).exists() for job in (first, second, third)] == [False, True, True]


def alive(pids: str) -> bool:
    return any(
        Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text() for pid in pids.split()
    )


def test_ended_job_of_an_earlier_version_has_its_recorded_state(request_of):
    request = request_of("")
    folder = Path(request.folder, request.tag, "1")
    folder.mkdir(parents=True)
    (folder / "lock").touch()
    (folder / "exit.json").write_text(json.dumps({"state": "SUCCEEDED", "detail": "", "ended": time.time()}))
    assert [known.state for known in local_jobs.find(request)] == [Lifecycle.FINISHED]
    long_ago = time.time() - 2 * local_jobs.KEEP_S
    os.utime(folder / "exit.json", (long_ago, long_ago))
    ended(local_jobs.start(request_of("", tag="hopsml-task-y")))
    assert not folder.exists()


EARLIER_SUPERVISOR = """
import json, os, signal, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
def end(number, frame):
    (folder / "exit.json").write_text(json.dumps({"state": "KILLED", "detail": "it was ended by its task"}))
    sys.exit()
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(600)
"""


def test_running_job_of_an_earlier_version_can_be_ended(request_of):
    request = request_of("")
    folder = Path(request.folder, request.tag, "1")
    folder.mkdir(parents=True)
    with open(folder / "lock", "w") as lock:
        assert file_locks.try_lock(lock.fileno())
        supervisor = subprocess.Popen(
            [sys.executable, "-c", EARLIER_SUPERVISOR, str(folder)],
            pass_fds=[lock.fileno()],
            stdout=subprocess.PIPE,
            text=True,
        )
    try:
        assert supervisor.stdout is not None and supervisor.stdout.readline() == "ready\n"
        recorded = {"pid": supervisor.pid, "process_started": processes.start_time_of(supervisor.pid)}
        recorded |= {"host": "this one", "pid_namespace": processes.pid_namespace()}
        (folder / "job.json").write_text(json.dumps({"command": "", "keeper": recorded, "started": time.time()}))
        job = Job("local", str(folder))
        assert local_jobs.status(job).state is Lifecycle.RUNNING
        local_jobs.end(job)
        assert local_jobs.status(job).state is Lifecycle.STOPPED
    finally:
        supervisor.kill()
        supervisor.communicate()


@pytest.mark.parametrize(
    "content", ["", "[]", "{", "[" * 100_000, '{"state": "ODD", "detail": ""}', '{"state": "FAILED"}']
)
def test_damaged_record_of_an_earlier_version_does_not_hide_other_jobs(request_of, content):
    request = request_of("")
    folder = Path(request.folder, request.tag, "1")
    folder.mkdir(parents=True)
    (folder / "exit.json").write_text(content)
    (folder / "job.json").write_text(content)
    assert [known.state for known in local_jobs.find(request)] == [Lifecycle.FAILED]
    assert ended(local_jobs.start(request)) is Lifecycle.FINISHED


def test_job_folder_writable_by_other_users_is_refused(request_of, tmp_path):
    request = request_of("")
    root = Path(request.folder)
    root.mkdir()
    root.chmod(0o777)
    with pytest.raises(ArgumentError, match="all users may write"):
        local_jobs.start(request)
    root.chmod(0o1777)  # as /tmp: folders of others cannot be replaced there, only made before
    (root / request.tag).mkdir()
    if os.geteuid() == 0:
        os.chown(root / request.tag, 12345, 12345)
        with pytest.raises(ArgumentError, match="it belongs to user 12345"):
            local_jobs.start(request)
        os.chown(root / request.tag, 0, 0)
    (root / request.tag).chmod(0o777)
    with pytest.raises(ArgumentError, match="other users have rights to it"):
        local_jobs.start(request)
    (root / request.tag).rmdir()
    assert ended(local_jobs.start(request)) is Lifecycle.FINISHED


def test_submission_command_imports_nothing_from_the_working_directory(request_of, tmp_path):
    (tmp_path / "hopsml").mkdir()
    (tmp_path / "hopsml" / "__init__.py").write_text("print('taken over')")
    line = local_jobs.submit_command(request_of(""), {})
    line = [*line[: line.index("submit") + 1], "--help"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=END_S)
    assert "taken over" not in done.stdout and "--num-workers" in done.stdout, done
