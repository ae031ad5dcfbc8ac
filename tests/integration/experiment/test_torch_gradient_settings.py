"""Tests of the settings of PyTorch's gradient exchange: equal weights on all ranks, equal to NumPy's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.clock import END_S
from tests.helpers.local_application import warm_application
from tests.helpers.training.jobs.gradients import LOOPS, STEPS, expected_weights
from tests.integration.experiment import torch_gradients
from tests.integration.experiment.test_torch import submit

pytestmark = pytest.mark.torch

project = warm_application(lambda: submit(lambda: None, num_workers=2).result(END_S))
WITHIN = {"fp16": 1e-3, "bf16": 1e-2, "double_fp16": 1e-3, "adasum_fp16": 2e-3}  # else float32's


def of_run(function: Any, workers: int = 2, **given: Any) -> dict[str, Any]:
    found: dict[str, Any] = submit(function, num_workers=workers, **given).result(END_S).metrics["json"]
    return found


def check_loop(name: str, found: dict[str, Any], size: int) -> None:
    settings = LOOPS[name]
    expected = expected_weights(settings, size, STEPS)
    error = np.abs(np.array(found["weights"]) - expected).max() / np.abs(expected).max()
    assert found["same"] and error < WITHIN.get(name, 1e-5), (name, error)
    every, late = settings.get("accumulate", 1), bool(settings.get("double_buffering"))
    assert found["updates"] == STEPS // every - late, name
    assert found["finished"] == (late or STEPS % every > 0), name
    assert found["none"] == found["finished"], name


def test_loop_with_each_setting_equals_numpy_on_all_ranks(project: Path) -> None:
    found = of_run(torch_gradients.loops, args={"names": list(LOOPS)})
    for name in LOOPS:
        check_loop(name, found[name], 2)


def test_loop_over_gloo_with_each_setting_equals_numpy_on_all_ranks(project: Path) -> None:
    found = of_run(torch_gradients.loops, args={"names": list(LOOPS)}, backend="gloo")
    for name in LOOPS:
        check_loop(name, found[name], 2)


@pytest.mark.variant  # of three workers
@pytest.mark.parametrize("backend", ["hopsml", "gloo"])
def test_settings_with_three_workers_equal_numpy(project: Path, backend: str) -> None:
    names = ["fp16", "adasum", "adasum_fp16", "double_topk", "double_powersgd", "double_accumulate"]
    found = of_run(torch_gradients.loops, 3, args={"names": names}, backend=backend)
    for name in names:
        check_loop(name, found[name], 3)


def test_sparse_and_absent_gradients_are_reduced_correctly_with_every_setting(project: Path) -> None:
    names = ["plain", "topk", "powersgd", "adasum", "double", "accumulate", "double_accumulate"]
    found = of_run(torch_gradients.kinds, args={"names": names})
    for name in names:
        first, second = found[name]["of_ranks"]
        assert first == second and found[name]["layouts"] in (["torch.sparse_coo"], []), name
        table, layer, half, unused = first
        third = 3 if "accumulate" in name else 1
        steps = [2 * 0.125 * one / third for one in (1.0, 1.0, 1.0, 2.0, 0.5, 0.5)]
        assert table == pytest.approx([-one for one in steps], abs=1e-6), name
        # The mean of a gradient of 40 ones, and of none; an adaptive sum with zeros is the gradient itself.
        of_layer = 3 * 40 * 0.125 * (1.0 if name == "adasum" else 0.5) / third
        if name not in ("topk", "powersgd"):  # which retain a part
            assert layer == pytest.approx(-of_layer, rel=1e-5), name
        assert half == [[pytest.approx(-3 * 0.125 / third, abs=2e-2)] * 4] and unused == 0.0, name


def test_network_trains_equally_on_all_ranks_and_by_both_backends_with_each_setting(project: Path) -> None:
    names = ["plain", "fp16", "bf16", "double", "adasum", "topk", "powersgd", "double_powersgd", "double_accumulate"]
    found = [of_run(torch_gradients.network, args={"names": names}, backend=one) for one in ("hopsml", "gloo")]
    for name in names:
        own, by_hooks = (one[name] for one in found)
        assert own["same"] and by_hooks["same"], name
        if name in ("fp16", "bf16", "topk"):  # memory that workers share rounds nothing; entries of one size
            assert by_hooks["losses"][-1] < 0.5 * by_hooks["losses"][0] and own["losses"][-1] < 0.5 * own["losses"][0]
        else:
            assert by_hooks["losses"] == pytest.approx(own["losses"], rel=0.05, abs=1e-3), name


def logs_of(run_dir: str) -> str:
    return "".join(one.read_text() for one in Path(run_dir.removeprefix("file://"), "logs").glob("*rank*.log"))


LOST = [
    {"compression": "powersgd", "double_buffering": True},
    {"compression": "topk", "topk": 0.1, "accumulate": 2},
]


@pytest.mark.parametrize("settings", [LOST[0], pytest.param(LOST[1], marks=pytest.mark.variant)])
def test_settings_remain_in_force_after_a_loss_and_when_a_worker_joins(
    project: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    given = {"min_workers": 1, "max_workers": 2, "args": {"folder": str(tmp_path)}, **settings}
    result = submit(torch_gradients.interrupted, **given).result(END_S)
    first, second = result.metrics["json"]
    assert first == second and result.metrics["last"] < 0.5 * result.metrics["first"]
    assert "hopsml: workers have joined: withheld gradients and remainders (" in logs_of(result.run_dir)


def test_restarted_workers_over_gloo_note_that_remainders_were_dropped(project: Path, tmp_path: Path) -> None:
    given = {"min_workers": 1, "max_workers": 2, "args": {"folder": str(tmp_path)}, "backend": "gloo", **LOST[0]}
    result = submit(torch_gradients.interrupted, **given).result(END_S)
    first, second = result.metrics["json"]
    assert first == second and result.metrics["last"] < 0.5 * result.metrics["first"]
    text = (
        "hopsml: the workers have restarted: withheld gradients and remainders (powersgd of rank 2, double buffering)"
    )
    assert text in logs_of(result.run_dir)


@pytest.mark.parametrize("backend", ["hopsml", "gloo"])
def test_settings_of_the_run_are_shown_and_unapplied_gradients_are_logged_once(project: Path, backend: str) -> None:
    given = {"backend": backend, "double_buffering": True, "accumulate": 2, "compression": "fp16"}
    result = submit(torch_gradients.unfinished, num_workers=2, **given).result(END_S)
    assert result.in_force["settings"] == "fp16, double buffering, 2 steps together"
    assert "(fp16, double buffering, 2 steps together)" in result.summary()
    line = (
        "hopsml: gradients of the last step were not applied (fp16, double buffering, 2 steps together): call "
        "hopsml.torch.finish_updates(optimizer) after the loop, in all workers"
    )
    assert logs_of(result.run_dir).splitlines().count(line) == 2
    refused = "compression and double_buffering and accumulate over gloo or nccl with the sparse gradients of weight"
    assert result.metrics["text"].startswith(refused) == (backend == "gloo")


def test_settings_with_one_worker_are_noted_to_have_no_effect(project: Path) -> None:
    result = submit(torch_gradients.unfinished, num_workers=1, compression="bf16").result(END_S)
    assert "hopsml: one worker reduces no gradients: bf16 has no effect" in logs_of(result.run_dir)
