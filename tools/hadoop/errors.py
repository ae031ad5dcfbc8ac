"""What goes wrong with the local Hadoop cluster."""

from __future__ import annotations


class HadoopError(RuntimeError):
    """A call cannot be carried out, or a Hadoop command failed; the message says which and why."""


class DaemonEnded(HadoopError):
    """A daemon ended by itself; the message ends with the last lines of its log."""
