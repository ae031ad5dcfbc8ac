"""Program that becomes py-spy and ends with its agent.

Its command line is:

    python -m hopsml.cluster.agent.spy AGENT PROGRAM ARGUMENTS... PIDFD
"""

from __future__ import annotations

import os
import sys

from hopsml.cluster.shared import processes

NICENESS = 5  # so that it does not compete with the worker that it profiles


def main(arguments: list[str]) -> None:
    """Request a death signal from the kernel for the agent's end, which survives exec, then execute the program."""
    agent, *command, _ = arguments
    processes.die_with_parent(int(agent))
    os.nice(NICENESS)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
