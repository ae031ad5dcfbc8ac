"""PyTorch trainings of the scenarios, for any backend: ``prepare`` over hopsml's collective, or DDP over gloo."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hopsml.experiment import collective, plan
from hopsml.experiment.options import TorchOptions
from hopsml.experiment.run import Run
from tests.chaos import runner
from tests.chaos.runner import OVER, Outcome
from tests.chaos.scenarios import FULL, Scenario
from tests.helpers.cluster import elastic_torch_workload

WAY = "gloo" if OVER == "tensorflow" else "hopsml"
IN_TESTS = ("kill -9 of a worker", "kill -9 of an executor")  # on clusters; `make chaos` plays the others


def start(function: Callable[..., Any], **given: Any) -> Run:
    """Start ``experiment.torch`` over the chosen collective without waiting for the run's end."""
    return plan.start(collective.build(TorchOptions(function, backend=WAY, **given), "torch", "torch"))


def on_clusters(scenarios: Iterable[Scenario]) -> list[Scenario]:
    """Return the scenarios for Spark and YARN; two of them in a test run."""
    return [one for one in scenarios if one.needs in ("", "spark") and (FULL or one.name in IN_TESTS)]


def play(scenario: Scenario, backend: str, folder: Path, cluster: Any = None) -> Outcome:
    """Run the scenario with the PyTorch training; arguments as of ``runner.play``."""
    here = dataclasses.replace(scenario, args={**scenario.args, "over": WAY})
    return runner.play(here, backend, folder, cluster, program=elastic_torch_workload.train, start=start)
