"""A switch between virtual devices that takes its time: RATE_MBIT DELAY_MS LOSS QUEUE_S DEVICE...

Devices are descriptors, by host. Each has a cable of RATE_MBIT each way; a frame comes DELAY_MS after it has gone, unless it
is one of those that are lost, or its cable is behind by more than QUEUE_S. Lines of the input: ``cut HOST``, ``mend HOST``;
its end is that of the switch.
"""

from __future__ import annotations

import heapq
import os
import random
import select
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

LARGEST = 70_000  # bytes of a frame
FRAMES_AT_ONCE = 32  # of one device, before another one is looked at
HEADER = 10  # bytes in front of each frame: how it may be cut into segments


@dataclass
class Port:
    """One device with its cable."""

    device: int
    is_cut: bool = False
    sent_until: float = 0.0  # when what has been sent so far is off the cable
    delivered_until: float = 0.0


@dataclass
class Switch:
    """Frames under way, and when they come."""

    ports: Sequence[Port]
    rate_mbit: float
    delay_s: float
    loss: float
    queue_s: float
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    coming: list[tuple[float, int, int, bytes]] = field(default_factory=list)
    number: int = 0

    def take(self, source: Port) -> None:
        """Read what a host sends."""
        for _ in range(FRAMES_AT_ONCE):
            try:
                frame = os.read(source.device, LARGEST)
            except BlockingIOError:
                return
            if source.is_cut or self.chance.random() < self.loss:
                continue
            for target in self.targets(source, frame):
                self.send(source, target, frame)

    def targets(self, source: Port, frame: bytes) -> list[Port]:
        """The last byte of a host's Ethernet address is its number; what is for all goes to all."""
        is_for_all = frame[HEADER] & 1
        ports = [port for port in self.ports if port is not source] if is_for_all else [self.ports[frame[HEADER + 5]]]
        return [port for port in ports if not port.is_cut]

    def send(self, source: Port, target: Port, frame: bytes) -> None:
        """Put it on its way."""
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
        """What is due; seconds until the next is, None for none."""
        while self.coming:
            wait = self.coming[0][0] - time.monotonic()
            if wait > 0:
                return wait
            _, _, device, frame = heapq.heappop(self.coming)
            try:
                os.write(device, frame)
            except OSError:  # its queue is full, or it is gone: a frame that is lost
                continue
        return None

    def run(self) -> None:
        """Until the input ends."""
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


def main(rate_mbit: str, delay_ms: str, loss: str, queue_s: str, *devices: str) -> None:
    """Serve."""
    ports = [Port(int(device)) for device in devices]
    switch = Switch(ports, float(rate_mbit), float(delay_ms) / 1000, float(loss), float(queue_s))
    print("ready", flush=True)
    switch.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
