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
    """A request for a script with this text; whatever it started is ended behind the test."""
    made: list[Request] = []

    def build(text: str, *arguments: str, **more: object) -> Request:
        script = tmp_path / f"script{len(made)}.py"
        script.write_text(textwrap.dedent(text))
        project = f"file://{tmp_path}/project"
        asked = Request(
            "hopsml-task-x", str(script), "local", sys.executable, project, arguments, folder=str(tmp_path / "jobs")
        )
        made.append(replace(asked, **more))  # type: ignore[arg-type]
        return made[-1]

    yield build
    for asked in made:
        for known in local_jobs.find(asked):
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


def test_a_script_gets_its_arguments_and_variables_and_none_of_airflows(request_of, monkeypatch):
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "postgresql://user:password@host/db")
    asked = request_of(
        """
        import json, os, sys
        names = ("HOPSML_PROJECT_URL", "HOPSML_PROFILE", "HOPSML_LOCAL_SLOTS", "COLOUR")
        airflow = [name for name in os.environ if "AIRFLOW" in name]
        print(json.dumps({"arguments": sys.argv[1:], "airflow": airflow, **{name: os.environ[name] for name in names}}))
        """,
        "--part", "1", environment={"COLOUR": "red"}, num_workers=3,
    )  # fmt: skip
    job = local_jobs.start(asked)
    assert ended(job) is Lifecycle.FINISHED, log_of(job)
    assert local_jobs.outcome(job, asked)["metrics"] == {
        "arguments": ["--part", "1"], "airflow": [], "HOPSML_PROJECT_URL": asked.project_url, "HOPSML_PROFILE": "local",
        "HOPSML_LOCAL_SLOTS": "3", "COLOUR": "red",
    }  # fmt: skip
    assert "password" not in "".join(path.read_text() for path in Path(job.id).iterdir())


def test_a_driver_outlives_who_started_it_and_is_found_again(request_of):
    asked = request_of(SLEEP)
    text = (
        f"from hopsml.airflow import local_jobs; from hopsml.airflow.jobs import Request; local_jobs.start({asked!r})"
    )
    starter = subprocess.Popen([sys.executable, "-c", text + "; import os; os.kill(os.getpid(), 9)"])
    assert starter.wait(END_S) == -signal.SIGKILL
    (known,) = local_jobs.find(asked)
    assert (known.state, known.delivered) == (Lifecycle.RUNNING, False)
    with pytest.raises(ArgumentError, match="follow that job instead"):
        local_jobs.start(asked)
    assert len(local_jobs.find(asked)) == 1


def test_ending_a_job_ends_everything_that_it_started(request_of):
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
def test_a_server_of_models_stays_behind_a_driver_that_has_ended_by_itself(request_of, tmp_path, is_killed):
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


def test_a_driver_dies_with_its_keeper(request_of):
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
    "moment", [ENDED_WHEN_IT_IS_KNOWN, ENDED_WHEN_ITS_DRIVER_RUNS], ids=["when it is known", "when its driver runs"]
)
def test_a_job_can_be_ended_in_order_however_early(tmp_path: Path, moment: str) -> None:
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
    subprocess.run([sys.executable, "-c", code], input=json.dumps(order), text=True, check=True, timeout=60)
    wait_until((tmp_path / ENDED).exists)
    seen = local_driver.status_of(tmp_path)
    assert seen is not None and seen.state is Lifecycle.STOPPED and seen.was_requested
    assert (tmp_path / "in order").exists() == (tmp_path / "begun").exists() == (moment == ENDED_WHEN_ITS_DRIVER_RUNS)


def test_how_a_driver_failed_is_told(request_of):
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


def test_a_log_is_read_on_from_where_it_was_left(request_of, tmp_path):
    go = tmp_path / "go"
    asked = request_of(
        f"""
        import os, sys, time
        print("one"); print("tw", end="", flush=True)
        while not os.path.exists({str(go)!r}): time.sleep(0.01)
        print("o"); print("three", end="")
        """
    )
    job = local_jobs.start(asked)
    wait_until(lambda: Path(job.id, "output.log").read_bytes() == b"one\ntw")
    text, offset = local_jobs.read_log(job, 0)
    assert text == "one\n", "half a line waits for its other half"
    go.touch()
    ended(job)
    assert local_jobs.read_log(job, offset)[0] == "two\nthree"


def test_a_job_of_another_machine_is_gone_here(tmp_path):
    seen = local_jobs.status(Job("local", str(tmp_path / "elsewhere" / "1")))
    assert seen.state is Lifecycle.LOST and "on this machine" in seen.detail


def test_a_starter_that_died_before_its_keeper_left_nothing_running(request_of, tmp_path):
    asked = request_of("print('works')")
    Path(asked.folder, asked.tag, "1").mkdir(parents=True)
    Path(asked.folder, asked.tag, "1", "lock").touch()
    assert local_jobs.find(asked)[0].state is Lifecycle.FAILED
    assert ended(local_jobs.start(asked)) is Lifecycle.FINISHED


def test_jobs_that_are_long_over_are_removed(request_of):
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


def test_a_job_of_an_earlier_version_has_the_state_which_that_version_wrote(request_of):
    asked = request_of("")
    folder = Path(asked.folder, asked.tag, "1")
    folder.mkdir(parents=True)
    (folder / "lock").touch()
    (folder / "exit.json").write_text(json.dumps({"state": "SUCCEEDED", "detail": "", "ended": time.time()}))
    assert [known.state for known in local_jobs.find(asked)] == [Lifecycle.FINISHED]
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


def test_a_running_job_that_an_earlier_version_started_is_ended(request_of):
    asked = request_of("")
    folder = Path(asked.folder, asked.tag, "1")
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
        recorded = {"pid": supervisor.pid, "process_started": processes.process_started(supervisor.pid)}
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
def test_a_damaged_record_of_an_earlier_version_hides_no_other_job(request_of, content):
    asked = request_of("")
    folder = Path(asked.folder, asked.tag, "1")
    folder.mkdir(parents=True)
    (folder / "exit.json").write_text(content)
    (folder / "job.json").write_text(content)
    assert [known.state for known in local_jobs.find(asked)] == [Lifecycle.FAILED]
    assert ended(local_jobs.start(asked)) is Lifecycle.FINISHED


def test_no_job_starts_where_other_users_could_replace_its_files(request_of, tmp_path):
    asked = request_of("")
    root = Path(asked.folder)
    root.mkdir()
    root.chmod(0o777)
    with pytest.raises(ArgumentError, match="all users may write"):
        local_jobs.start(asked)
    root.chmod(0o1777)  # as /tmp: folders of others cannot be replaced there, only made before
    (root / asked.tag).mkdir()
    if os.geteuid() == 0:
        os.chown(root / asked.tag, 12345, 12345)
        with pytest.raises(ArgumentError, match="it belongs to user 12345"):
            local_jobs.start(asked)
        os.chown(root / asked.tag, 0, 0)
    (root / asked.tag).chmod(0o777)
    with pytest.raises(ArgumentError, match="other users have rights to it"):
        local_jobs.start(asked)
    (root / asked.tag).rmdir()
    assert ended(local_jobs.start(asked)) is Lifecycle.FINISHED


def test_the_command_of_a_submission_imports_nothing_from_the_working_directory(request_of, tmp_path):
    (tmp_path / "hopsml").mkdir()
    (tmp_path / "hopsml" / "__init__.py").write_text("print('taken over')")
    line = local_jobs.submit_command(request_of(""), {})
    line = [*line[: line.index("submit") + 1], "--help"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=END_S)
    assert "taken over" not in done.stdout and "--num-workers" in done.stdout, done
