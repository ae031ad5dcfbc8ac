"""Tests of the public verbs' signatures for `help`, a notebook's Shift-Tab and type checkers."""

from __future__ import annotations

import functools
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hopsml import experiment
from hopsml.errors import ArgumentTypeError
from hopsml.experiment import options
from hopsml.maggy import experiment as maggy

VERBS = {
    name: getattr(experiment, name)
    for name in experiment.__all__
    if inspect.isfunction(getattr(experiment, name)) and name not in ("shutdown", "end")
} | {"lagom": maggy.lagom}
KEYWORDS = {
    "collective_all_reduce": "num_workers",
    "launch": "args_dict",
    "parameter_server": "num_ps",
    "mirrored": "logical_devices",
    "search": "num_trials",
    "lagom": "searchspace",
}


@pytest.mark.fast
@pytest.mark.parametrize("name", sorted(VERBS))
def test_verb_signature_names_and_documents_each_parameter(name: str) -> None:
    signature = inspect.signature(VERBS[name])
    kinds = {one.kind for one in signature.parameters.values()}
    assert kinds <= {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    assert all(one.annotation is not inspect.Parameter.empty for one in signature.parameters.values())
    assert signature.return_annotation is not inspect.Signature.empty
    words = set(re.findall(r"\w+", inspect.getdoc(VERBS[name]) or ""))
    assert set(signature.parameters) <= words, f"not described: {set(signature.parameters) - words}"


@pytest.mark.fast
@pytest.mark.parametrize(("name", "own"), KEYWORDS.items())
def test_parameters_of_one_verb_precede_those_of_all_verbs(name: str, own: str) -> None:
    names = list(inspect.signature(VERBS[name]).parameters)
    assert names[0] == "train_fn" and names.index(own) < names.index("start_timeout")


@pytest.mark.fast
def test_blocking_and_submitting_verb_have_the_same_parameters() -> None:
    blocking, handle = (inspect.signature(verb) for verb in (experiment.collective_all_reduce, experiment.submit))
    assert blocking.parameters == handle.parameters
    assert (blocking.return_annotation, handle.return_annotation) == ("Result", "Run")


@pytest.mark.fast
@pytest.mark.parametrize(
    "name", ["collective_all_reduce", "torch", "jax", "distributed", "parameter_server", "mirrored"]
)
def test_submit_of_a_verb_has_its_parameters_and_returns_a_run(name: str) -> None:
    verb = getattr(experiment, name)
    blocking, handle = inspect.signature(verb), inspect.signature(verb.submit)
    assert blocking.parameters == handle.parameters
    assert (blocking.return_annotation, handle.return_annotation) == ("Result", "Run")
    assert verb.submit.__qualname__ == f"{name}.submit"
    described = inspect.getdoc(verb.submit) or ""
    assert described.startswith(f"Start ``{name}`` and return at once with a handle.")
    assert set(handle.parameters) <= set(re.findall(r"\w+", described))
    with pytest.raises(ArgumentTypeError, match=rf"{name}\(\) has no argument 'num_worker'"):
        verb.submit(classes_of_digits, num_worker=2)


class Trainer:
    def __call__(self) -> None: ...


@pytest.mark.fast
@pytest.mark.parametrize("kind", [options.RunOptions, options.TorchOptions, options.LaunchOptions, options.GridOptions])
def test_run_is_named_after_its_function_unless_given_a_name(kind: type[Any]) -> None:
    assert kind(classes_of_digits).name == "classes_of_digits"
    assert kind(functools.partial(classes_of_digits, 1)).name == "classes_of_digits"
    assert kind(Trainer()).name == "Trainer" and kind(lambda: None).name == "lambda"
    assert kind(classes_of_digits, name="digits").name == "digits"
    assert options.EvaluationOptions(classes_of_digits, run="app_1").name == "eval"


def classes_of_digits(count: int) -> None: ...


SCRIPT = """
from hopsml import experiment

def train(lr: float) -> float:
    return lr

result = experiment.collective_all_reduce(train, num_workers=2, args={"lr": 0.1})
print(result.value)
experiment.submit(train, name="digits").cancel()
run = experiment.torch.submit(train, num_workers=2, backend="gloo")
run.on_message(lambda rank, value: None)
print(run.result().value, experiment.parameter_server.submit(train, num_ps=2).status())
experiment.mirrored.submit(train, logical_devices=2).send("stop")
experiment.launch(train, {"lr": [0.1]})
experiment.search(train, {"lr": ("DOUBLE", [0.0, 1.0])}, num_trials=4).best
"""
MISTAKES = """
experiment.collective_all_reduce(train, num_worker=2)
experiment.submit(train, merge_scope=1.5)
experiment.launch(train, min_workers=2)
experiment.torch.submit(train, merge_scope=4)
experiment.jax.submit(train, num_worker=2)
experiment.mirrored.submit(train, min_workers=2)
experiment.distributed.submit(train).value
experiment.search(train)
experiment.grid_search(train, {"lr": [1]}, direktion="MAX")
"""


@pytest.mark.local  # mypy reads for seconds
def test_mypy_accepts_a_correct_script_and_finds_misspelt_arguments(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + MISTAKES)
    done: Any = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", script],
        cwd=Path(__file__).parents[3],  # with the project's settings and what a run of mypy over it has kept
        text=True,
        capture_output=True,
        check=False,
    )
    first = SCRIPT.count("\n") + 2
    found = {int(number) for number in re.findall(r"script\.py:(\d+): error", done.stdout)}
    assert found == set(range(first, first + len(MISTAKES.split("\n")) - 2)), done.stdout + done.stderr
