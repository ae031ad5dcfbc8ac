"""The JSON schema of job files, for editors: what a file may say. Rules between fields are checked when it is loaded."""

from __future__ import annotations

import json
from typing import Any

from hopsml.service.spec.job import Job

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """The schema, draft 2020-12; every field has a description and an example."""
    found = Job.model_json_schema(by_alias=True, mode="validation")
    return {"$schema": DIALECT, "title": "A hopsml job", **{key: found[key] for key in found if key != "title"}}


def text() -> str:
    """The schema as ``hopsml job schema`` prints it."""
    return json.dumps(schema(), indent=1, ensure_ascii=False)
