"""Switch with delays between virtual devices: RATE_MBIT DELAY_MS LOSS QUEUE_S IDLE_S LARGEST PORTS DEVICE...

Devices are descriptors, by host. Each has a cable of RATE_MBIT in each direction; a frame arrives DELAY_MS after it was
sent, unless it is lost by chance, or its cable is behind by more than QUEUE_S. The switch is a firewall, too: it drops
packets of TCP connections after IDLE_S seconds of silence and IP packets of more than LARGEST bytes between hosts other
than the first, and passes only connections to PORTS (low-high,low-high...); 0, 0 and "all" disable these rules. Senders are
not notified. The input has lines ``cut HOST`` and ``mend HOST``; the switch ends with its input.
"""

from __future__ import annotations

import heapq
import os
import random
import select
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

LARGEST = 70_000  # bytes of a frame
FRAMES_AT_ONCE = 32  # read from one device before the next one
HEADER = 10  # bytes before each frame: how it may be split into segments
FIRST_HOST = 10  # the last byte of its address
_SYN, _ACK = 0x02, 0x10


@dataclass
class Firewall:
    """Firewall rules for IPv4 packets; ``ports``: ranges to which connections are allowed, None for all."""

    idle_s: float = 0.0
    largest: int = 0
    ports: Sequence[tuple[int, int]] | None = None
    seen: dict[frozenset[tuple[bytes, int]], float] = field(
        default_factory=dict
    )  # connection -> time of its last packet

    def passes(self, packet: bytes, now: float) -> bool:
        """Return True if the Ethernet frame ``packet`` may pass, at ``now`` (monotonic seconds)."""
        if packet[12:14] != b"\x08\x00":
            return True
        is_drivers = packet[29] == FIRST_HOST or packet[33] == FIRST_HOST
        if self.largest and not is_drivers and int.from_bytes(packet[16:18], "big") > self.largest:
            return False
        if packet[23] != 6:
            return True
        begin = 14 + 4 * (packet[14] & 15)
        source_port, target_port = struct.unpack_from("!HH", packet, begin)
        opens = packet[begin + 13] & (_SYN | _ACK) == _SYN
        if opens and self.ports is not None and not any(low <= target_port <= high for low, high in self.ports):
            return False
        connection = frozenset({(packet[26:30], source_port), (packet[30:34], target_port)})
        if self.idle_s and not opens and now - self.seen.get(connection, now - 2 * self.idle_s) > self.idle_s:
            return False
        self.seen[connection] = now
        return True


@dataclass
class Port:
    """Virtual device of a host with its cable."""

    device: int
    is_cut: bool = False
    sent_until: float = 0.0  # end of the transmission of the frames sent so far
    delivered_until: float = 0.0


@dataclass
class Switch:
    """Switch with its frames in transit, and their arrival times."""

    ports: Sequence[Port]
    rate_mbit: float
    delay_s: float
    loss: float
    queue_s: float
    firewall: Firewall = field(default_factory=Firewall)
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    coming: list[tuple[float, int, int, bytes]] = field(default_factory=list)
    number: int = 0

    def take(self, source: Port) -> None:
        """Read frames from a host, and queue them for their targets."""
        for _ in range(FRAMES_AT_ONCE):
            try:
                frame = os.read(source.device, LARGEST)
            except BlockingIOError:
                return
            if source.is_cut or self.chance.random() < self.loss:
                continue
            if not self.firewall.passes(frame[HEADER:], time.monotonic()):
                continue
            for target in self.targets(source, frame):
                self.send(source, target, frame)

    def targets(self, source: Port, frame: bytes) -> list[Port]:
        """Return the ports of a frame's targets: by the last byte of the Ethernet address, or all for a broadcast."""
        is_for_all = frame[HEADER] & 1
        ports = [port for port in self.ports if port is not source] if is_for_all else [self.ports[frame[HEADER + 5]]]
        return [port for port in ports if not port.is_cut]

    def send(self, source: Port, target: Port, frame: bytes) -> None:
        """Queue a frame for its arrival, unless a queue is full."""
        now = time.monotonic()
        takes = len(frame) * 8e-6 / self.rate_mbit if self.rate_mbit > 0 else 0.0
        gone = max(now, source.sent_until) + takes
        comes = max(gone + self.delay_s, target.delivered_until + takes)
        if gone - now > self.queue_s or comes - gone - self.delay_s > self.queue_s:
            return
        source.sent_until, target.delivered_until = gone, comes
        self.number += 1
        heapq.heappush(self.coming, (comes, self.number, target.device, frame))

    def deliver(self) -> float | None:
        """Write the frames that are due; return the seconds until the next one, None if there is none."""
        while self.coming:
            wait = self.coming[0][0] - time.monotonic()
            if wait > 0:
                return wait
            _, _, device, frame = heapq.heappop(self.coming)
            try:
                os.write(device, frame)
            except OSError:  # its queue is full, or it has ended: the frame is lost
                continue
        return None

    def run(self) -> None:
        """Forward frames until the input ends."""
        ports = {port.device: port for port in self.ports}
        words = b""
        while True:
            for device in select.select([*ports, 0], [], [], self.deliver())[0]:
                if device != 0:
                    self.take(ports[device])
                    continue
                words += (more := os.read(0, 4096))
                if not more:
                    return
                *lines, words = words.split(b"\n")
                for line in lines:
                    what, host = line.split()
                    self.ports[int(host)].is_cut = what == b"cut"
                    print("done", flush=True)


def main(*words: str) -> None:
    """Run the switch with the settings of the command line."""
    rate_mbit, delay_ms, loss, queue_s, idle_s, largest, ports, *devices = words
    ranges = None if ports == "all" else [_range(text) for text in ports.split(",")]
    switch = Switch(
        [Port(int(device)) for device in devices],
        float(rate_mbit),
        float(delay_ms) / 1000,
        float(loss),
        float(queue_s),
        Firewall(float(idle_s), int(largest), ranges),
    )
    print("ready", flush=True)
    switch.run()


def _range(text: str) -> tuple[int, int]:
    low, _, high = text.partition("-")
    return int(low), int(high)


if __name__ == "__main__":
    main(*sys.argv[1:])
