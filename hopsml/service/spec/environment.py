"""Environment of Python packages of a task."""

from __future__ import annotations

from typing import Self

from pydantic import ConfigDict, Field, JsonValue, field_validator, model_validator

from hopsml.service.spec.model import SpecPart
from hopsml.service.spec.names import FILE_LETTER, URL_PATTERN, check_in_the_workspace

_ONE: list[JsonValue] = [{"required": [name]} for name in ("packages", "archive", "image")]


class TaskEnvironment(SpecPart):
    """Python packages of a task, named in exactly one of three ways."""

    model_config = ConfigDict(json_schema_extra={"oneOf": _ONE})

    packages: str | None = Field(
        default=None,
        pattern=rf"^{FILE_LETTER}+$",
        description="A requirements file of the workspace; on YARN the submitting environment is shipped.",
        examples=["requirements.txt"],
    )
    archive: str | None = Field(
        default=None,
        pattern=URL_PATTERN,
        description="URL of a packed environment, a tar.gz, on a store that the service allows.",
        examples=["hdfs:///environments/torch.tar.gz"],
    )
    image: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$",
        description="A container image, of Kubernetes or of YARN's Docker.",
        examples=["hopsml:latest"],
    )

    @field_validator("packages")
    @classmethod
    def _is_in_the_workspace(cls, named: str | None) -> str | None:
        """Raise ValueError if the requirements file is outside of the workspace."""
        check_in_the_workspace(named or "")
        return named

    @field_validator("archive")
    @classmethod
    def _leads_nowhere_else(cls, url: str | None) -> str | None:
        """Raise ValueError for a URL with . or .. as a component."""
        if {".", ".."} & set((url or "").split("/")):
            raise ValueError("a URL without . and .. between its slashes: write where the archive lies")
        return url

    @model_validator(mode="after")
    def _one(self) -> Self:
        """Raise ValueError unless exactly one of the fields is given."""
        if sum(given is not None for given in (self.packages, self.archive, self.image)) != 1:
            raise ValueError("an environment has exactly one of packages, archive and image: leave the others out")
        return self
