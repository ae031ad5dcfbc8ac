"""Schema of the file with a service's queues: ``hopsml server --queues queues.yaml``.

research: {weight: 2, guaranteed: {gpus: 16}, limit: {gpus: 64}}
default: {}
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from hopsml.service import rules_file
from hopsml.service.scheduler.policy import DEFAULT_QUEUE, Queue
from hopsml.service.scheduler.resources import NOTHING, UNLIMITED, Resources
from hopsml.service.spec.names import Name
from hopsml.service.spec.units import Memory


class QueueShare(BaseModel):
    """GPUs, cores and memory of a guarantee or a limit; omitted resources have no limit."""

    model_config = ConfigDict(extra="forbid")

    gpus: int | None = Field(default=None, ge=0)
    cores: int | None = Field(default=None, ge=0)
    memory: Memory | None = None

    def resources(self, otherwise: int) -> Resources:
        """Convert to the scheduler's resources; omitted ones get the value ``otherwise``."""
        return Resources(*(otherwise if each is None else each for each in (self.gpus, self.cores, self.memory)))


class QueueRule(BaseModel):
    """One queue, from which ``scheduler.policy.Queue`` is made."""

    model_config = ConfigDict(extra="forbid")

    weight: float = Field(default=1.0, gt=0, lt=1e6)
    guaranteed: QueueShare | None = None
    limit: QueueShare | None = None
    driver_memory: Memory | None = None

    def queue(self, name: str) -> Queue:
        """Convert the rule to the scheduler's queue. Raises ArgumentError if the guarantee exceeds the limit."""
        return Queue(
            name,
            self.weight,
            self.guaranteed.resources(0) if self.guaranteed else NOTHING,
            self.limit.resources(UNLIMITED) if self.limit else None,
            self.driver_memory,
        )


def load(path: Path | None) -> tuple[Queue, ...]:
    """Read the queues of a file; the queue "default" is added if the file does not define it.

    Args:
        path: The file; None for the default queue alone.

    Raises:
        ArgumentError: The file cannot be used.
    """
    if path is None:
        return (Queue(),)
    known = TypeAdapter(dict[Name, QueueRule])
    fields = "a queue has weight, guaranteed, limit, driver_memory"
    rules = rules_file.read("--queues", path, lambda given: known.validate_python(given or {}), fields)
    return tuple(rule.queue(name) for name, rule in {DEFAULT_QUEUE: QueueRule(), **rules}.items())
