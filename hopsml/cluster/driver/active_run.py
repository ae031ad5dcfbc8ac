"""One run in the coordinator's hands: what was asked, its machine, and what the driver may see of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from hopsml.cluster.driver.formation import RunRequest
from hopsml.cluster.driver.run_state import RunState
from hopsml.cluster.gang.gang import Gang
from hopsml.cluster.shared import protocol
from hopsml.cluster.shared.layout import Placement


@dataclass
class ActiveRun:
    """A run that has begun and is not over; used on the coordinator's event loop alone."""

    request: RunRequest
    gang: Gang
    state: RunState
    failures: dict[str, protocol.WorkerFailed] = field(default_factory=dict)
    placements: dict[str, Placement] = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)
    result: bytes = b""
    waits_for: str = ""  # which people were told
    checkpoints_fail: bool = False  # the last one could not be written
    behind: set[str] = field(default_factory=set)  # agents whose mirrors are
    mirrors_fail: bool = False  # which people were told

    @property
    def run_id(self) -> str:
        """As in the run directory's name."""
        return self.request.run_id
