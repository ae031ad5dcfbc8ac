"""Tests that a limit of open files that is too low is reported with the needed number before a failure."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from hopsml.cluster.agent import agent
from hopsml.cluster.shared import acceptor
from hopsml.cluster.shared.acceptor import ConnectionLimits
from tests.clock import END_S

pytestmark = pytest.mark.fast


def limited(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (number, number))


def test_what_is_needed_is_just_enough_for_the_connections_of_all_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    for agents in (0, 1, 16, 17, 100, 1000, 5000):
        least = acceptor.open_files_needed(agents)
        limited(monkeypatch, least)
        assert (
            ConnectionLimits.of_this_process().descriptors >= agents + 20 and acceptor.open_files_problem(agents) == ""
        )
        limited(monkeypatch, least - 1)
        assert f"open {least - 1} files (ulimit -n), and " in acceptor.open_files_problem(agents)
        assert f"needs {least}: raise it (ulimit -n, LimitNOFILE)" in acceptor.open_files_problem(agents)
    limited(monkeypatch, resource.RLIM_INFINITY)
    assert acceptor.open_files_problem(100_000) == ""


def test_an_agent_says_so_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, 32)
    word = agent.run_agent(None, 0)  # type: ignore[arg-type]
    assert word == f"{agent.NEVER_JOINED}{acceptor.open_files_problem()}" and "32 files" in word


DRIVER = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
from hopsml import errors, experiment
try:
    experiment.submit(print, num_workers=1, progress=False, profile="local")
except errors.CoordinatorLost as error:
    print(error)
"""


def test_a_driver_says_so_before_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPSML_PROJECT_URL", tmp_path.as_uri())
    done = subprocess.run([sys.executable, "-c", DRIVER], capture_output=True, text=True, timeout=END_S, check=False)
    said = "this process may open 32 files (ulimit -n), and hopsml needs 64: raise it (ulimit -n, LimitNOFILE)\n"
    assert (done.stdout, done.returncode) == (said, 0), done.stderr
