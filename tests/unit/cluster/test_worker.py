"""Tests of a worker: its folder's files, its output streams, and keepalive on its sockets."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hopsml.cluster.worker import calling, returned, server_guard
from hopsml.core.variables import SETTINGS
from hopsml.errors import ArgumentError, PathNotFound
from hopsml.storage import left_files
from tests.helpers import small_disk

CODE = """
import json, sys
from pathlib import Path
from hopsml.cluster.worker import calling
calling.install_log_streams(print)
log = Path(sys.argv[1])
print("a beginning", end="")
seen = [log.read_text()]
print(", and its end")
print("an error", file=sys.stderr)
seen.append(log.read_text())
Path(sys.argv[2]).write_text(json.dumps(seen))
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_log_has_each_line_when_printed_and_parts_of_lines_if_unbuffered(tmp_path: Path, unbuffered: str) -> None:
    log, seen = tmp_path / "log", tmp_path / "seen"
    with log.open("wb") as written:
        environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        command = [sys.executable, "-c", CODE, str(log), str(seen)]
        subprocess.run(command, stdout=written, stderr=written, env=environment, check=True)
    first, then = json.loads(seen.read_text())
    assert first == ("a beginning" if unbuffered else "")
    assert then == "a beginning, and its end\nan error\n"


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket, socket.socket]]:
    """Yield a listening socket, and both ends of a connection to it."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as ours,
        listening.accept()[0] as theirs,
    ):
        yield listening, ours, theirs


def options(one: socket.socket) -> tuple[int, ...]:
    tcp = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    return (
        one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
        *(one.getsockopt(socket.IPPROTO_TCP, option) for option in tcp),
    )


def test_every_tcp_socket_of_the_process_gets_keepalive(pair: tuple[socket.socket, ...]) -> None:
    known = server_guard.set_keepalive(6.0, set())
    assert [options(one) for one in pair] == [(1, 6, 2, server_guard.PROBES)] * 3
    listening = pair[0]
    with socket.create_connection(listening.getsockname()) as ours, listening.accept()[0] as theirs:
        assert options(theirs) == (1, 6, 2, server_guard.PROBES)  # as the socket that listens
        assert options(ours)[0] == 0
        assert server_guard.set_keepalive(6.0, known) > known
        assert options(ours) == (1, 6, 2, server_guard.PROBES)


def test_socket_with_keepalive_of_its_owner_is_unchanged(pair: tuple[socket.socket, ...]) -> None:
    one = pair[1]
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 77)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    server_guard.set_keepalive(6.0, set())
    assert options(one)[:2] == (1, 77)


def test_unix_and_udp_sockets_are_unchanged() -> None:
    near, far = socket.socketpair()
    with near, far, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        server_guard.set_keepalive(6.0, set())
        assert not any(one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) for one in (near, far, datagrams))


def test_keepalive_interval_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOPSML_KEEPALIVE_S", raising=False)
    assert SETTINGS.keepalive_s == 15.0
    monkeypatch.setenv("HOPSML_KEEPALIVE_S", "-1")
    with pytest.raises(ArgumentError, match=r"HOPSML_KEEPALIVE_S='-1'.*or 0 for no keepalive"):
        _ = SETTINGS.keepalive_s


pytestmark = pytest.mark.fast


def test_interrupted_copy_leaves_no_partial_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under a quota, which the free space of the disk does not show."""
    folder = tmp_path / "cwd"
    folder.mkdir()
    (folder / "model").write_bytes(bytes(2_000_000))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1 << 40, 0, 1 << 40))  # type: ignore[attr-defined]
    with small_disk.mounted(tmp_path / "disk", 1_000) as disk:
        with pytest.raises(OSError, match="No space left on device"):
            returned.store_files(folder, disk / "kept")
        assert list((disk / "kept").iterdir()) == []


def test_folder_is_left_in_the_first_directory_with_enough_space(tmp_path: Path) -> None:
    folder, place = tmp_path / "cwd", tmp_path / "scratch"
    folder.mkdir()
    place.mkdir()
    (folder / "model").write_text("weights")
    with small_disk.mounted(tmp_path / "disk", 1_000) as elsewhere:
        left = left_files.rescue_folder(folder, "hopsml-left", (tmp_path / "missing", elsewhere, place))
        assert list(elsewhere.iterdir()) == []
    assert left.parent == place and (left / "model").read_text() == "weights" and not folder.exists()
    with pytest.raises(OSError, match="missing"):
        left_files.rescue_folder(left, "hopsml-left", (tmp_path / "missing",))


def test_missing_path_hint_is_given_for_relative_paths_only(tmp_path: Path) -> None:
    assert "refers to the worker's folder" in returned.missing_path_hint(
        FileNotFoundError(2, "gone", "data.csv"), tmp_path
    )
    assert "refers to the worker's folder" in returned.missing_path_hint(
        PathNotFound("it is gone", "data.csv"), tmp_path
    )
    for url in ("/data/clicks.csv", "hdfs:///data/clicks.csv"):
        assert returned.missing_path_hint(PathNotFound(f"{url} is gone", url), tmp_path) == ""


def test_missing_file_beside_the_copy_of_a_script_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = tmp_path / "script-1"
    monkeypatch.setattr(returned, "script_folders", [copied])
    hint = returned.missing_path_hint(FileNotFoundError(2, "gone", str(copied / "cfg.json")), tmp_path)
    assert "this host cannot read the folder of the script" in hint
    assert returned.missing_path_hint(FileNotFoundError(2, "gone", "/data/cfg.json"), tmp_path) == ""


def test_cached_byte_code_is_not_stored(tmp_path: Path) -> None:
    folder, target = tmp_path / "cwd", tmp_path / "artifacts"
    for name in ("helper.py", "__pycache__/helper.cpython-313.pyc", "package/__pycache__/a.pyc"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    assert returned.store_files(folder, target) == ""
    assert [path.name for path in target.rglob("*") if path.is_file()] == ["helper.py"]


@pytest.mark.parametrize("order", [("little", b"\1"), ("big", b"\2")])
def test_core_dump_is_not_stored_whatever_its_name(tmp_path: Path, order: tuple[Any, bytes]) -> None:
    """Its memory holds tokens and secrets."""
    folder, target = tmp_path / "cwd", tmp_path / "artifacts"
    (folder / "below").mkdir(parents=True)
    head = b"\x7fELF\2" + order[1] + b"\1" + bytes(9)
    (folder / "core").write_bytes(head + (4).to_bytes(2, order[0]) + b"HF_TOKEN=abc")
    (folder / "below" / "crash.bin").write_bytes(head + (4).to_bytes(2, order[0]) + b"HF_TOKEN=abc")
    (folder / "library.so").write_bytes(head + (3).to_bytes(2, order[0]))
    (folder / "notes").write_bytes(b"\x7fELF")
    os.mkfifo(folder / "pipe")
    note = returned.store_files(folder, target)
    assert sorted(path.name for path in target.rglob("*")) == ["library.so", "notes"]
    assert note.startswith("below/crash.bin, core: a core dump is not stored")


def test_error_in_a_torch_callback_is_shown_without_frames(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    said = "PeerLost: rank 0 has ended the group: the training function has ended,\nwhile this one was in all_reduce"
    frames = "At:\n  /lib/hopsml/training/torch/backend.py(122): _value_of\n  <frozen runpy>(88): _run_code\n"
    error = RuntimeError(f"Got the following error when running the callback: {said}\n\n{frames}")
    assert calling.short_error_text(error) == said
    shown = calling.report_traceback(error, tmp_path / "whole", "file:///whole")
    assert shown.rstrip().endswith(said) and "_value_of" not in shown
    assert said in capfd.readouterr().err and "_run_code" in (tmp_path / "whole").read_text()
    assert (
        calling.short_error_text(RuntimeError("At:\n  a.py(1): b")) == "RuntimeError: At:\n  a.py(1): b"
    )  # the user's own text


def test_error_of_tensorflow_is_shown_without_the_name_of_its_node() -> None:
    text = "{{function_node __wrapped__SaveV2_dtypes_1_device_/job:localhost/CPU:0}} /x; File too large [Op:SaveV2]"
    assert calling.short_error_text(RuntimeError(text)) == "RuntimeError: /x; File too large [Op:SaveV2]"
