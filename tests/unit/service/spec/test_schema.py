"""Tests that the JSON schema of job files agrees with the validation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args

import jsonschema
import pytest
import yaml

from hopsml.search import registry
from hopsml.service.spec import job, limits, loading
from tests.unit.service.spec.examples import SMALL, WHOLE
from tools import job_reference

pytestmark = pytest.mark.fast
SCHEMA = loading.schema()


def parts() -> Iterator[tuple[str, dict[str, Any]]]:
    yield "JobSpec", SCHEMA
    yield from SCHEMA["$defs"].items()


def test_published_schema_is_current_and_valid() -> None:
    assert job_reference.SCHEMA.read_text() == loading.schema_text() + "\n", "python -m tools.job_reference"
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_every_field_has_a_description_and_an_example() -> None:
    for part, one in parts():
        if "properties" in one:
            assert one["additionalProperties"] is False and one["description"], part
            for name, field in one["properties"].items():
                assert field["description"].endswith(".") and field["examples"], (part, name)


def test_examples_of_fields_are_valid() -> None:
    for _, one in parts():
        for name, field in one.get("properties", {}).items():
            for example in field["examples"]:
                if name not in ("tasks", "search"):  # shortened
                    jsonschema.validate(example, {**field, "$defs": SCHEMA["$defs"]})


@pytest.mark.parametrize("text", [SMALL, WHOLE.replace("1e-4", "0.0001").replace("1e-1", "0.1")])
def test_schema_accepts_valid_job_files(text: str) -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(yaml.safe_load(text))


@pytest.mark.parametrize(
    "change",
    [
        {"name": "A"},
        {"priority": 0},
        {"priority": "3"},
        {"unknown": 1},
        {"tasks": {}},
        {"tasks": {"a": {}}},
        {"tasks": {"a": {"script": "a.py", "command": ["b"]}}},
        {"tasks": {"a": {"script": "a.py", "min": 1}}},
        {"tasks": {"a": {"script": "a.py", "count": 1, "min": 1, "max": 2}}},
        {"tasks": {"a": {"script": "a.py", "resources": {"memory": 16}}}},
        {"tasks": {"A": {"script": "a.py"}}},
        {"time_limit": 7200},
        {"schedule": "@daily"},
    ],
)
def test_schema_refuses_invalid_job_files(change: dict[str, Any]) -> None:
    wrong = json.loads(json.dumps({**yaml.safe_load(SMALL), **change}))
    assert not jsonschema.Draft202012Validator(SCHEMA).is_valid(wrong)


def test_searcher_and_stopper_names_are_those_of_the_registry() -> None:
    assert set(get_args(job.SearcherName)) == set(registry.SEARCHERS)
    assert set(get_args(job.StopperName)) == set(registry.STOPPERS)


def test_schema_has_the_limits_of_the_validation() -> None:
    task = SCHEMA["$defs"]["Task"]["properties"]
    assert task["count"]["anyOf"][0]["maximum"] == limits.WORKERS
    assert SCHEMA["properties"]["tasks"]["maxProperties"] == limits.TASKS
