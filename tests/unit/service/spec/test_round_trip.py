"""Tests that a written job file is read as the same job."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsml.core import redact
from hopsml.errors import JobFileError
from hopsml.service import spec
from hopsml.service.spec import fields
from hopsml.service.spec.fields import LABEL_PATTERN, NAME_PATTERN, VARIABLE_PATTERN
from tests.unit.service.spec.examples import SMALL, WHOLE

pytestmark = pytest.mark.fast

names = st.from_regex(NAME_PATTERN.replace("$", r"\Z"), fullmatch=True)
labels = st.from_regex(LABEL_PATTERN.replace("$", r"\Z"), fullmatch=True)
text = st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=20)
variables = st.from_regex(VARIABLE_PATTERN.replace("$", r"\Z"), fullmatch=True).filter(
    lambda name: not name.startswith("HOPSML") and not redact.is_secret(name)
)
values: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**15), 10**15)
    | st.floats(allow_nan=False, allow_infinity=False)
    | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
sizes = st.one_of(
    st.fixed_dictionaries({"count": st.integers(1, 50)}),
    st.integers(1, 20).flatmap(lambda low: st.just({"min": low, "max": low + 3})),
    st.just({}),
)
bodies = st.one_of(
    st.builds(lambda line: {"command": line}, st.lists(text, min_size=1, max_size=4)),
    st.builds(lambda args: {"script": "train.py", "arguments": args}, st.dictionaries(text, values, max_size=3)),
    st.builds(lambda args: {"function": "a/b.py:main", "arguments": args}, st.dictionaries(text, values, max_size=3)),
)
memory = st.integers(1, 1 << 20).map(fields.memory_text)
resources = st.fixed_dictionaries(
    {}, optional={"cores": st.integers(1, 64), "memory": memory, "gpus": st.integers(0, 8), "node_label": labels}
)
tasks = st.builds(
    lambda *parts: {key: value for part in parts for key, value in part.items()},
    sizes,
    bodies,
    st.fixed_dictionaries(
        {},
        optional={
            "resources": resources,
            "env": st.dictionaries(variables, text, max_size=3),
            "ports": st.lists(names, unique=True, max_size=3),
            "restart": st.sampled_from(["end_all", "relaunch"]),
            "environment": st.builds(
                lambda name: {"image": name}, st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*", fullmatch=True)
            ),
        },
    ),
)
jobs = st.fixed_dictionaries(
    {"name": names, "tasks": st.dictionaries(names, tasks, min_size=1, max_size=3)},
    optional={
        "description": text,
        "labels": st.dictionaries(labels, labels, max_size=3),
        "queue": names,
        "priority": st.integers(1, 100),
        "time_limit": st.integers(1, 86_400).map(fields.duration_text),
        # With a prefix, since the variable of a secret must not also be under env.
        "secrets": st.lists(names.filter(lambda name: len(name) < 50).map("secret-{}".format), unique=True, max_size=3),
        "schedule": st.sampled_from(["0 3 * * *", "*/5 * * * 1-5"]),
    },
)


@given(jobs)
@settings(max_examples=60, deadline=None)
def test_dumped_job_is_loaded_as_the_same_job(content: dict[str, Any]) -> None:
    job = spec.loads(json.dumps(content, ensure_ascii=False))  # JSON is YAML
    assert spec.loads(spec.dump(job)) == job


@pytest.mark.parametrize("text", [SMALL, WHOLE])
def test_examples_survive_the_round_trip(text: str) -> None:
    job = spec.loads(text)
    assert spec.loads(spec.dump(job)) == job
    assert spec.dump(spec.loads(spec.dump(job))) == spec.dump(job)


@given(st.integers(1, 10**6))
def test_memory_and_duration_units_survive_the_round_trip(number: int) -> None:
    assert fields.memory_mib(fields.memory_text(number)) == number
    assert fields.duration_s(fields.duration_text(number)) == number
    assert (fields.memory_text(16384), fields.memory_text(1 << 20), fields.memory_text(513)) == ("16g", "1t", "513m")
    assert (fields.duration_text(86_400), fields.duration_text(90)) == ("1d", "90s")


@given(st.binary(max_size=200) | st.text(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_input_is_a_job_or_a_list_of_problems(content: bytes | str) -> None:
    try:
        spec.loads(content)
    except JobFileError as error:
        problems = error.problems
    else:
        problems = ()
    assert all(line.startswith("job.yaml:") for line in problems)
