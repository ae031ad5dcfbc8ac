"""What becomes of a job when a task of it fails."""

from __future__ import annotations

from typing import Literal

Restart = Literal["end_all", "relaunch"]
"""``end_all``: the other tasks are ended, and the job is tried again as a whole, if it has retries left.
``relaunch``: the task alone is started anew, beside the others, and counts as a retry of the job."""
