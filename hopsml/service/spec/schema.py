"""JSON schema of job files, for editors; some rules between fields are only checked when a file is loaded."""

from __future__ import annotations

import json
from typing import Any

from hopsml.service.spec.job import JobSpec

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12), in which every field has a description and an example."""
    found = _closed(JobSpec.model_json_schema(by_alias=True, mode="validation"))
    return {"$schema": DIALECT, "title": "A hopsml job", **found}


def text() -> str:
    """Return the JSON schema as text, as ``hopsml jobs schema`` prints it."""
    return json.dumps(schema(), indent=1, ensure_ascii=False)


def _closed(part: Any) -> Any:
    """Remove pydantic's titles, which repeat the names, and forbid keys of tables that do not match their pattern."""
    if isinstance(part, list):
        return [_closed(each) for each in part]
    if not isinstance(part, dict):
        return part
    kept = {key: _closed(value) for key, value in part.items() if key != "title" or not isinstance(value, str)}
    return {**kept, "additionalProperties": False} if "patternProperties" in kept else kept
