"""Becomes py-spy: ``python -m hopsml.cluster.agent.spy AGENT PROGRAM ARGUMENTS... PIDFD``, and ends when its agent does."""

from __future__ import annotations

import os
import sys

from hopsml.cluster.shared import processes

NICENESS = 5  # it shall not take from the worker what it looks at


def main(arguments: list[str]) -> None:
    """Ask the kernel for the agent's end, then execute the program: that outlasts it."""
    agent, *command, _ = arguments
    processes.die_with_parent(int(agent))
    os.nice(NICENESS)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
