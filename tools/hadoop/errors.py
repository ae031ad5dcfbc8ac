"""Errors of the local Hadoop cluster."""

from __future__ import annotations


class HadoopError(RuntimeError):
    """Error of a call or a Hadoop command; the message has the reason."""


class DaemonEnded(HadoopError):
    """Error of a daemon that ended unexpectedly; the message ends with the last lines of its log."""
