"""Run as a program: ends a process group when its standard input is closed, that is, when whoever started it is gone.

    python guard.py GROUP GRACE_S

A ``finally`` does not run after kill -9, and a driver in Python outlives its spark-submit. A byte on the input dismisses it.
"""

import os
import signal
import sys
import time


def main(group: int, grace_s: float) -> None:
    """Wait; then SIGTERM, and SIGKILL for what is left after ``grace_s`` seconds."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if os.read(0, 1):
        return
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
    main(int(sys.argv[1]), float(sys.argv[2]))
