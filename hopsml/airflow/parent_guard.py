"""Parent guard: run a command that ends with its parent, ``python -m hopsml.airflow.parent_guard PARENT_PID COMMAND...``.

A submission that outlives a killed task could reach YARN after the next try has searched for it there, so that two
applications would run. On SIGTERM, and when the parent has ended, the command is killed with all its descendants.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import FrameType

from hopsml.core import processes


class _Ended(BaseException):
    """Raised on SIGTERM, which is also sent when the parent has ended."""


def main(parent: int, command: list[str]) -> int:
    """Run ``command`` until it or process ``parent`` ends; return its exit status."""
    signal.signal(signal.SIGTERM, _on_sigterm)
    processes.become_subreaper()
    try:
        processes.die_with_parent(parent, signal.SIGTERM)
        me = os.getpid()
        code = subprocess.Popen(command, preexec_fn=lambda: processes.die_with_parent(me)).wait()
    except _Ended:
        code = 128 + signal.SIGTERM
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    processes.end_descendants()
    return code if code >= 0 else 128 - code


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    """Unwind the main thread on SIGTERM."""
    raise _Ended


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
