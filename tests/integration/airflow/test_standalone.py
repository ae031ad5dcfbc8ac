"""Test of the page's commands: scheduler, DAG processor and triggerer of `airflow standalone` run a DAG."""

from __future__ import annotations

import os
import re
import signal
import socket
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.helpers import pages
from tests.helpers.airflow.harness import ROOT, Airflow, environment, wait_until
from tests.helpers.clock import END_S
from tools import airflow_environment

pytestmark = pytest.mark.airflow

QUICK = """
    import sys
    from hopsml import experiment
    with experiment.recorded("quick", args={"arguments": sys.argv[1:]}) as run:
        run.metrics["rows"] = 3
"""
STARTED_S = 120.0


def test_documented_commands_and_files_exist() -> None:
    (section,) = pages.snippets("docs/how-to/airflow.md", "sh")
    commands = [line.partition("#")[0].strip() for line in section.strip().splitlines()]
    assert [command.split()[0] for command in commands] == ["make", "source", "airflow", "airflow"]
    assert Path(commands[1].split(";")[0].split()[1]) == (airflow_environment.VENV / "bin" / "activate").relative_to(
        ROOT
    )
    assert set(re.findall(r"[A-Z_]{6,}(?==)", commands[1])) == {"AIRFLOW__CORE__DAGS_FOLDER", "HOPSML_PYTHON"}
    dag = commands[3].split()[-1]
    assert (ROOT / "airflow_dags" / f"{dag}.py").is_file()


@pytest.mark.variant  # half a minute, most of it Airflow's own start
def test_dag_runs_under_airflow_standalone(airflow: Airflow) -> None:
    script = airflow.script("quick.py", QUICK)
    airflow.dag(
        f"""
        common = dict(script={script!r}, profile="local", poll_interval_s=0.2)
        first = HopsMLOperator(task_id="first", **common)
        second = HopsMLOperator(task_id="second", arguments=[first.output["run_dir"]], deferrable=False, **common)
        """,
        dag_id="standing",
    )
    with standalone(airflow) as (variables, output_so_far):
        wait_until(
            lambda: rows(airflow, "select 1 from serialized_dag where dag_id = 'standing'"), output_so_far, STARTED_S
        )
        command = [airflow_environment.VENV / "bin" / "airflow", "dags", "trigger", "standing"]
        subprocess.run(command, env=variables, cwd=airflow.home, check=True, capture_output=True, timeout=END_S)
        over = "select state from dag_run where dag_id = 'standing' and state in ('success', 'failed')"
        wait_until(lambda: rows(airflow, over), output_so_far, STARTED_S)
        assert rows(airflow, over) == [("success",)], output_so_far()
    tasks = rows(
        airflow, "select task_id, state, try_number from task_instance where dag_id = 'standing' order by task_id"
    )
    assert tasks == [("first", "success", 1), ("second", "success", 1)]
    assert len(list(airflow.home.glob("project/Experiments/*/status.json"))) == 2


@contextmanager
def standalone(airflow: Airflow) -> Iterator[tuple[dict[str, str], Callable[[], str]]]:
    """Run `airflow standalone` on a free port; yield its variables and a function that returns its output."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    bin_folder = airflow_environment.VENV / "bin"
    variables = environment(
        airflow.home,
        {
            **airflow.more,
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            # Airflow's own server, which imports for seconds, answers late while other tests want the processors, too.
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        },
    )
    output = airflow.home / "standalone.log"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [bin_folder / "airflow", "standalone"],
            env=variables, cwd=airflow.home, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield variables, lambda: output.read_text(errors="replace")[-6000:]
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(END_S)
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait(END_S)


def rows(airflow: Airflow, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(f"file:{airflow.home}/airflow.db?mode=ro", uri=True, timeout=20)) as database:
        return database.execute(query).fetchall()
