"""Contract of file systems, and failures, on a real HDFS."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from hopsml.errors import (
    PathExists,
    PermissionRefused,
    QuotaExceeded,
    SafeMode,
    StorageError,
    StorageTimeout,
    StorageUnavailable,
)
from hopsml.storage import filesystem, run_dir, tree, urls
from hopsml.storage.filesystem import for_url
from tests.helpers import clock
from tests.helpers.clock import END_S
from tests.helpers.storage.filesystem_contract import FileSystemContract

pytestmark = pytest.mark.hadoop


@pytest.fixture(autouse=True)
def _client_configuration(hadoop: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hadoop.conf_dir))
    monkeypatch.setenv("HOPSML_STORAGE_TIMEOUT_S", "120")  # tests of a deadline pass their own one
    monkeypatch.delenv("HADOOP_USER_NAME", raising=False)
    before = {child.pid for child in psutil.Process().children()}
    yield
    filesystem.close_all()
    left = [child for child in psutil.Process().children() if child.pid not in before and _is_ours(child)]
    assert not left, f"helper processes left behind: {left}"


def _is_ours(process: psutil.Process) -> bool:
    try:
        return "hopsml.storage" in " ".join(process.cmdline())
    except psutil.Error:
        return False


@pytest.fixture
def folder(hadoop: Any) -> Iterator[str]:
    """Yield a new directory on HDFS, deleted afterwards."""
    url = f"{hadoop.namenode_url}/tests/{secrets.token_hex(8)}"
    for_url(url).make_dirs(url)
    yield url
    for_url(url).delete(url, recursive=True)


class TestHdfs(FileSystemContract):
    @pytest.fixture
    def store(self, folder: str) -> str:
        return folder


class TestWebHdfs(FileSystemContract):
    @pytest.fixture
    def store(self, hadoop: Any, folder: str) -> str:
        return f"{hadoop.webhdfs_url}{urls.split(folder)[2]}"


@pytest.fixture
def both(hadoop: Any, folder: str) -> list[str]:
    """Return the new directory as a URL of each protocol."""
    return [folder, f"{hadoop.webhdfs_url}{urls.split(folder)[2]}"]


@pytest.fixture(params=["hdfs", "webhdfs"])
def either(request: pytest.FixtureRequest, hadoop: Any, folder: str) -> str:
    """Return the new directory as a URL of each protocol."""
    return folder if request.param == "hdfs" else f"{hadoop.webhdfs_url}{urls.split(folder)[2]}"


def test_permission_owner_and_capacity_are_set_and_read(either: str) -> None:
    system, url = for_url(either), urls.join(either, "f")
    system.write_bytes(url, b"x")
    system.set_permission(url, 0o640)
    system.set_owner(url, "somebody", "people")
    found = system.status(url)
    assert (found.permission, found.owner, found.group) == (0o640, "somebody", "people")
    assert found.replication >= 1
    room = system.capacity(url)
    assert 0 <= room.used < room.total


@pytest.mark.variant
def test_exceeded_quota_is_an_error(hadoop: Any, both: list[str], tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 1000)
    path = urls.split(both[0])[2]
    hadoop.dfsadmin("-setSpaceQuota", "1m", path)
    for url in both:
        with pytest.raises(QuotaExceeded, match="setSpaceQuota") as caught:
            for_url(url).upload(tmp_path / "f", urls.join(url, "f"))
        assert caught.value.path == urls.join(url, "f")
    hadoop.dfsadmin("-clrSpaceQuota", path)
    hadoop.dfsadmin("-setQuota", "1", path)
    for url in both:
        with pytest.raises(QuotaExceeded, match="quota"):
            for_url(url).write_bytes(urls.join(url, "f"), b"x")
        assert for_url(url).list_dir(url) == []


def test_missing_permission_is_an_error(either: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for_url(either).write_bytes(urls.join(either, "mine"), b"x")
    for_url(either).set_permission(either, 0o700)
    monkeypatch.setenv("HADOOP_USER_NAME", "stranger")  # a helper of another user is not used again
    url = urls.join(either, "f")
    with pytest.raises(PermissionRefused, match="user=stranger") as caught:
        for_url(either).write_bytes(url, b"x")
    assert caught.value.path == url
    with pytest.raises(PermissionRefused):
        for_url(either).read_bytes(urls.join(either, "mine"))
    with pytest.raises(PermissionRefused):
        for_url(either).list_dir(either)
    monkeypatch.delenv("HADOOP_USER_NAME")
    assert for_url(either).read_bytes(urls.join(either, "mine")) == b"x"


def test_safe_mode_refuses_writes_and_permits_reads(hadoop: Any, both: list[str]) -> None:
    for_url(both[0]).write_bytes(urls.join(both[0], "before"), b"x")
    hadoop.dfsadmin("-safemode", "enter")
    try:
        for url in both:
            with pytest.raises(SafeMode, match="safe mode"):
                for_url(url).make_dirs(urls.join(url, "d"))
            with pytest.raises(SafeMode):
                for_url(url, timeout_s=20).write_bytes(urls.join(url, "f"), b"x")
            assert for_url(url).read_bytes(urls.join(url, "before")) == b"x"
    finally:
        hadoop.dfsadmin("-safemode", "leave")
    for url in both:
        for_url(url).write_bytes(urls.join(url, "f"), b"x")


def test_url_without_an_authority_uses_the_default_file_system(folder: str) -> None:
    short = f"hdfs://{urls.split(folder)[2]}"
    for_url(short).write_bytes(urls.join(short, "f"), b"x")
    assert for_url(folder).read_bytes(urls.join(folder, "f")) == b"x"
    assert for_url(short).list_dir(short)[0].url == f"{short}/f"


def test_refused_connection_is_reported_in_time() -> None:
    for url in ("hdfs://127.0.0.1:9/x", "webhdfs://127.0.0.1:9/x"):
        began_s = clock.awake()
        with pytest.raises(StorageUnavailable, match="refused") as caught:
            for_url(url, timeout_s=15).write_bytes(url, b"x")
        assert caught.value.path == url
        assert clock.awake() - began_s < 15


def test_unknown_name_service_is_reported(hadoop: Any) -> None:
    with pytest.raises(StorageUnavailable, match="HADOOP_CONF_DIR"):
        for_url("hdfs://no-such-host.invalid:8020/x").status("hdfs://no-such-host.invalid:8020/x")


def test_frozen_namenode_times_out_every_call(hadoop: Any, either: str, tmp_path: Path) -> None:
    system, patient = for_url(either, timeout_s=2), for_url(either, timeout_s=120)
    url = urls.join(either, "f")
    patient.write_bytes(url, b"before")
    (tmp_path / "l").write_bytes(b"x")
    hadoop.kill("nn", signal_number=signal.SIGSTOP)
    try:
        calls = [
            lambda: system.status(url),
            lambda: system.read_bytes(url),
            lambda: system.upload(tmp_path / "l", url),
            lambda: system.download(url, tmp_path / "down"),
            lambda: system.list_dir(either),
        ]
        began_s = clock.awake()
        with ThreadPoolExecutor(len(calls)) as pool:
            errors = [future.exception() for future in [pool.submit(call) for call in calls]]
        assert clock.awake() - began_s < 8
        assert [type(error) for error in errors] == [StorageTimeout] * len(calls)
        assert all(str(urls.split(either)[2]) in str(error) for error in errors)
        if urls.split(either)[0] == "hdfs":
            assert "accepts connections but does not answer" in str(errors[0])
    finally:
        hadoop.kill("nn", signal_number=signal.SIGCONT)
    assert patient.read_bytes(url) == b"before"
    patient.write_bytes(url, b"after")
    assert patient.read_bytes(url) == b"after"
    tree.delete_discarded(timeout_s=10)
    assert [entry.name for entry in patient.list_dir(either)] == ["f"]


@pytest.mark.variant  # of one that is frozen
def test_killed_namenode_is_an_error_until_it_is_restarted(hadoop: Any, folder: str) -> None:
    system = for_url(folder, timeout_s=20)
    system.write_bytes(urls.join(folder, "f"), b"kept")
    hadoop.kill("nn")
    try:
        with pytest.raises((StorageUnavailable, StorageTimeout)) as caught:
            system.status(urls.join(folder, "f"))
        assert caught.value.path == urls.join(folder, "f")
    finally:
        hadoop.revive("nn")
    assert system.read_bytes(urls.join(folder, "f")) == b"kept"


def test_killed_helper_process_is_replaced(folder: str) -> None:
    system = for_url(folder)
    system.write_bytes(urls.join(folder, "f"), b"x")
    helpers = [child for child in psutil.Process().children() if _is_ours(child)]
    assert helpers
    for helper in helpers:
        helper.kill()
        psutil.wait_procs([helper], timeout=5)
    assert system.read_bytes(urls.join(folder, "f")) == b"x"


def test_calling_process_has_no_hdfs_client_and_may_fork(folder: str) -> None:
    """As in a worker that forks (data loaders): child and parent each read the correct bytes."""
    script = f"""
import os, sys
from hopsml.storage.filesystem import for_url
from hopsml.storage.urls import join
system = for_url({folder!r})
for number in range(4):
    system.write_bytes(join({folder!r}, str(number)), str(number).encode() * 100_000)
assert "hdfs_native" not in sys.modules
children = []
for number in range(4):
    pid = os.fork()
    if pid == 0:
        url, right = join({folder!r}, str(number)), str(number).encode() * 100_000
        good = all(system.read_bytes(url) == right for _ in range(20))
        os._exit(0 if good else 1)
    children.append(pid)
for _ in range(20):
    assert system.read_bytes(join({folder!r}, "0")) == b"0" * 100_000
print([os.waitpid(pid, 0)[1] for pid in children])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=END_S)
    assert (done.stdout.strip(), done.stderr) == ("[0, 0, 0, 0]", "")


@pytest.mark.parametrize("frozen", [False, True], ids=["idle", "in a blocked call"])
def test_helper_processes_end_with_their_parent(hadoop: Any, folder: str, frozen: bool) -> None:
    script = f"""
import os, signal, sys, threading
from hopsml.storage.filesystem import for_url
for_url({folder!r}).status({folder!r})
print("ready", flush=True)
sys.stdin.readline()
print("calling", flush=True)
if {frozen}:
    for_url({folder!r}, timeout_s=60).status({folder!r})
signal.pause()
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdin is not None
    assert parent.stdout is not None
    try:
        assert parent.stdout.readline() == "ready\n"
        helpers = psutil.Process(parent.pid).children()
        assert [_is_ours(helper) for helper in helpers] == [True]
        if frozen:
            hadoop.kill("nn", signal_number=signal.SIGSTOP)
        parent.stdin.write("go\n")
        parent.stdin.flush()
        assert parent.stdout.readline() == "calling\n"
        parent.kill()
        _, alive = psutil.wait_procs(helpers, timeout=10)
        assert not alive
    finally:
        hadoop.kill("nn", signal_number=signal.SIGCONT)
        parent.kill()
        parent.wait()
        parent.stdin.close()
        parent.stdout.close()


def test_concurrent_runs_get_distinct_directories(folder: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        ids = list(pool.map(lambda _: run_dir.create_run_dir(folder, "application_1_0001").run_id, range(8)))
    assert sorted(ids) == [f"application_1_0001_{number}" for number in range(1, 9)]


def test_full_local_disk_is_reported_with_the_local_file(folder: str, full_disk: Path) -> None:
    system, url = for_url(folder), urls.join(folder, "big")
    system.write_bytes(url, os.urandom(3 << 20))
    with pytest.raises(QuotaExceeded, match="No space left") as caught:
        system.download(url, full_disk / "big")
    assert str(full_disk) in str(caught.value)
    assert os.listdir(full_disk) == []


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    mount = tmp_path / "mount"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount)], check=True)
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def test_failures_are_storage_errors(folder: str) -> None:
    """All failures belong to one hierarchy of errors."""
    with pytest.raises(StorageError):
        for_url(folder).set_permission(urls.join(folder, "none"), 0o700)
    for_url(folder).write_bytes(urls.join(folder, "f"), b"x")
    with pytest.raises(PathExists):
        for_url(folder).make_dirs(urls.join(folder, "f"))


def test_run_on_hdfs_has_the_requested_permissions(both: list[str]) -> None:
    for store in both:
        for share, folder_mode, file_mode in ((None, 0o700, 0o600), ("group", 0o750, 0o640)):
            run = run_dir.create_run_dir(f"{store}/{share}", "app_1", {"name": "x"}, share=share)
            system = for_url(run.url)
            system.write_bytes(f"{run.url}/code/x", b"x")
            system.append_bytes(f"{run.url}/journal/deep/y", b"y")
            system.upload(__file__, f"{run.url}/checkpoints/step-1/z")
            system.make_dirs(f"{run.url}/events/deep")
            found = [system.status(run.url), *filesystem.walk(run.url)]
            assert {one.permission for one in found if one.is_dir} == {folder_mode}, found
            assert {one.permission for one in found if not one.is_dir} == {file_mode}, found
