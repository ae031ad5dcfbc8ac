"""What the coordinator knows of one run: what was asked, its gang, and the state that the driver sees."""

from __future__ import annotations

from dataclasses import dataclass, field

from hopsml.cluster.driver.formation import RunRequest
from hopsml.cluster.driver.gang_log import GangLog
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

    def __post_init__(self) -> None:
        self.log = self.state.gang_log = GangLog(self.gang)

    @property
    def run_id(self) -> str:
        """``<application>_<n>``, as the run directory is called."""
        return self.request.run_id
