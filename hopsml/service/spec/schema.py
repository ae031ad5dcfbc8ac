"""The JSON schema of job files, for editors: what a file may say. Some rules between fields are checked only on loading."""

from __future__ import annotations

import json
from typing import Any

from hopsml.service.spec.job import JobSpec

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """The schema, draft 2020-12; every field has a description and an example."""
    found = _closed(JobSpec.model_json_schema(by_alias=True, mode="validation"))
    return {"$schema": DIALECT, "title": "A hopsml job", **found}


def text() -> str:
    """The schema as ``hopsml jobs schema`` prints it."""
    return json.dumps(schema(), indent=1, ensure_ascii=False)


def _closed(part: Any) -> Any:
    """Tables take no names but those of their pattern; and pydantic's titles, which repeat the names, are left out."""
    if isinstance(part, list):
        return [_closed(each) for each in part]
    if not isinstance(part, dict):
        return part
    kept = {key: _closed(value) for key, value in part.items() if key != "title" or not isinstance(value, str)}
    return {**kept, "additionalProperties": False} if "patternProperties" in kept else kept
