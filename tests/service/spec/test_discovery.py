"""How tasks of a job find one another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopsml.errors import ArgumentError
from hopsml.service import spec
from hopsml.service.spec import discovery
from hopsml.service.spec.names import NAME_PATTERN
from tests.service.spec.examples import WHOLE

pytestmark = pytest.mark.fast
JOB = spec.loads(WHOLE)
PLACED = {"train": ["node2:41001", "node5:41007"], "evaluate": ["[::1]:1"]}
names = st.from_regex(NAME_PATTERN.replace("$", r"\Z"), fullmatch=True)


def test_every_worker_learns_where_all_are() -> None:
    found = discovery.environment(JOB, PLACED)
    assert found == {
        "HOPSML_TASK_TRAIN_ADDRESSES": "node2:41001,node5:41007",
        "HOPSML_TASK_EVALUATE_ADDRESSES": "[::1]:1",
    }
    assert {name: discovery.addresses(name, found) for name in JOB.tasks} == PLACED
    assert all(map(discovery.is_variable, found)) and not discovery.is_variable("HOPSML_TASK_X")


def test_in_the_environment_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPSML_TASK_DATA_SERVER_ADDRESSES", "a:1")
    assert discovery.addresses("data-server") == ["a:1"]
    with pytest.raises(ArgumentError, match="this job has no task 'data-serve'; did you mean data-server"):
        discovery.addresses("data-serve")


def test_outside_of_a_job() -> None:
    with pytest.raises(ArgumentError, match="this process is no task of a job"):
        discovery.addresses("train", {"HOPSML_TASK_": "x"})


@pytest.mark.parametrize(
    ("placed", "words"),
    [
        ({**PLACED, "trian": ["a:1"]}, "job digits has no task 'trian'; did you mean train?"),
        ({"train": PLACED["train"]}, "task 'evaluate' of job digits is placed on 0 addresses; it has 1 workers"),
        ({**PLACED, "train": ["a:1"]}, "is placed on 1 addresses; it has 2 to 8 workers: place them all first"),
        ({**PLACED, "evaluate": ["a"]}, "'a' is no address: it must be host:port"),
        ({**PLACED, "evaluate": ["a:0"]}, "'a:0' is no address"),
        ({**PLACED, "evaluate": ["a:65536"]}, "is no address"),
        ({**PLACED, "evaluate": ["a,b:1"]}, "is no address"),
    ],
)
def test_placements_that_are_none(placed: dict[str, list[str]], words: str) -> None:
    with pytest.raises(ArgumentError) as refused:
        discovery.environment(JOB, placed)
    assert words in str(refused.value)


@given(names, names)
def test_no_two_tasks_have_one_variable(one: str, other: str) -> None:
    assert (discovery.variable(one) == discovery.variable(other)) == (one == other)
