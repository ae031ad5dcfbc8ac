"""Runner side of the socket between a runner and its trial slot (lane)."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque

import msgspec

from hopsml.cluster.shared.framing import Frames, framed
from hopsml.search import messages
from hopsml.search.messages import EndTrial, GoOn, ToLane, TrialReported
from hopsml.training.trials.lane_queue import FromRunner

_READ_BYTES = 1 << 16
_encode = msgspec.msgpack.Encoder().encode


class Channel:
    """Messages to and from the lane; usable from any thread, but ``get`` from one thread only."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._frames = connection, Frames()
        self._came: deque[ToLane] = deque()
        self._let_go_on: GoOn | None = None  # the newest message to continue
        self._lock = threading.Lock()
        self._unsent = bytearray()
        self._held: dict[int, bytes] = {}  # step -> its newest report, while the lane does not read

    def get(self) -> ToLane | None:
        """Wait for the lane's next message; None if the lane has closed the connection."""
        while not self._came:
            if not self._read(0):
                return None
        return self._came.popleft()

    def ended(self, number: int, attempt: int) -> EndTrial | None:
        """Return the lane's request to end this attempt of a trial, if one has arrived; does not wait.

        Each request is returned once.
        """
        with self._lock:
            self._read(socket.MSG_DONTWAIT)
            for message in self._came:
                if isinstance(message, EndTrial) and (message.number, message.attempt) == (number, attempt):
                    self._came.remove(message)
                    return message
        return None

    def await_verdict(self, report: TrialReported, timeout_s: float) -> bool:
        """Wait until the driver has answered this report, by ending the trial or letting it continue.

        Args:
            report: the report sent.
            timeout_s: seconds to wait.

        Returns:
            True if the answer has arrived in time.
        """
        deadline = time.monotonic() + timeout_s
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        with self._lock:
            while not self._has_answer(report):
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not poll.poll(left_s * 1000) or not self._read(socket.MSG_DONTWAIT):
                    return False
        return True

    def _has_answer(self, report: TrialReported) -> bool:
        """Return True if an answer to this report has arrived."""
        trial, answer = (report.number, report.attempt), self._let_go_on
        if answer is not None and (answer.number, answer.attempt, answer.step) == (*trial, report.step):
            return True
        return any(isinstance(each, EndTrial) and (each.number, each.attempt) == trial for each in self._came)

    def report(self, message: TrialReported) -> None:
        """Send a report without waiting; while the lane does not read, retain only the newest report of each step."""
        with self._lock:
            self._held[message.step] = framed(_encode(message))
            self._push(socket.MSG_DONTWAIT)

    def send(self, message: FromRunner) -> None:
        """Send a message after all waiting reports; blocks, and raises OSError if the lane has exited."""
        with self._lock:
            self._push(0)
            self._connection.sendall(framed(_encode(message)))

    def _push(self, flags: int) -> None:
        """Send waiting reports as far as possible."""
        while self._unsent or self._held:
            if not self._unsent:
                self._unsent += b"".join(self._held.values())
                self._held.clear()
            try:
                sent = self._connection.send(self._unsent, flags)
            except BlockingIOError:
                return
            del self._unsent[:sent]

    def _read(self, flags: int) -> bool:
        """Read the messages that have arrived; return False at the end of the connection."""
        try:
            piece = self._connection.recv(_READ_BYTES, flags)
        except BlockingIOError:
            return True
        for message in map(messages.decode_for_lane.decode, self._frames.feed(piece)):
            if isinstance(message, GoOn):
                self._let_go_on = message
            else:
                self._came.append(message)
        return bool(piece)
