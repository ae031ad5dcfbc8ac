"""Tests of nodes by a custom executable: its input, its output, and its failures and hangs."""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hopsml.errors import ProviderError
from hopsml.service.providers.command import CommandProvider, YarnExclusion
from tests.helpers.clock import END_S
from tests.helpers.cluster.workloads import wait_until
from tests.helpers.service import hook

pytestmark = pytest.mark.fast


def provider(folder: Path, within_s: float = 30.0) -> CommandProvider:
    return CommandProvider((sys.executable, hook.__file__, str(folder)), within_s)


def test_command_provider_launches_drains_recalls_and_terminates_nodes(tmp_path: Path) -> None:
    nodes = provider(tmp_path)
    before = time.time()
    nodes.launch("gpu", 2, ("one", "two"))
    first, second = nodes.list()
    assert first.group == "gpu" and first.hosts == (first.id,) and before <= first.launched_s <= time.time()
    nodes.drain(first)
    assert [node.is_draining for node in nodes.list()] == [True, False]
    nodes.recall(first)
    assert [node.is_draining for node in nodes.list()] == [False, False]
    nodes.terminate(second)
    assert [node.id for node in nodes.list()] == [first.id]
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[0] == 'launch {"count": 2, "group": "gpu", "jobs": ["one", "two"]}'
    assert calls[1] == f"drain {json.dumps({'group': 'gpu', 'hosts': [first.id], 'id': first.id}, sort_keys=True)}"


def script(folder: Path, text: str, within_s: float = 0.5) -> CommandProvider:
    path = folder / "nodes.sh"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return CommandProvider((str(path),), within_s)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("echo no quota >&2; exit 7", "exit status 7: no quota"),
        ("echo hello", r"list printed 'hello\\n'.*JSON"),
        ('echo \'{"nodes": [{"id": "a"}]}\'', r"nodes.0.group: .*nodes.0.launched_s: "),
        (
            'echo \'{"nodes": [{"id": "a", "group": "g", "launched_s": 1, "state": "gone"}]}\'',
            "nodes.0.state: .*'draining'",
        ),
        ('echo \'{"nodes": [], "more": 1}\'', "more: Extra inputs"),
    ],
)
def test_invalid_output_of_the_command_is_refused(tmp_path: Path, text: str, calls: str) -> None:
    with pytest.raises(ProviderError, match=calls):
        script(tmp_path, text).list()


def test_hanging_command_is_killed_with_its_children(tmp_path: Path) -> None:
    hanging = script(tmp_path, f"sleep 300 & echo $! > {tmp_path}/child; wait")
    with pytest.raises(ProviderError, match=r"did not end within 0.5 s.*`within`"):
        hanging.list()
    child = int((tmp_path / "child").read_text())
    wait_until(lambda: is_dead(child), "its end")


def is_dead(pid: int) -> bool:
    """Return True if a process has ended, even if it is still a zombie."""
    try:
        return not Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_closing_the_provider_kills_a_hanging_command(tmp_path: Path) -> None:
    provider = script(tmp_path, f"touch {tmp_path}/runs; exec sleep 300", within_s=300.0)
    with ThreadPoolExecutor(1) as threads:
        call = threads.submit(provider.list)
        wait_until((tmp_path / "runs").exists, "it to run")
        provider.close()
        with pytest.raises(ProviderError, match="exit status -9"):
            call.result(END_S)


def test_missing_executable_is_refused() -> None:
    with pytest.raises(ProviderError, match="/nowhere cannot be run: No such file"):
        CommandProvider(("/nowhere",), 1.0).list()


def test_yarn_exclusion_updates_its_file_and_repeats_a_failed_refresh(tmp_path: Path) -> None:
    file = tmp_path / "exclude"
    refresh = ("sh", "-c", f"test ! -e {tmp_path}/broken && echo x >> {tmp_path}/told")
    yarn = YarnExclusion(file, refresh, 30.0)
    yarn.exclude("node1"), yarn.exclude("node2"), yarn.exclude("node1")
    assert file.read_text() == "node1\nnode2\n" and (tmp_path / "told").read_text() == "x\nx\n"
    yarn.admit("node1"), yarn.admit("node3")
    assert file.read_text() == "node2\n" and (tmp_path / "told").read_text() == "x\nx\nx\n"
    (tmp_path / "broken").touch()
    with pytest.raises(ProviderError, match="sh: exit status 1"):
        yarn.exclude("node4")
    (tmp_path / "broken").unlink()
    yarn.exclude("node4")  # YARN has not been refreshed yet
    assert (tmp_path / "told").read_text() == "x\nx\nx\nx\n"
    (tmp_path / "broken").touch()
    with pytest.raises(ProviderError, match="sh: exit status 1"):
        yarn.exclude("node5")
    (tmp_path / "broken").unlink()
    again = YarnExclusion(file, refresh, 30.0)  # after a restart between the file and the command
    again.exclude("node5"), again.exclude("node5")
    assert (tmp_path / "told").read_text() == "x\n" * 5
    file.write_text("node5\n")  # by another server, which ended before its command
    again.admit("node2")
    assert (tmp_path / "told").read_text() == "x\n" * 6
    with pytest.raises(ProviderError, match="exclude file /nowhere/exclude"):
        YarnExclusion(Path("/nowhere/exclude"), ("true",), 1.0).exclude("a")
