"""Base class of the models of a job file: immutable, without unknown fields or conversion of types."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class SpecPart(BaseModel):
    """Base of a job and its parts; fields can be set by their aliases in a job file, or by their Python names."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, populate_by_name=True, validate_default=False
    )
