"""Simulated hosts on one machine: network namespaces on a bridge, with links that can be cut. Needs root."""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from hopsml.cluster.agent.network import Bootstrap
from hopsml.cluster.driver.backends.local import LocalBackend
from tests.chaos.places import needs_root
from tests.helpers.clock import END_S

BRIDGE, SUBNET = "hopsml-t0", "10.213.77"
HOSTS = 2
_NEW_NETWORK, _NEW_NAME = 0x40000000, 0x04000000  # CLONE_NEWNET, CLONE_NEWUTS
Host = tuple[int, int]  # descriptors of its network namespace, and of that of its name


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, timeout=END_S, capture_output=True)


def pull_cable(host: int) -> None:
    """Cut a host's network link."""
    _ip("link", "set", f"{BRIDGE}-{host}", "down")


def plug_in(host: int) -> None:
    """Restore a host's network link."""
    _ip("link", "set", f"{BRIDGE}-{host}", "up")


@contextmanager
def two_hosts(folder: Path) -> Iterator[None]:
    """Agents alternate between two hosts until each has one; later ones are on the first. Its driver is on neither.

    The driver can end no process on another host, so agents that are cut off must end by their own lease.
    """
    needs_root("ip", "nsenter", "unshare", "hostname")
    with ExitStack() as stack:
        _ip("link", "add", BRIDGE, "type", "bridge")
        stack.callback(_ip, "link", "del", BRIDGE)
        _ip("addr", "add", f"{SUBNET}.1/24", "dev", BRIDGE)
        _ip("link", "set", BRIDGE, "up")
        places = [stack.enter_context(_host(number)) for number in range(HOSTS)]
        environment = stack.enter_context(pytest.MonkeyPatch.context())
        number, start = itertools.count(), LocalBackend._start

        def start_on_host(bootstrap: Bootstrap, index: int) -> subprocess.Popen[bytes]:
            started = next(number)
            with _inside(places[started if started < HOSTS else 0]):
                return start(bootstrap, index)

        environment.setattr(LocalBackend, "_start", staticmethod(start_on_host))
        environment.setattr(LocalBackend, "addresses", lambda self: (f"{SUBNET}.1", (f"{SUBNET}.1",)))
        environment.setattr(LocalBackend, "evict", lambda self, task, pid: None)
        yield


@contextmanager
def _host(number: int) -> Iterator[Host]:
    """Yield a host with a separate network and name."""
    with ExitStack() as stack:
        keeper = subprocess.Popen(["unshare", "--net", "--uts", "sleep", "infinity"])
        stack.callback(keeper.wait)
        stack.callback(keeper.kill)
        ours = os.stat("/proc/self/ns/net").st_ino
        while os.stat(f"/proc/{keeper.pid}/ns/net").st_ino == ours:
            assert keeper.poll() is None
        subprocess.run(
            ["nsenter", f"--uts=/proc/{keeper.pid}/ns/uts", "hostname", f"hopsml-t{number}"], check=True, timeout=20
        )
        cable = f"{BRIDGE}-{number}"
        _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", str(keeper.pid))
        stack.callback(_ip, "link", "del", cable)  # the kernel would do it with the namespace, but in its own time
        _ip("link", "set", cable, "master", BRIDGE, "up")
        for words in (
            ["link", "set", "lo", "up"],
            ["addr", "add", f"{SUBNET}.{10 + number}/24", "dev", "eth0"],
            ["link", "set", "eth0", "up"],
        ):
            enter = ["nsenter", f"--net=/proc/{keeper.pid}/ns/net", "ip"]
            subprocess.run([*enter, *words], check=True, timeout=END_S)
        network, name = (os.open(f"/proc/{keeper.pid}/ns/{kind}", os.O_RDONLY) for kind in ("net", "uts"))
        stack.callback(os.close, network)
        stack.callback(os.close, name)
        yield network, name


@contextmanager
def _inside(host: Host) -> Iterator[None]:
    """Run processes that this thread starts on that host."""
    library: Any = ctypes.CDLL(None, use_errno=True)
    home = tuple(os.open(f"/proc/thread-self/ns/{kind}", os.O_RDONLY) for kind in ("net", "uts"))
    try:
        _enter(library, host)
        try:
            yield
        finally:
            _enter(library, home)
    finally:
        for descriptor in home:
            os.close(descriptor)


def _enter(library: Any, host: tuple[int, ...]) -> None:
    for descriptor, kind in zip(host, (_NEW_NETWORK, _NEW_NAME), strict=True):
        if library.setns(descriptor, kind) != 0:
            raise OSError(ctypes.get_errno(), "setns")
