"""Simulated hosts on this machine with separate networks, whose cables have a rate, a delay and losses; requires root.

    with shaped_network(hosts=2, cable=Cable(rate_mbit=1000)) as network:
        subprocess.Popen(network.command(1, ["python", "-m", "..."]))

A host is a network namespace that exists while its holding process runs, and that process ends with its creator. All
devices are inside such namespaces, so nothing is left, also if the creator is killed.

Cables without delay or losses use the kernel: pairs of devices on a bridge, with a token bucket at each end. Not every
kernel has netem; so a process between virtual devices (tools/slow_switch.py) simulates delays, losses and firewalls, and
takes about ten microseconds of a core for each packet.
"""

from __future__ import annotations

import abc
import contextlib
import ctypes
import fcntl
import functools
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SUBNET, SUBNET_6 = "10.214.77", "fd00:214:77:"
_PROGRAMS = ("ip", "tc", "nsenter", "unshare", "setpriv")
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_SET_DEVICE, _SET_OFFLOAD = 0x400454CA, 0x400454D0  # TUNSETIFF, TUNSETOFFLOAD
_TAP, _NO_INFO, _HEADERS = 0x0002, 0x1000, 0x4000  # IFF_TAP, IFF_NO_PI, IFF_VNET_HDR
_CHECKSUMS, _LARGE = 0x01, 0x02  # TUN_F_CSUM, TUN_F_TSO4
_QUEUE_S = 0.01  # capacity of a cable's queue; packets beyond it are lost
_LEAST_BURST = 128 << 10  # bytes: the kernel sends up to 64 kB at once
_PROBE = """set -e
ip link add one0 type veth peer name two0
tc qdisc add dev one0 root tbf rate 1gbit burst 128k limit 1m
: < /dev/net/tun"""


@dataclass(frozen=True)
class Cable:
    """Properties of each host's cable, and of a firewall between the hosts that drops packets without an answer.

    Attributes:
        rate_mbit: Mbit/s in each direction; 0: unlimited.
        delay_ms: delay from host to host in ms.
        loss: share of packets that are lost.
        idle_s: seconds without traffic after which packets of a connection are dropped; 0: never.
        largest: bytes above which IP packets are dropped, except the first host's; 0: none.
        ports: ranges, with both ends, of TCP ports to which connections pass; None: all.
    """

    rate_mbit: float = 0
    delay_ms: float = 0
    loss: float = 0
    idle_s: float = 0
    largest: int = 0
    ports: tuple[tuple[int, int], ...] | None = None

    @property
    def needs_switch(self) -> bool:
        """True if the kernel's own devices cannot simulate this cable."""
        return self.delay_ms > 0 or self.loss > 0 or self.idle_s > 0 or self.largest > 0 or self.ports is not None


@functools.cache
def hindrance() -> str:
    """Return the reason why such a network is not possible on this machine; "" if it is."""
    if os.geteuid() != 0:
        return "network namespaces are made by root only"
    if missing := [name for name in _PROGRAMS if shutil.which(name) is None]:
        return f"{', '.join(missing)} missing (apt-get install iproute2 util-linux)"
    tried = subprocess.run(
        ["unshare", "--net", "sh", "-c", _PROBE], capture_output=True, text=True, timeout=20, check=False
    )
    return "" if tried.returncode == 0 else f"this kernel or container does not let us: {tried.stderr.strip()[:200]}"


class Network:
    """Network of simulated hosts, numbered from 0."""

    def __init__(self, pids: Sequence[int], hub: Hub, version: int = 4) -> None:
        self._pids, self._hub, self._version = pids, hub, version

    @property
    def hosts(self) -> int:
        """Number of simulated hosts in the network."""
        return len(self._pids)

    def address(self, host: int) -> str:
        """Return the IP address of a host."""
        return _address(host, self._version)

    def command(self, host: int, command: Sequence[str]) -> list[str]:
        """Return the command line that runs a command on a host."""
        return _on(self._pids[host], command)

    def pid(self, host: int) -> int:
        """Return the pid of the process that holds the host's network namespace."""
        return self._pids[host]

    @contextmanager
    def inside(self, host: int) -> Iterator[None]:
        """Let this thread open sockets and start processes on a host; its sockets stay there afterwards."""
        with inside(self._pids[host]):
            yield

    def cut(self, host: int) -> None:
        """Drop all packets to and from a host, without notification."""
        self._hub.cut(host)

    def mend(self, host: int) -> None:
        """Let packets to and from a host pass again."""
        self._hub.mend(host)


@contextmanager
def shaped_network(hosts: int, cable: Cable = Cable(), version: int = 4) -> Iterator[Network]:
    """Create a network, and remove it at the end of the block; RuntimeError if ``hindrance`` returns a reason.

    The calling thread must live as long as the block.

    Args:
        hosts: number of hosts.
        cable: cable of each host.
        version: 4, or 6 for hosts with only IPv6 beside 127.0.0.1, whose cable the kernel must be able to simulate.
    """
    if why := hindrance():
        raise RuntimeError(f"no network of our own: {why}")
    assert version == 4 or not cable.needs_switch
    with ExitStack() as stack:
        pids = [stack.enter_context(_namespace(version)) for _ in range(hosts)]
        hub: Hub = stack.enter_context(_switch(pids, cable) if cable.needs_switch else _bridge(pids, cable, version))
        yield Network(pids, hub, version)


def _address(host: int, version: int = 4) -> str:
    return f"{SUBNET}.{10 + host}" if version == 4 else f"{SUBNET_6}:{10 + host}"


class Hub(abc.ABC):
    """Common end of the cables of all hosts."""

    @abc.abstractmethod
    def cut(self, host: int) -> None:
        """Disconnect the cable of a host."""

    @abc.abstractmethod
    def mend(self, host: int) -> None:
        """Connect the cable of a host again."""


class _Bridge(Hub):
    def __init__(self, pid: int) -> None:
        self._pid = pid

    def cut(self, host: int) -> None:
        _ip(self._pid, f"link set p{host} nomaster")

    def mend(self, host: int) -> None:
        _ip(self._pid, f"link set p{host} master hub")


class _Switch(Hub):
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def cut(self, host: int) -> None:
        self._say(f"cut {host}")

    def mend(self, host: int) -> None:
        self._say(f"mend {host}")

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()
        self._process.stdout.readline()


@contextmanager
def _bridge(pids: Sequence[int], cable: Cable, version: int) -> Iterator[Hub]:
    mask = "/24" if version == 4 else "/64 nodad"
    with _namespace(version) as hub:
        _ip(hub, "link add hub type bridge", "link set hub up")
        for host, pid in enumerate(pids):
            _ip(hub, f"link add p{host} type veth peer name eth0 netns {pid}", f"link set p{host} master hub up")
            _ip(pid, f"addr add {_address(host, version)}{mask} dev eth0", "link set eth0 up")
            if cable.rate_mbit > 0:
                _limit(hub, f"p{host}", cable.rate_mbit)
                _limit(pid, "eth0", cable.rate_mbit)
        yield _Bridge(hub)


def _limit(pid: int, device: str, rate_mbit: float) -> None:
    burst = max(_LEAST_BURST, int(rate_mbit * 125_000 * 1e-3 / 4))  # bytes; a quarter of a millisecond
    limit = burst + int(rate_mbit * 125_000 * _QUEUE_S)
    words = f"tc qdisc add dev {device} root tbf rate {rate_mbit:g}mbit burst {burst} limit {limit}"
    subprocess.run(_on(pid, words.split()), check=True, timeout=20, capture_output=True)


@contextmanager
def _switch(pids: Sequence[int], cable: Cable) -> Iterator[Hub]:
    with ExitStack() as stack:
        devices = [_device(pid, large=cable.loss == 0 and cable.largest == 0) for pid in pids]
        for device in devices:
            stack.callback(os.close, device)
        for host, pid in enumerate(pids):
            _ip(pid, f"link set eth0 address 02:00:00:00:00:{host:02x}")
            _ip(pid, f"addr add {_address(host)}/24 dev eth0", "link set eth0 txqueuelen 5000 up")
        ports = "all" if cable.ports is None else ",".join(f"{low}-{high}" for low, high in cable.ports)
        settings = [
            str(value)
            for value in (cable.rate_mbit, cable.delay_ms, cable.loss, _QUEUE_S, cable.idle_s, cable.largest, ports)
        ]
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "tools.slow_switch", *settings, *map(str, devices)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=devices,
                cwd=ROOT,
            )
        )
        hub = _Switch(process)
        stack.callback(process.kill)
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        yield hub


def _device(pid: int, large: bool) -> int:
    """Return a descriptor of a virtual Ethernet device in a namespace; ``large``: segments of up to 64 kB."""
    with inside(pid):
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(device, _SET_DEVICE, struct.pack("16sH22x", b"eth0", _TAP | _NO_INFO | _HEADERS))
        fcntl.ioctl(device, _SET_OFFLOAD, _CHECKSUMS | _LARGE if large else _CHECKSUMS)
        return device


@contextmanager
def _namespace(version: int = 4) -> Iterator[int]:
    """Create a network namespace, and yield the pid of the process that holds it."""
    without_ipv6 = f"echo {int(version == 4)} > /proc/sys/net/ipv6/conf/all/disable_ipv6"
    script = f"{without_ipv6}; ip link set lo up && echo up && exec sleep infinity"
    keep = ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sh", "-c", script]
    with subprocess.Popen(keep, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as keeper:
        try:
            assert keeper.stdout is not None
            if keeper.stdout.readline() != b"up\n":
                raise RuntimeError("a network namespace could not be made")
            yield keeper.pid
        finally:
            keeper.kill()


def _on(pid: int, command: Sequence[str]) -> list[str]:
    return ["nsenter", f"--net=/proc/{pid}/ns/net", *command]


def _ip(pid: int, *lines: str) -> None:
    command = _on(pid, ["ip", "-batch", "-"])
    subprocess.run(command, input="\n".join(lines), check=True, text=True, timeout=20, capture_output=True)


@contextmanager
def inside(pid: int) -> Iterator[None]:
    """Let this thread open sockets and start processes in the network namespace of a process."""
    library: Any = ctypes.CDLL(None, use_errno=True)
    with contextlib.ExitStack() as stack:
        home, there = (os.open(path, os.O_RDONLY) for path in ("/proc/thread-self/ns/net", f"/proc/{pid}/ns/net"))
        stack.callback(os.close, home)
        stack.callback(os.close, there)
        if library.setns(there, _NEW_NETWORK) != 0:
            raise OSError(ctypes.get_errno(), "setns")
        try:
            yield
        finally:
            library.setns(home, _NEW_NETWORK)
