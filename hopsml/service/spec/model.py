"""What every part of a job has in common: it cannot be changed, has no unknown fields, and takes no text for a number."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class SpecPart(BaseModel):
    """Base of a job and its parts. Fields are known by their names in a job file, and by those in Python."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, populate_by_name=True, validate_default=False
    )
