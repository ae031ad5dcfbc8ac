"""Agent's network: its connection to the coordinator, ports held until a framework binds them, addresses. Linux only.

On the connection a heartbeat overtakes all queued messages. Messages in transit are bounded as well as queued ones: on
a busy machine, a coordinator with megabytes of reports to handle would renew no lease until it has read them, and all
agents would exit.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import itertools
import random
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hopsml.cluster.shared import tls
from hopsml.cluster.shared.protocol import MAX_TO_AGENT, Heartbeat, Message, encode
from hopsml.core import settings
from hopsml.core.decoding import checked
from hopsml.errors import ArgumentError, RunError

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

    from hopsml.cluster.shared.protocol import Formation


AGAIN_PAUSE_S = 1.0  # of a replacement agent, between two tries
ROOM = 256 << 10  # bytes that may be queued or in transit before the reader of a worker's pipe is paused


class Bootstrap(msgspec.Struct, frozen=True):
    """Settings that an agent needs before it can connect; sent in the Spark task's closure, or on its standard input."""

    request_id: int = msgspec.field(name="ask")
    addresses: tuple[tuple[str, int], ...]  # of the coordinator, tried in this order
    token: str
    certificate: str  # PEM; the only one that the agent trusts
    preload: tuple[str, ...]
    lease_s: float
    sys_path: tuple[str, ...]  # of the driver, if it shares the agents' disk
    port_range: tuple[int, int] | None = None
    gpus: int = 0  # number to lock if Spark assigns none
    bare: bool = False  # the slot needs no GPU, and the agent uses none
    cores: int = 0  # cores per slot in the cluster's settings
    host: str = ""  # address to bind and to announce; "": the local address of the connection
    zygote: str = ""  # name of the driver's zygote, if the agent runs on the driver's machine
    zygote_modules: tuple[str, ...] = ()  # modules that the zygote imports
    has_tokens: bool = False  # the coordinator sends delegation tokens after its welcome

    def zygote_for(self, modules: tuple[str, ...]) -> str:
        """Return the zygote's name if it imports exactly these modules, else "".

        A further import could hang or fail, and would concern a function that does not need it.
        """
        return self.zygote if set(modules) == set(self.zygote_modules) else ""


_bootstrap = checked(msgspec.msgpack.Decoder(Bootstrap).decode)


def decode_bootstrap(data: bytes) -> Bootstrap:
    """Decode a bootstrap that ``msgspec.msgpack.encode`` has encoded."""
    return _bootstrap(data)


async def connect(bootstrap: Bootstrap, patience_s: float, on_data: Callable[[], None]) -> ClientConnection:
    """Connect to the coordinator.

    Args:
        bootstrap: addresses and credentials.
        patience_s: seconds for which a failed attempt is repeated.
        on_data: called whenever bytes have been received.

    Raises:
        ConnectionError: no address answers.
    """
    from websockets.asyncio.client import ClientConnection

    class LeaseConnection(ClientConnection):
        def data_received(self, data: bytes) -> None:
            on_data()
            super().data_received(data)

    coordinator = bootstrap.addresses, bootstrap.token, bootstrap.certificate
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return await tls.connect(*coordinator, MAX_TO_AGENT, LeaseConnection)
        except ConnectionError:
            if time.monotonic() + AGAIN_PAUSE_S >= deadline:
                raise
            await asyncio.sleep(AGAIN_PAUSE_S)


class Outbox:
    """Queue of encoded messages to the coordinator; used on one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._bytes = 0  # that the coordinator has not acknowledged
        self._beat = False
        self._filled = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()

    def put(self, message: Message) -> None:
        """Append a message to the queue, without blocking.

        Callers that must bound the queue await ``wait_for_room`` before.
        """
        if isinstance(message, Heartbeat):
            self._beat = True
        else:
            data = encode(message)
            self._waiting.append(data)
            self._bytes += len(data)
            if self._bytes > ROOM:
                self._has_room.clear()
        self._filled.set()

    async def take(self) -> bytes:
        """Wait for the next message to send, and return its bytes; a heartbeat comes before all others."""
        await self._filled.wait()
        if self._beat:
            self._beat, data = False, _BEAT
        else:
            data = self._waiting.popleft()
        if not self._waiting and not self._beat:
            self._filled.clear()
        return data

    def record_handled(self, size: int) -> None:
        """Record that the coordinator has handled ``size`` more bytes."""
        self._bytes -= size
        if self._bytes <= ROOM:
            self._has_room.set()

    async def wait_for_room(self) -> None:
        """Wait until the messages that the coordinator has not handled take at most ``ROOM`` bytes."""
        await self._has_room.wait()


_BEAT = encode(Heartbeat())


# Interfaces of containers and virtual machines: their addresses repeat on many hosts.
_VIRTUAL_INTERFACES = ("docker", "br-", "veth", "virbr", "cni", "flannel", "cali", "podman", "lxc", "vnet")


class HeldPort:
    """Reserved TCP port that only a server of the same user with SO_REUSEPORT can bind.

    The socket never listens: until such a server does, connections are refused. Close it when the server listens, or
    let the process end. TensorFlow sets SO_REUSEPORT if TF_GRPC_REUSE_PORT=1 is in its environment.
    """

    def __init__(self, held: socket.socket, mark: socket.socket) -> None:
        self._sockets = (held, mark)
        self.port: int = held.getsockname()[1]

    def close(self) -> None:
        """Close the sockets, so that any process can bind the port; may be called twice."""
        for held in self._sockets:
            held.close()

    def share_by_address(self) -> None:
        """Set SO_REUSEADDR, so that a server that sets it too can bind the port, such as torch's store.

        Linux lets sockets that all have it bind one port until one of them listens, also those of another user.
        """
        self._sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    def let_any_server_bind(self) -> None:
        """Let any server bind the port; other hopsml agents still avoid it until ``close``."""
        self._sockets[0].close()

    def __enter__(self) -> HeldPort:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class WorkerPorts:
    """Ports of one worker: one for its framework's server, one for hopsml's own collective."""

    framework: HeldPort
    collective: HeldPort

    def close(self) -> None:
        """Close both of the ports; may be called twice."""
        self.framework.close()
        self.collective.close()


def hold_worker_ports(host: str, port_range: tuple[int, int] | None) -> WorkerPorts:
    """Reserve two free ports of ``host``; arguments and errors as of ``hold_port``."""
    return WorkerPorts(hold_port(host, port_range), hold_port(host, port_range))


class SlotPorts:
    """Ports of an agent's slot: those of its worker, and those held for the worker of the next generation."""

    def __init__(self, host: str, port_range: tuple[int, int] | None) -> None:
        """Hold ports for the first worker; arguments and errors as of ``hold_port``."""
        self._host, self._port_range = host, port_range
        self.held = hold_worker_ports(host, port_range)
        self._of_worker: WorkerPorts | None = None
        self._retained_for = ""  # id of the run whose member here retains its address across processes

    def assign(self, formation: Formation) -> bool:
        """Assign the held ports to the worker that starts, and hold others, unless it retains its ports.

        Returns:
            True if other ports are held now.

        Raises:
            RunError: if no port is free.
        """
        is_new = self._of_worker is None or self._retained_for != formation.run_id
        if is_new:
            self._release()
            self._of_worker, self.held = self.held, hold_worker_ports(self._host, self._port_range)
            # The worker's program may open the group's store itself; TensorFlow's server shares by SO_REUSEPORT.
            if formation.spec.framework != "tensorflow":
                self._of_worker.framework.share_by_address()
        self._retained_for = formation.run_id if formation.spec.group.relaunches else ""
        return is_new

    def release_after_worker(self) -> None:
        """Release the ports of the worker, unless its successor retains them."""
        if not self._retained_for:
            self._release()

    def release_of(self, run_id: str) -> None:
        """Release the ports that a member of this run retains."""
        if self._retained_for == run_id:
            self._release()

    def close(self) -> None:
        """Release all ports."""
        self._release()
        self.held.close()

    def _release(self) -> None:
        if self._of_worker is not None:
            self._of_worker.close()
        self._of_worker, self._retained_for = None, ""


def hold_port(host: str = "", port_range: tuple[int, int] | None = None) -> HeldPort:
    """Reserve a free port of ``host``; a port whose connections have all ended counts as free.

    The kernel remembers ended connections for 60 s.

    Args:
        host: an address of this machine; "" for all of them, IPv4 and IPv6.
        port_range: (first, last), both included, for firewalls; None lets the kernel choose.

    Raises:
        ArgumentError: for an invalid range, or a host that is not this machine.
        RunError: if no port is free.
    """
    family, address = _bindable(host)
    first, last = port_range or (0, 0)
    ports = _shuffled(first, last) if port_range else itertools.repeat(0, 100)
    for port in ports:
        held = _hold(family, address, port)
        if held is not None:
            return held
    raise RunError(
        settings.no_free_port_text(first, last, host or socket.gethostname())
        if port_range
        else f"the kernel has no free port on {host or socket.gethostname()} (net.ipv4.ip_local_port_range)"
    )


def _bindable(host: str) -> tuple[socket.AddressFamily, str]:
    """Return the address family and address of ``host``, checked by binding a socket."""
    if not host:
        return (socket.AF_INET6, "::") if socket.has_dualstack_ipv6() else (socket.AF_INET, "0.0.0.0")
    try:
        family, _, _, _, address = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)[0]
        _bind(family, str(address[0]), 0).close()
    except OSError as error:
        raise ArgumentError(
            f"no port can be opened on {host!r} ({error.strerror}); use an address of this machine, one of "
            f"{', '.join(local_addresses())}"
        ) from error
    return family, str(address[0])


def _hold(family: socket.AddressFamily, address: str, port: int) -> HeldPort | None:
    """Reserve this port, or one of the kernel's choice for 0; return None if it is taken."""
    with contextlib.ExitStack() as cleanup:
        try:
            if port:
                mark = cleanup.enter_context(_mark(port))
                held = cleanup.enter_context(_bind_or_inherit(family, address, port))
            else:
                held = cleanup.enter_context(_bind(family, address, 0))
                mark = cleanup.enter_context(_mark(held.getsockname()[1]))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return None
            raise
        cleanup.pop_all()
        return HeldPort(held, mark)


def _mark(port: int) -> socket.socket:
    """Bind an abstract Unix socket that marks a port as reserved; it disappears with its process.

    A port that is bound without listening is not visible to other processes, and the kernel lets sockets of one user
    that all set SO_REUSEPORT share it.
    """
    mark = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        mark.bind(f"\0hopsml-port-{port}")
    except BaseException:
        mark.close()
        raise
    return mark


def _bind_or_inherit(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    """Bind a port.

    If only ended connections use it, set SO_REUSEPORT before the bind, as it was set on theirs.
    """
    try:
        return _bind(family, address, port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE or _is_listening(port):
            raise
        return _bind(family, address, port, shared=True)


def _bind(family: socket.AddressFamily, address: str, port: int, shared: bool = False) -> socket.socket:
    """Bind a port exclusively, then allow sharing, which Linux permits; or share it from the start."""
    held = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address != "::"))
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(shared))
        held.bind((address, port))
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    except BaseException:
        held.close()
        raise
    return held


def _is_listening(port: int) -> bool:
    """Return True if a socket listens on the port."""
    for table in ("tcp", "tcp6"):
        try:
            lines = Path("/proc/net", table).read_text().splitlines()[1:]
        except FileNotFoundError:  # no IPv6 on this machine
            continue
        for _, local, _, state, *_ in map(str.split, lines):
            if state == "0A" and int(local.rpartition(":")[2], 16) == port:
                return True
    return False


def _shuffled(first: int, last: int) -> Iterator[int]:
    """Return the ports of the range from a random one on.

    A new generation then rarely gets the previous one's port.
    """
    if not (1 <= first <= last <= 65535):
        raise ArgumentError(
            f"port_range={(first, last)}: the range must be (first, last) with 1 <= first <= last <= 65535"
        )
    count = last - first + 1
    start = random.randrange(count)
    return (first + (start + i) % count for i in range(count))


# -- addresses


def local_addresses() -> tuple[str, ...]:
    """Return the addresses of this machine's interfaces that are up.

    Physical ones first, then those of containers' bridges, loopback last; IPv4 before IPv6. Link-local addresses are
    left out, since they mean nothing without the interface's name.
    """
    import psutil

    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    found: dict[str, tuple[bool, bool, int]] = {}
    for name, addresses in psutil.net_if_addrs().items():
        for entry in addresses:
            if name not in up or entry.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            address = ipaddress.ip_address(entry.address)
            if not address.is_link_local:
                virtual = name.startswith(_VIRTUAL_INTERFACES)
                found.setdefault(str(address), (address.is_loopback, virtual, address.version))
    return tuple(sorted(found, key=lambda text: found[text]))
