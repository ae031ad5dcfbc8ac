"""Resources of one worker of a task."""

from __future__ import annotations

from pydantic import Field

from hopsml.service.spec import limits
from hopsml.service.spec.model import SpecPart
from hopsml.service.spec.names import Label
from hopsml.service.spec.units import Memory


class WorkerResources(SpecPart):
    """Resources of one worker: cores, total memory (MiB), GPUs, and a label that its node must have."""

    cores: int = Field(default=1, ge=1, le=limits.CORES, description="Cores of one worker.", examples=[4])
    memory_mib: Memory = Field(
        default=1024,
        alias="memory",
        json_schema_extra={"default": "1g"},
        description="Total memory of one worker, for Python and the JVM: a whole number with m, g or t.",
        examples=["16g"],
    )
    gpus: int = Field(default=0, ge=0, le=limits.GPUS, description="GPUs of one worker.", examples=[1])
    node_label: Label | None = Field(
        default=None,
        description="Only nodes with this label: YARN's, or Kubernetes' label node-label.",
        examples=["v100"],
    )
