"""Policies for the restart of a job after the failure of one of its tasks."""

from __future__ import annotations

from typing import Literal

Restart = Literal["end_all", "relaunch"]
"""``end_all``: the other tasks are ended, and the whole job is tried again if it has retries left.

``relaunch``: only the failed task is started again, while the others continue; it counts as a retry of the job.
"""
