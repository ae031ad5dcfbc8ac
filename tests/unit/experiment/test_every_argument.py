"""Tests that each argument of a public verb has an effect, is refused, or is noted to have none.

One table covers all verbs. An argument that is missing in it fails the test, so each new one must be described here.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from hopsml import experiment
from hopsml.errors import HopsmlError
from hopsml.experiment import collective, options, repeat
from hopsml.experiment.searches import call as calls
from hopsml.maggy import experiment as maggy
from tests.helpers.clock import END_S

pytestmark = pytest.mark.fast
launch, search = (
    importlib.import_module(f"hopsml.experiment.{name}") for name in ("launch", "search")
)  # not the verbs
ROOT = Path(__file__).resolve().parents[3]


@dataclasses.dataclass(frozen=True)
class Changes:
    """The value changes the result; ``beside`` has other arguments that it needs."""

    value: Any
    beside: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Noted:
    """A message reports that the value has no effect."""

    value: Any


@dataclasses.dataclass(frozen=True)
class Refused:
    """The call ends with a message that contains ``words``."""

    value: Any
    words: str


@dataclasses.dataclass(frozen=True)
class Shown:
    """The named test (``file.py::name`` below tests/) covers a value whose effect shows only at run time."""

    by: str


Entry = Changes | Noted | Refused | Shown
CHANGING = {"min_workers": 1, "max_workers": 2}


def train(x: int = 0) -> int:
    return x


def fields_of(kind: Any) -> set[str]:
    """Names of what a verb is called with, but for the training function."""
    return {one.name for one in dataclasses.fields(kind)} - {"train_fn"}


MERGED = Shown("integration/experiment/test_in_force.py::test_group_reports_how_its_gradients_were_merged")
COLLECTIVE: dict[str, Entry | tuple[Entry, ...]] = {
    "name": Changes("digits"),
    "local_logdir": Changes(True),
    "versioned_resources": Shown(
        "integration/experiment/test_launch.py::test_versioned_resources_are_copied_into_the_run_directory"
    ),
    "description": Changes("why"),
    "evaluator": (
        Changes(True, {"num_workers": 3}),
        Shown("integration/experiment/test_evaluator.py::test_last_worker_is_the_evaluator_and_the_others_train"),
    ),
    "evaluator_gpu": (Changes(True, {"evaluator": True, "num_workers": 3}), Refused(True, "needs evaluator=True")),
    "metric_key": Changes("accuracy"),
    "args": Changes({"x": 1}),
    "data": (
        Refused([1], "must be a dict of DataFrames"),
        Shown("integration/spark/test_data.py::test_every_dataframe_row_reaches_one_worker_per_epoch_with_its_type"),
    ),
    "num_workers": Changes(3),
    "min_workers": Changes(1),
    "max_workers": Changes(3),
    "first_workers": (Changes(1, CHANGING), Noted(1)),
    "ring_order": (Changes([1, 0]), Refused([0, 0], "each named once"), Refused("ab", "a list of hosts or of ranks")),
    "merge_scope": (Changes(4), MERGED),
    "scoped_allocator": Changes(False),
    "implementation": Changes("hopsml"),
    "encryption": (Changes(True), Shown("unit/experiment/test_spec.py::test_collectives_without_encryption_are_refused")),
    "tuned": (Changes(True), Shown("integration/experiment/test_tuning.py::test_run_uses_its_tuned_settings")),
    "compression": (Changes("fp16"), MERGED),
    "topk": (Changes(0.1, {"compression": "topk"}), Refused(0.1, "setting of compression='topk'")),
    "powersgd_rank": (Changes(3, {"compression": "powersgd"}), Refused(3, "setting of compression='powersgd'")),
    "double_buffering": Changes(True),
    "accumulate": Changes(4),
    "reduction": Changes("adasum"),
    "resume": Changes("app_1"),
    "start_timeout": Changes(7.0),
    "keep_warm": Changes(7.0),
    "preload": Changes(["json"]),
    "honour_environment": Changes(True),
    "profile": (
        Changes("yarn"),
        Shown("unit/experiment/test_every_argument.py::test_profile_given_after_the_application_started_is_noted"),
    ),
    "progress": Changes(False),
    "environment": Changes({"A": "b"}),
    "reset_limit": (Changes(3, CHANGING), Noted(3)),
    "min_workers_timeout": (Changes(3.0, CHANGING), Noted(3.0)),
    "heartbeat_timeout": (Changes(3.0, CHANGING), Noted(3.0)),
    "progress_timeout": (Changes(3.0, CHANGING), Changes(3.0)),
    "host_failure_limit": (Changes(1, CHANGING), Noted(1)),
    "host_cooldown": (Changes(1.0, CHANGING), Noted(1.0)),
    "checkpoint_every_s": (Changes(1.0, CHANGING), Noted(1.0)),
    "register_as": (
        Changes("digits"),
        Shown("unit/experiment/test_every_argument.py::test_register_as_without_a_tracking_server_is_noted"),
    ),
    "preflight": Changes("enforce"),
    "share": Changes("group"),
}  # fmt: skip
TORCH: dict[str, Entry | tuple[Entry, ...]] = {
    **{name: entry for name, entry in COLLECTIVE.items() if name in fields_of(options.TorchOptions)},
    "backend": Changes("gloo"),
}
_STARTS = {name: COLLECTIVE[name] for name in sorted(fields_of(options.TrainingOptions))}
PARAMETER_SERVER: dict[str, Entry | tuple[Entry, ...]] = {
    **{name: COLLECTIVE[name] for name in ("name", "local_logdir", "description", "metric_key", "args")},
    "evaluator": Changes(True),
    "evaluator_gpu": (Changes(True, {"evaluator": True}), Refused(True, "needs evaluator=True")),
    "num_workers": Changes(3),
    "num_ps": (Changes(2), Refused(0, "at least 1")),
    **_STARTS,
}
MIRRORED: dict[str, Entry | tuple[Entry, ...]] = {
    **{name: COLLECTIVE[name] for name in ("name", "local_logdir", "description", "metric_key", "args")},
    "evaluator": Refused(True, "uses one executor"),
    "logical_devices": (Changes(2), Refused(0, "at least 1")),
    **_STARTS,
}
LAUNCH: dict[str, Entry | tuple[Entry, ...]] = {
    **{name: entry for name, entry in COLLECTIVE.items() if name in fields_of(options.LaunchOptions)},
    "args_dict": Changes({"x": [1, 2]}),
    **dict.fromkeys(
        sorted(fields_of(options.RunOptions) - fields_of(options.LaunchOptions) - {"args"}),
        Refused(1, "has no argument .*each combination runs on one worker"),
    ),
    "args": Refused(1, "args_dict contains the values"),
}  # fmt: skip
SEARCH: dict[str, Entry | tuple[Entry, ...]] = {
    "searcher": Changes("random"),
    "stopper": Changes("median"),
    "num_trials": Changes(7),
    "direction": Changes("min"),
    "metric": Changes("accuracy"),
    "framework": (
        Changes("torch", {"workers_per_trial": 2}),
        Refused("pytorch", "must be one of 'tensorflow', 'torch', 'jax', 'distributed'"),
    ),
    "workers_per_trial": Shown("integration/experiment/test_search_groups.py"),
    "deadline": Changes("20 min"),
    "budget": Changes(7.0),
    "retries": Changes(7),
    "isolation": Changes("process"),
    "seed": Changes(7),
    "name": Changes("digits"),
    "description": Changes("why"),
    "max_executors": Changes(1),
    "warm_start": Changes("app_1"),
    "data": (
        Refused([1], "must be a dict of DataFrames"),
        Shown("integration/spark/test_data.py::test_trials_of_a_search_read_rows_that_are_sent_once"),
    ),
    "args": Changes({"more": 1}),
    "searcher_args": Changes({"sobol": True}, {"searcher": "random"}),
    "stopper_args": (Changes({"min_trials": 2}, {"stopper": "median"}), Refused({"min_trials": 2}, "stopper")),
    "patience": Changes(7.0),
    "promoted_workers": Changes({3: 2}, {"workers_per_trial": 2, "stopper": "asha", "stopper_args": {"max_step": 9}}),
    "start_timeout": Changes(7.0),
    "keep_warm": Changes(7.0),
    "preload": Changes(["json"]),
    "honour_environment": Changes(True),
    "profile": Changes("yarn"),
    "progress": Changes(False),
    "environment": Changes({"A": "b"}),
    "local_logdir": Changes(True),
    "echo": Changes(True),
    "share": Changes("group"),
}
OLD_SEARCH = {
    "description": Shown("integration/experiment/test_predecessor.py"),
    **{name: Shown("integration/experiment/test_predecessor.py") for name in (
        "grid_dict", "boundary_dict", "direction", "samples", "name", "local_logdir", "optimization_key", "generations",
        "population", "mutation", "crossover", "versioned_resources", "cleanup_generations",
    )},
}  # fmt: skip


def build_collective(named: dict[str, Any]) -> Any:
    return collective.build(collective._verb.options(train, **named))


def build_torch(named: dict[str, Any]) -> Any:
    return collective.build(options.TorchOptions(train, **named), "torch", "torch")


def build_parameter_server(named: dict[str, Any]) -> Any:
    return collective.build_with_servers(collective._verb_with_servers.options(train, **named))


def build_mirrored(named: dict[str, Any]) -> Any:
    return collective.build_mirrored(collective._verb_mirrored.options(train, **named))


def build_launch(named: dict[str, Any]) -> Any:
    plans = launch.build(launch._verb.options(train, **named))
    return plans[0] if len(plans) == 1 else plans


def build_search(named: dict[str, Any]) -> Any:
    def function(x: float, more: int = 0) -> float:
        return x

    space = experiment.Searchspace(x=("DOUBLE", [0.0, 1.0]))
    given = search._verb.options(function, space, **{"num_trials": 4, **named})
    return calls.checked_call("search", given, 1 if given.seed is None else given.seed)


VERBS: dict[str, tuple[Callable[[dict[str, Any]], Any], dict[str, Any], set[str]]] = {
    "collective_all_reduce": (build_collective, COLLECTIVE, fields_of(options.RunOptions)),
    "torch": (build_torch, TORCH, fields_of(options.TorchOptions)),
    "parameter_server": (build_parameter_server, PARAMETER_SERVER, fields_of(options.ParameterServerOptions)),
    "mirrored": (build_mirrored, MIRRORED, fields_of(options.MirroredOptions)),
    "launch": (build_launch, LAUNCH, fields_of(options.LaunchOptions) | fields_of(options.RunOptions)),
    "search": (build_search, SEARCH, fields_of(options.SearchOptions) - {"space"}),
}
CASES = [
    pytest.param(verb, name, entry, id=f"{verb}-{name}-{type(entry).__name__}")
    for verb, (_, table, _) in VERBS.items()
    for name, entries in table.items()
    for entry in (entries if isinstance(entries, tuple) else (entries,))
]


def comparable(value: Any) -> Any:
    """Return the components of a value, to compare two that were built alike."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: comparable(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): comparable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [comparable(item) for item in value]
    if callable(value):
        return getattr(value, "__qualname__", "")
    return re.sub(r"0x[0-9a-f]+", "", repr(value)) if type(value).__module__ == "builtins" else (
        type(value).__qualname__,
        re.sub(r"0x[0-9a-f]+", "", repr(vars(value) if hasattr(value, "__dict__") else value)),
    )  # fmt: skip


@pytest.mark.parametrize(("verb", "name", "entry"), CASES)
def test_each_argument_has_an_effect_is_refused_or_noted(verb: str, name: str, entry: Entry) -> None:
    build = VERBS[verb][0]
    if isinstance(entry, Shown):
        check_shown(entry)
    elif isinstance(entry, Refused):
        with pytest.raises(HopsmlError, match=entry.words):
            build({name: entry.value})
    elif isinstance(entry, Noted):
        notes = build({name: entry.value}).notes
        assert any(f"{name}=" in note and "has no effect" in note for note in notes), notes
    else:
        beside = dict(entry.beside)
        assert comparable(build({**beside, name: entry.value})) != comparable(build(beside)), "it makes no difference"


def check_shown(entry: Shown) -> None:
    file, _, test = entry.by.partition("::")
    assert (f"def {test}(" if test else "def test_") in (ROOT / "tests" / file).read_text()


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_table_has_every_argument_of_each_verb(verb: str) -> None:
    _, table, arguments = VERBS[verb]
    assert set(table) == arguments, f"say in the table what {sorted(arguments ^ set(table))} of {verb}() does"


# Arguments with their own signature or list of names: each one with the test that shows its effect.
RUNS_AGAIN = {name: "integration/tracking/test_rerun.py" for name in ("run", "progress", "ignore", "secrets")}
RUNS_AGAIN["profile"] = (
    "integration/experiment/test_profile_variables.py::test_repeated_run_and_continued_search_use_the_given_profile"
)
OTHERS: dict[str, tuple[set[str], dict[str, str]]] = {
    "rerun": (set(inspect.signature(repeat.rerun).parameters), {
        **RUNS_AGAIN, "preflight": "unit/experiment/test_every_argument.py::test_preflight_is_repeated_unless_given_again",
    }),
    "resume": (set(inspect.signature(experiment.resume).parameters), {
        **{name: file for name, file in RUNS_AGAIN.items() if name != "ignore"},
        "preflight": "unit/experiment/test_every_argument.py::test_preflight_is_repeated_unless_given_again",
    }),
    "continue_search": (set(inspect.signature(experiment.continue_search).parameters), dict.fromkeys(
        ("run", "num_trials", "deadline", "max_executors", "profile", "progress"),
        "integration/experiment/test_search_killed.py",
    )),
    "recorded": (set(inspect.signature(experiment.recorded).parameters), dict.fromkeys(
        ("name", "args", "description", "share"), "integration/experiment/test_recorded.py"
    )),
    "begin": (set(inspect.signature(experiment.begin).parameters), dict.fromkeys(
        ("name", "local_logdir", "versioned_resources", "description"), "integration/experiment/test_recorded.py"
    )),
    **{
        verb: (fields_of(kind) - set(SEARCH), {name: OLD_SEARCH[name].by for name in fields_of(kind) - set(SEARCH)})
        for verb, kind in (
            ("grid_search", options.GridOptions),
            ("random_search", options.RandomOptions),
            ("differential_evolution", options.EvolutionOptions),
        )
    },
    "lagom": (fields_of(maggy.LagomOptions) - set(SEARCH), dict.fromkeys(
        ("config", "experiment_type", "searchspace", "optimizer", "ablation_study", "ablator", "optimization_key",
         "hb_interval", "es_policy", "es_interval", "es_min"), "integration/experiment/test_maggy.py"
    )),
}  # fmt: skip


@pytest.mark.parametrize("verb", sorted(OTHERS))
def test_table_has_every_argument_of_the_other_verbs(verb: str) -> None:
    arguments, shown = OTHERS[verb]
    assert arguments == set(shown), f"say in the table what {sorted(arguments ^ set(shown))} of {verb}() does"
    for by in shown.values():
        check_shown(Shown(by))


def test_profile_given_after_the_application_started_is_noted(store: Path) -> None:
    first = experiment.submit(train, num_workers=1, progress=False)
    first.result(END_S)
    Path(os.environ["HOPSML_CONF_DIR"], "yarn-cluster.yaml").write_text("master: yarn\n")
    again = experiment.submit(train, num_workers=1, progress=False, profile="yarn-cluster")
    again.result(END_S)
    same = experiment.submit(train, num_workers=1, progress=False, profile="local")
    same.result(END_S)
    assert first.state.notes == [] == same.state.notes
    (note,) = again.state.notes
    assert re.match(r"profile='yarn-cluster' has no effect, since .* was started with profile 'local'", note)


def test_register_as_without_a_tracking_server_is_noted(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = experiment.submit(train, num_workers=1, progress=False, register_as="digits")
    run.result(END_S)
    assert any("register_as='digits' has no effect" in note for note in run.state.notes)


def test_preflight_is_repeated_unless_given_again(store: Path) -> None:
    run = experiment.submit(train, num_workers=1, progress=False, preflight="off")
    run.result(END_S)
    assert repeat.build(run.run_dir, profile=None, progress=False).spec.preflight == "off"
    assert repeat.build(run.run_dir, profile=None, progress=False, preflight="enforce").spec.preflight == "enforce"
