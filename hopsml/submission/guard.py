"""Program that ends a process group when its standard input is closed, that is, when its starter has exited.

    python guard.py GRACE_S

A ``finally`` does not run after kill -9, and a driver in Python outlives its spark-submit. The group's number arrives
in a line on the input, written by the group's first process itself, so that this process never runs without being known
to its guard. An ``x`` dismisses the guard.
"""

import os
import signal
import sys
import time


def main(grace_s: float) -> None:
    """Wait for the end of the input; then send SIGTERM, and SIGKILL to what remains after ``grace_s`` seconds."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    received = b""
    while more := os.read(0, 64):
        received += more
        if b"x" in received:
            return
    if not received.strip():
        return  # the starter exited before it had started anything
    group = int(received)
    deadline = time.monotonic() + grace_s
    try:
        os.killpg(group, signal.SIGTERM)
        while time.monotonic() < deadline:
            time.sleep(0.05)
            os.killpg(group, 0)
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


if __name__ == "__main__":
    main(float(sys.argv[1]))
