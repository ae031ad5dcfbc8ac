"""Tests of the collectives that a strategy selects by default."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from hopsml.cluster.shared.spec import Communication, GradientSettings, RunSpec
from hopsml.cluster.worker.context import CollectiveSeat, WorkerContext
from hopsml.training.tensorflow.distribution import strategy
from hopsml.training.tensorflow.distribution.strategy import ChosenCollectives, choose_collectives
from tests.helpers.training.group import run_group

FP16 = GradientSettings(compression="fp16")
SEAT = CollectiveSeat(("127.0.0.1:1", "127.0.0.1:2"), b"0123456789abcdef")


def context(spec: RunSpec | None = None, **more: Any) -> WorkerContext:
    """A worker of two that train."""
    nowhere = Path("/nowhere")
    return WorkerContext(
        run_id="run", generation=0, rank=0, world_size=2, local_rank=0, role="chief", run_url="file:///run",
        work_dir=nowhere, events_dir=nowhere, checkpoint_dir=nowhere, export_dir=nowhere, spec=spec or RunSpec(),
        collective=more.pop("collective", SEAT), **more,
    )  # fmt: skip


def over(**communication: Any) -> RunSpec:
    return RunSpec(communication=Communication(**communication))


@pytest.mark.fast
@pytest.mark.parametrize("named", ["tensorflow", "ring", "nccl", "hopsml"])
def test_collective_named_by_the_strategy_call_is_chosen(named: Any) -> None:
    assert choose_collectives(context(over(merge_scope=4)), named, []) == ChosenCollectives(
        named, "strategy() names them"
    )


@pytest.mark.fast
@pytest.mark.parametrize(
    ("given", "of", "expected"),
    [
        (["merge_scope"], context(over(implementation="hopsml")), ("tensorflow", "strategy() was given merge_scope")),
        (["merge_scope", "ring_order"], context(), ("tensorflow", "strategy() was given merge_scope and ring_order")),
        ([], None, ("tensorflow", "")),
        ([], context(over(implementation="hopsml")), ("hopsml", "the run names them")),
        ([], context(over(implementation="tensorflow")), ("tensorflow", "the run names them")),
        ([], context(over(merge_scope=32)), ("tensorflow", "the run was given merge_scope")),
        ([], context(over(scoped_allocator=False)), ("tensorflow", "the run was given scoped_allocator")),
        ([], context(RunSpec(honour_environment=True)), ("tensorflow", "honour_environment=True keeps a TF_CONFIG")),
        ([], context(collective=None), ("tensorflow", "the chief does not train in hopsml's collective")),
        ([], dataclasses.replace(context(), world_size=1), ("tensorflow", "there is one worker")),
        ([], context(over(gradients=FP16)), ("hopsml", "the run was given compression")),
        ([], context(over(encryption=True)), ("hopsml", "it encrypts")),
        (["ring_order"], context(over(gradients=FP16)), ("tensorflow", "strategy() was given ring_order")),
        ([], dataclasses.replace(context(over(gradients=FP16)), world_size=1), ("tensorflow", "there is one worker")),
    ],
)  # fmt: skip
def test_settings_for_tensorflow_collectives_choose_tensorflow(
    given: list[str], of: WorkerContext | None, expected: tuple[str, str]
) -> None:
    assert choose_collectives(of, "auto", given) == ChosenCollectives(*expected)  # type: ignore[arg-type]


@pytest.mark.fast
def test_settings_for_hopsml_collective_choose_hopsml() -> None:
    settings = ["compression", "accumulate"]
    assert choose_collectives(None, "auto", [], settings) == ChosenCollectives(
        "hopsml", "strategy() was given compression and accumulate"
    )
    assert (
        choose_collectives(context(over(implementation="tensorflow")), "auto", [], settings).implementation == "hopsml"
    )


@pytest.mark.tensorflow
def test_default_collective_depends_on_gpus_and_available_library(tmp_path: Path) -> None:
    (found,) = run_group("choice:by_devices", tmp_path, workers=1)
    version = found["version"]
    assert found["CPUs"] == ["hopsml", "the workers have no GPUs"]
    assert found["GPUs"] == ["tensorflow", "the workers have GPUs"]
    assert found["no library"] == ["tensorflow", f"hopsml's library for TensorFlow {version} is missing"]
    (line,) = found["printed"]
    assert strategy.LOST in line and f"no collective operations of hopsml for TensorFlow {version}" in line
