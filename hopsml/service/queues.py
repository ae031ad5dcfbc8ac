"""The queues of a service, as a file: ``hopsml server --queues queues.yaml``.

research: {weight: 2, guaranteed: {gpus: 16}, limit: {gpus: 64}}
default: {}
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from hopsml.errors import ArgumentError
from hopsml.service.scheduler.policy import DEFAULT_QUEUE, Queue
from hopsml.service.scheduler.resources import NOTHING, UNLIMITED, Resources
from hopsml.service.spec.names import Name
from hopsml.service.spec.units import Memory


class QueueShare(BaseModel):
    """GPUs, cores and memory; of a limit, what is left out is not limited."""

    model_config = ConfigDict(extra="forbid")

    gpus: int | None = Field(default=None, ge=0)
    cores: int | None = Field(default=None, ge=0)
    memory: Memory | None = None

    def resources(self, otherwise: int) -> Resources:
        """The same; ``otherwise`` for what is left out."""
        return Resources(*(otherwise if each is None else each for each in (self.gpus, self.cores, self.memory)))


class QueueRule(BaseModel):
    """One queue: see ``scheduler.policy.Queue``."""

    model_config = ConfigDict(extra="forbid")

    weight: float = Field(default=1.0, gt=0, lt=1e6)
    guaranteed: QueueShare | None = None
    limit: QueueShare | None = None
    driver_memory: Memory | None = None

    def queue(self, name: str) -> Queue:
        """Raises ArgumentError where more is guaranteed than the limit lets it have."""
        return Queue(
            name,
            self.weight,
            self.guaranteed.resources(0) if self.guaranteed else NOTHING,
            self.limit.resources(UNLIMITED) if self.limit else None,
            self.driver_memory,
        )


def load(path: Path | None) -> tuple[Queue, ...]:
    """The queues of a file, the one called default among them; that alone where no file is named. Raises ArgumentError."""
    if path is None:
        return (Queue(),)
    try:
        given: Any = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        rules = TypeAdapter(dict[Name, QueueRule]).validate_python(given)
    except OSError as error:
        raise ArgumentError(f"--queues {path}: it cannot be read: {error.strerror}; name a file") from error
    except yaml.YAMLError as error:
        raise ArgumentError(f"--queues {path}: this is no YAML: {error}; correct it") from error
    except ValidationError as error:
        said = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:10])
        raise ArgumentError(f"--queues {path}: {said}; a queue has weight, guaranteed, limit, driver_memory") from error
    return tuple(rule.queue(name) for name, rule in {DEFAULT_QUEUE: QueueRule(), **rules}.items())
