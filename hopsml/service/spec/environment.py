"""Which Python packages a task finds."""

from __future__ import annotations

from typing import Self

from pydantic import ConfigDict, Field, JsonValue, model_validator

from hopsml.service.spec.model import SpecPart

_ONE: list[JsonValue] = [{"required": [name]} for name in ("packages", "archive", "image")]


class TaskEnvironment(SpecPart):
    """Which Python packages a task finds, said in one of three ways."""

    model_config = ConfigDict(json_schema_extra={"oneOf": _ONE})

    packages: str | None = Field(
        default=None,
        min_length=1,
        description="A requirements file of the workspace; on YARN the environment that submits travels.",
        examples=["requirements.txt"],
    )
    archive: str | None = Field(
        default=None,
        pattern=r"^[a-z][a-z0-9+.-]*://.+",
        description="URL of a packed environment, a tar.gz.",
        examples=["hdfs:///environments/torch.tar.gz"],
    )
    image: str | None = Field(
        default=None,
        min_length=1,
        description="A container image, of Kubernetes or of YARN's Docker.",
        examples=["hopsml:latest"],
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(given is not None for given in (self.packages, self.archive, self.image)) != 1:
            raise ValueError("an environment has exactly one of packages, archive and image: leave the others out")
        return self
