"""Tests of the guard of servers without authentication: what it binds, admits and leaves unchanged.

Real processes; Python's sockets replace TensorFlow's, which tests/integration/training/test_foreign_peers.py tests.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from hopsml.cluster.worker import server_guard
from hopsml.training.tensorflow import setup
from tests.helpers.clock import END_S
from tools import build_native

pytestmark = pytest.mark.local  # real processes, thirty tests of a tenth of a second and more

NOBODY = 65534
ROOT = Path(__file__).resolve().parents[3]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def config(*hosts: str, port: int = 0, own: int = 0) -> str:
    """TF_CONFIG of a group on these hosts, all with one port."""
    workers = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in hosts]
    return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": own}})


class Process:
    """A script of this folder as a subprocess that answers in lines."""

    def __init__(self, script: str, *words: object, prefix: Sequence[str] = ()) -> None:
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", f"tests.integration.cluster.{script}", *map(str, words)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()

    def end(self) -> str:
        """End it, and return its stderr."""
        with contextlib.suppress(BrokenPipeError):
            return self._process.communicate(timeout=END_S)[1]
        return ""

    def answer(self) -> str:
        """Its next line."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._process.communicate()[1]
        return line.strip()

    def ask(self) -> str:
        """Send it a line, and take its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self.answer()


class Server(Process):
    """A guarded server, listening."""

    def __init__(self, given: str, wildcard: str = "::", *words: str, prefix: Sequence[str] = ()) -> None:
        super().__init__("guarded_server", given, wildcard, *words, prefix=prefix)
        self.hindrance = self.answer()
        if "execute" in words:
            self.answer()
        self.host, _, port = self.answer().partition(" ")
        self.port = int(port)

    def admits_next(self, port: int | str) -> bool:
        """True if the peer of that port is accepted next; earlier connections were then refused."""
        return self.ask() == str(port)


@pytest.fixture
def port() -> Iterator[int]:
    """Yield a port that is held until a server binds it, as by an agent."""
    with socket.socket(socket.AF_INET6) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("::", 0))
        yield held.getsockname()[1]


@pytest.fixture(scope="module", autouse=True)
def library() -> None:
    """It is built."""
    build_native.build_server()


def refused(host: str, port: int) -> bool:
    """True if no server listens there."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as one:
        return one.connect_ex((host, port)) != 0


# -- the address


@pytest.mark.parametrize(
    ("wildcard", "own", "bound"),
    [
        ("::", "127.0.0.1", "::ffff:127.0.0.1"),
        ("0.0.0.0", "127.0.0.2", "127.0.0.2"),
        ("::", "::1", "::1"),
        ("0.0.0.0", "::1", "0.0.0.0"),  # such a socket cannot have it
        ("::", "198.51.100.7", "::"),  # no address of this machine: members connect to another one
    ],
)
def test_wildcard_server_is_bound_to_the_workers_address(wildcard: str, own: str, bound: str, port: int) -> None:
    with Server(config(own, "127.0.0.9", port=port), wildcard) as server:
        assert (server.hindrance, server.host, server.port) == ("", bound, port)
        if bound.endswith("127.0.0.1"):
            assert refused("127.0.0.3", port) and refused("::1", port)


# -- admission


@pytest.mark.parametrize(("own", "words"), [("127.0.0.1", []), ("::1", []), ("127.0.0.1", ["sealed"])])
def test_process_of_the_same_user_is_admitted(own: str, words: list[str], port: int) -> None:
    given = config(own, "127.0.0.9", port=port)
    with Server(given, "::", *words) as server, socket.create_connection((own, port)) as member:
        assert server.admits_next(member.getsockname()[1])


@as_root
@pytest.mark.parametrize("words", [[], ["sealed"]])
@pytest.mark.parametrize("own", ["127.0.0.1", "::1"])
def test_another_user_of_this_machine_is_refused(own: str, words: list[str], port: int) -> None:
    """Also a client that closes at once, whose connection has no user when it is accepted; its data is never read."""
    with (
        Server(config(own, "127.0.0.9", port=port), "::", *words) as server,
        Process("guarded_client", own, port, f"user={NOBODY}") as stranger,
        Process("guarded_client", own, port, f"user={NOBODY}", "closes") as hasty,
    ):
        for answered in (stranger, hasty, hasty):
            answered.answer()
        with socket.create_connection((own, port)) as member:
            assert server.admits_next(member.getsockname()[1])
        assert server.end().count("another user of this machine") == 1


@as_root
def test_forked_server_is_guarded_and_repeated_refusals_are_logged_seven_times(port: int) -> None:
    with (
        Server(config("127.0.0.1", "127.0.0.9", port=port), "::", "fork") as server,
        Process("guarded_client", "127.0.0.1", port, f"user={NOBODY}", "times=10") as stranger,
    ):
        stranger.answer()
        with socket.create_connection(("127.0.0.1", port)) as member:
            assert server.admits_next(member.getsockname()[1])
        lines = server.end().splitlines()
        assert len(lines) == 8 and lines[-1].endswith("further ones are not told"), lines


# -- who proves to be a member

SECRET = "secret=that all members have"


@pytest.mark.parametrize("own", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("how", ["waits", "impatient"])
def test_peer_that_proves_the_secret_is_admitted_and_its_data_is_read(own: str, how: str, port: int) -> None:
    given = config(own, "127.0.0.9", port=port)
    with (
        Server(given, "::", SECRET) as server,
        Process("guarded_client", own, port, f"config={given}", SECRET, how) as member,
    ):
        assert server.ask() == f"{member.answer()} read this"


@pytest.mark.parametrize("words", [[], ["secret=another one"]])
def test_peer_without_proof_is_refused_even_as_the_same_user(words: list[str], port: int) -> None:
    given = config("127.0.0.1", "127.0.0.9", port=port)
    words = [f"config={given}", *words] if words else []
    with (
        Server(given, "::", SECRET) as server,
        Process("guarded_client", "127.0.0.1", port, *words) as stranger,
    ):
        assert server.ask() == f"{stranger.answer()} refused"
        assert "does not prove to be a member" in server.end()


def test_proof_is_valid_once_for_one_server_and_may_arrive_in_pieces(port: int) -> None:
    given = config("127.0.0.1", "127.0.0.2", port=port)
    with (
        socket.create_server(("127.0.0.1", port), reuse_port=True) as recorder,
        Process("guarded_client", "127.0.0.1", port, f"config={given}", SECRET) as member,
    ):
        accepted = recorder.accept()[0]
        member.end()
    with accepted, accepted.makefile("rb") as stream:
        recorded = stream.read()
    assert recorded.startswith(b"HOPSMLS1") and recorded.endswith(b"read this") and b"that all" not in recorded

    def replayed_answer(server: Server) -> str:
        with socket.create_connection((server.host.removeprefix("::ffff:"), port)) as one:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for piece in (recorded[:5], recorded[5:40], recorded[40:]):
                one.sendall(piece)
            return server.ask().partition(" ")[2]

    of_other = config("127.0.0.1", "127.0.0.2", port=port, own=1)
    with Server(given, "::", SECRET) as server, Server(of_other, "::", SECRET) as other:
        assert [replayed_answer(other), replayed_answer(server), replayed_answer(server)] == [
            "refused",
            "read this",
            "refused",
        ]


# -- what is left alone


@as_root
@pytest.mark.parametrize("words", [["other"], ["execute"]])
def test_other_ports_and_executed_programs_are_not_guarded(words: list[str], port: int) -> None:
    with (
        Server(config("127.0.0.1", "127.0.0.9", port=port), "::", *words) as server,
        Process("guarded_client", "127.0.0.1", server.port, f"user={NOBODY}") as anybody,
    ):
        assert server.host == "::"
        assert server.admits_next(anybody.answer())


# -- other machines


class Network:
    """Two hosts in separate namespaces with a cable between them; a prefix runs commands on either."""

    def __init__(self) -> None:
        unshared = ["unshare", "--user", "--map-root-user", "--net"]
        self.first, first = self._host(unshared, [])
        self.second, second = self._host(["unshare", "--net"], self.first)
        self._hosts = first, second
        self._run(self.first, f"link add cable type veth peer name cable netns {second.pid}")
        for host, addresses in ((self.first, ["10.77.0.1"]), (self.second, ["10.77.0.3", "10.77.0.2"])):
            for address in addresses:
                self._run(host, f"address add {address}/24 dev cable")
            self._run(host, "link set cable up")

    def _host(self, unshared: list[str], within: list[str]) -> tuple[list[str], subprocess.Popen[bytes]]:
        command = [*within, *unshared, "sh", "-c", "echo; exec cat"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        if not process.stdout.readline():
            pytest.skip(f"no network of its own here: {process.communicate()[1].decode().strip()}")
        entered = ["nsenter", f"--target={process.pid}", "--user", "--net", "--preserve-credentials"]
        self._run(entered, "link set lo up")
        return entered, process

    def _run(self, host: list[str], words: str) -> None:
        subprocess.run([*host, "ip", *words.split()], check=True, capture_output=True)

    def close(self) -> None:
        """End the namespaces."""
        for host in reversed(self._hosts):
            host.communicate(timeout=END_S)


@pytest.fixture
def network() -> Iterator[Network]:
    if missing := [name for name in ("ip", "unshare", "nsenter") if shutil.which(name) is None]:
        pytest.skip(f"no {', '.join(missing)} here")
    made = Network()
    yield made
    made.close()


def test_only_members_are_admitted_from_other_machines(network: Network, port: int) -> None:
    """A stranger's address is refused; a member with several addresses is known by one of them."""
    hosts = "10.77.0.1", "10.77.0.2"
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(Server(config(*hosts, port=port), prefix=network.first))

        def client(*words: str) -> Process:
            return stack.enter_context(Process("guarded_client", hosts[0], port, *words, prefix=network.second))

        client("source=10.77.0.3").answer()
        assert server.admits_next(client("source=10.77.0.2").answer())
        client().answer()  # the address that the kernel chooses
        assert server.admits_next(client(f"config={config(*hosts, port=port, own=1)}").answer())
        assert server.end().count("from 10.77.0.3, port") == 2


# -- where there is no guard


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("", ""),
        (config("127.0.0.1", port=1), ""),  # alone
        (config("worker-0.example", "worker-1.example", port=1), "numeric"),
        (config("127.0.0.1", "127.0.0.2", port=1, own=7), "does not list the members"),
        ("{", "does not list the members"),
        (config("127.0.0.1", "127.0.0.2", port=1), "not found"),
    ],
)
def test_reason_for_a_missing_guard_is_returned(given: str, text: str) -> None:
    hindrance = server_guard.guard(given, "/nowhere/")
    assert text in hindrance and bool(text) == bool(hindrance)


@pytest.mark.parametrize(("host", "asked"), [("127.0.0.1", b"key"), ("10.0.0.7", b"")])
def test_members_of_a_users_own_tf_config_prove_nothing(
    monkeypatch: pytest.MonkeyPatch, host: str, asked: bytes
) -> None:
    """They may not be workers of hopsml."""
    secrets: list[bytes] = []
    monkeypatch.setattr(server_guard, "guard", lambda config, libraries, secret: str(secrets.append(secret) or ""))
    monkeypatch.setenv("TF_CONFIG", config(host, "127.0.0.2", port=7))
    context: Any = SimpleNamespace(leader="127.0.0.1:7", server_key=b"key")
    setup._guard_server("/nowhere/tensorflow/__init__.py", context)
    assert secrets == [asked]


def test_missing_guard_library_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server_guard, "PATH", tmp_path / "none.so")
    monkeypatch.setenv("TF_CONFIG", config("127.0.0.1", "127.0.0.2", port=1))
    load: Callable[[], Any] = server_guard._load.__wrapped__
    monkeypatch.setattr(server_guard, "_load", load)
    setup._guard_server("/nowhere/tensorflow/__init__.py", None)
    assert "would let everybody in (docs/security.md)" in (output := capsys.readouterr().out) and "make setup" in output
    monkeypatch.setenv("HOPSML_UNGUARDED_SERVER", "1")
    setup._guard_server("/nowhere/tensorflow/__init__.py", None)
    assert capsys.readouterr().out == ""


BOUND = """
import _socket, socket, sys
from hopsml.cluster.worker import server_guard
first, last = map(int, sys.argv[1:3])
library = getattr(_socket, "__file__", None) or sys.executable
assert server_guard.restrict_ports(library, first, last) == ""

def port(address, family=socket.AF_INET, kind=socket.SOCK_STREAM):
    one = socket.socket(family, kind)
    one.bind((address, 0))
    held.append(one)
    return one.getsockname()[1]

held = []
print(*(port(address) for address in ("0.0.0.0", "0.0.0.0", "0.0.0.0")))
print(*(port("::", socket.AF_INET6) for _ in range(1)))
print(port("127.0.0.1"), port("0.0.0.0", kind=socket.SOCK_DGRAM))
try:
    while True:
        port("0.0.0.0")
except OSError as error:
    print(len(held), error.errno)
"""


def test_bind_within_restricts_ports_chosen_by_the_kernel_to_a_range() -> None:
    """Except for loopback, datagrams and explicit ports; if no port is free, binding fails."""
    first, last = 42100, 42109
    command = [sys.executable, "-c", BOUND, str(first), str(last)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=END_S, check=False)
    assert done.returncode == 0, done.stderr
    lines = [[int(word) for word in line.split()] for line in done.stdout.splitlines()]
    inside, inside_6, others, (bound, error) = lines
    allowed = set(range(first, last + 1))
    assert len(set(inside)) == 3 and set(inside + inside_6) <= allowed
    assert not set(others) & allowed
    assert bound <= len(allowed) + len(others) and error == errno.EADDRINUSE


def test_invalid_port_range_is_refused() -> None:
    assert server_guard.restrict_ports(str(build_native.SERVER), 10, 9) != ""
