"""Tests of an agent's measurements of its slot and its peers, with real limits, disks and sockets."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from hopsml.cluster.agent import preflight as probing
from hopsml.cluster.agent.preflight import ProbeServer, measure, other_users, probe, write_speed
from hopsml.cluster.driver.preflight import rules
from tests.helpers.clock import END_S

pytestmark = pytest.mark.fast
TOKEN = "x" * 43


def test_measurements_equal_those_of_the_system(tmp_path: Path) -> None:
    start_s = time.time()
    facts = measure(tmp_path, "127.0.0.1", 4000, ())
    assert facts.open_files == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert facts.disk_mb == pytest.approx(psutil.disk_usage(str(tmp_path)).free / 2**20, rel=0.05)
    assert facts.write_mb_s > 0 and not facts.disk_problem
    assert start_s <= facts.clock <= time.time()
    assert facts.versions["python"] == sys.version.split()[0] and facts.versions["numpy"]
    assert list(tmp_path.iterdir()) == []
    assert 10 < facts.core_mb_s < 20_000  # MB/s: a phone's core, and more than any


def test_failed_disk_write_is_reported_with_its_reason(tmp_path: Path) -> None:
    """A file size limit in a subprocess causes the same failure as a full disk."""
    code = (
        "import resource, sys, pathlib; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20));"
        "from hopsml.cluster.agent.preflight import write_speed; print(write_speed(pathlib.Path(sys.argv[1])))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=END_S)
    assert done.stdout.strip() == "(0.0, 'File too large after 1.0 MB')", done.stderr
    speed, problem = write_speed(tmp_path / "not there")
    assert speed == 0.0 and "No such file" in problem


def exchange(token: str, offered: str = TOKEN) -> tuple[float, str]:
    async def both() -> tuple[float, str]:
        server = ProbeServer(token)
        await server.open("127.0.0.1")
        try:
            result = await probe("a2", f"127.0.0.1:{server.port}", offered)
            return result.mb_s, result.problem
        finally:
            server.close()

    return asyncio.run(both())


def test_peers_with_the_token_exchange_bytes() -> None:
    mb_s, problem = exchange(TOKEN)
    assert mb_s > rules.LIMITS.pair_mb_s and problem == ""


def test_peer_with_a_wrong_token_is_disconnected() -> None:
    mb_s, problem = exchange(TOKEN, offered="y" * 43)
    assert mb_s == 0.0 and ("hung up" in problem or "reset" in problem)


def test_unreachable_silent_and_corrupting_peers_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wrong_bytes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonce = bytes(32)
        writer.write(nonce)
        await reader.readexactly(36)
        content = bytearray(await reader.readexactly(probing.EXCHANGED))
        content[77] ^= 1
        digest = probing.hashlib.sha256(content).digest()
        writer.write(probing._proof(TOKEN.encode(), nonce + digest) + probing.framed(bytes(content)))
        await writer.drain()
        writer.close()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def problems() -> list[str]:
        found = []
        for serve in (wrong_bytes, silent):
            monkeypatch.setattr(probing, "TIMEOUT_S", 0.5 if serve is silent else 30.0)
            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            found.append((await probe("a", f"127.0.0.1:{port}", TOKEN)).problem)
            server.close()
        monkeypatch.setattr(probing, "TIMEOUT_S", 30.0)
        return [*found, (await probe("a", f"127.0.0.1:{port}", TOKEN)).problem]

    changed, nothing, refused = asyncio.run(problems())
    assert "other bytes than were sent" in changed
    assert "did not answer within 0.5 s" in nothing
    assert "Connect call failed" in refused


def test_other_users_with_processes_on_the_host_are_found() -> None:
    assert "65534" not in other_users() and "nobody" not in other_users()
    if os.geteuid() != 0:
        pytest.skip("only root can start a process as somebody else")
    with subprocess.Popen(["sleep", "60"], user=54321, group=54321) as stranger:
        try:
            assert "54321" in other_users()
        finally:
            stranger.kill()
