"""Tests that each option of a verb reaches specification, record, rerun and worker."""

from __future__ import annotations

import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hopsml import experiment
from hopsml.cluster.shared import checks
from hopsml.cluster.shared.spec import (
    Communication,
    ElasticGroup,
    FixedGroup,
    GradientSettings,
    Roles,
    RunSpec,
    Section,
    section_from_options,
    spec_record,
)
from hopsml.cluster.worker.context import current
from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.experiment import collective, plan, repeat
from hopsml.experiment.options import MirroredOptions, ParameterServerOptions, RunOptions, TorchOptions
from hopsml.experiment.verbs import Verb
from hopsml.storage.run_dir import RunDir
from tests.helpers.clock import END_S

pytestmark = pytest.mark.fast
GIVEN: dict[str, Any] = {
    "name": "asked", "description": "for so and so", "local_logdir": True, "metric_key": "f1", "min_workers": 1,
    "max_workers": 2, "implementation": "tensorflow", "merge_scope": "all", "scoped_allocator": False, "tuned": True,
    "reset_limit": 7, "min_workers_timeout": 61.0, "heartbeat_timeout": 6.0, "progress_timeout": 99.0,
    "host_failure_limit": 5, "host_cooldown": 3.0, "checkpoint_every_s": 17.0, "register_as": "digits",
    "preflight": "off", "start_timeout": 77.0,
    "keep_warm": 3.0, "preload": ["json"], "honour_environment": True, "ring_order": ["b", "a"],
}  # fmt: skip
# Those of hopsml's own collective, which has none of TensorFlow's, and of which not all go together.
OWN: list[dict[str, Any]] = [
    {"compression": "topk", "topk": 0.02, "double_buffering": True, "accumulate": 4},
    {"compression": "powersgd", "powersgd_rank": 3},
    {"reduction": "adasum"},
    {"encryption": True},
]
# Of torch's process group.
OF_TORCH: list[dict[str, Any]] = [{"backend": "gloo"}, *OWN]
# Arguments without a field of the same name: of the function, of this process, or several in one field.
ELSEWHERE = {
    "train_fn", "args", "profile", "progress", "versioned_resources", "resume", "evaluator", "evaluator_gpu",
    "num_workers", "min_workers", "max_workers", "first_workers", "environment", "share", "data",
}  # fmt: skip


def settings(section: Any) -> dict[str, Any]:
    """Every field of a specification, those of its sections among them, without units."""
    found: dict[str, Any] = {}
    for name in section.__struct_fields__:
        value = getattr(section, name)
        found |= (
            settings(value)
            if isinstance(value, Section)
            else {name if name in GIVEN else name.removesuffix("_s"): value}
        )
    return found


def expected_settings() -> dict[str, Any]:
    return {
        name: tuple(value) if name in ("preload", "ring_order") else value
        for name, value in GIVEN.items()
        if name not in ELSEWHERE
    }


def report_specification() -> dict[str, Any]:
    context = current()
    assert context is not None
    return {"f1": 0.5, "spec": json.dumps(msgspec.to_builtins(context.spec))}


def test_every_run_argument_is_a_field_of_the_specification() -> None:
    arguments = {field.name for field in dataclasses.fields(RunOptions)} - {"_"}
    assert arguments - ELSEWHERE == set(expected_settings()).union(*OWN), (
        "an argument is new: it needs a line above, or is no part of the run"
    )
    spec = collective.build(RunOptions(report_specification, **GIVEN)).spec
    found = settings(spec)
    assert {name: found[name] for name in expected_settings()} == expected_settings()
    assert {name.name for name in dataclasses.fields(TorchOptions)} - {"_"} - ELSEWHERE <= {*expected_settings()}.union(
        *OF_TORCH
    )
    for given in OF_TORCH:
        found = settings(collective.build(TorchOptions(report_specification, **given), "torch", "torch").spec)
        assert {name: found[name] for name in given} == given and found["framework"] == "torch"
    for given in OWN:
        found = settings(collective.build(RunOptions(report_specification, implementation="hopsml", **given)).spec)
        assert {name: found[name] for name in given} == given


def test_deprecated_checkpoint_every_is_accepted_with_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checks, "_noted", set())
    verb: Any = Verb(RunOptions, "submit")
    for _ in range(2):
        assert (
            verb.options(report_specification, min_workers=1, max_workers=2, checkpoint_every=17.0).checkpoint_every_s
            == 17
        )
    assert capsys.readouterr().err == "hopsml: the argument checkpoint_every is now named checkpoint_every_s\n"
    with pytest.raises(ArgumentTypeError, match="checkpoint_every and checkpoint_every_s are the same argument"):
        verb.options(report_specification, checkpoint_every=17.0, checkpoint_every_s=17.0)


@pytest.mark.parametrize("name", ["checkpoint_every", "checkpoint_every_s", "min_workers"])
def test_launch_refuses_group_arguments_under_either_name(name: str) -> None:
    launch: Any = experiment.launch
    with pytest.raises(ArgumentTypeError, match=f"'{name}': each combination runs on one worker"):
        launch(report_specification, **{name: 2})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (RunOptions(report_specification, implementation="tensorflow"), "implementation='tensorflow'"),
        (RunOptions(report_specification, merge_scope=4), "merge_scope"),
        (RunOptions(report_specification, scoped_allocator=False), "scoped_allocator"),
        (TorchOptions(report_specification, backend="gloo"), "backend='gloo'"),
        (TorchOptions(report_specification, backend="nccl"), "backend='nccl'"),
    ],
)
def test_collectives_without_encryption_are_refused(options: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused both if the run requests encryption and if all runs have it."""
    options.encryption = True
    refusal = f"encryption=True with {words}: only hopsml's own collective encrypts"
    with pytest.raises(ArgumentError, match=refusal):
        collective.build(options)
    options.encryption = False
    spec = collective.build(options).spec
    monkeypatch.setenv("HOPSML_ENCRYPTION", "1")
    with pytest.raises(ArgumentError, match=refusal):
        plan.with_required_encryption(spec.communication)


def test_encryption_variable_enables_encryption_and_is_validated(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, expected in (("", False), ("0", False), ("1", True)):
        monkeypatch.setenv("HOPSML_ENCRYPTION", text)
        assert plan.with_required_encryption(Communication()).encryption is expected
        assert plan.with_required_encryption(Communication(encryption=True)).encryption
    monkeypatch.setenv("HOPSML_ENCRYPTION", "yes")
    with pytest.raises(ArgumentError, match=r"HOPSML_ENCRYPTION='yes': the value must be 1 .* or 0"):
        plan.with_required_encryption(Communication())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, ""),
        ({"compression": "bf16", "double_buffering": True}, "bf16, double buffering"),
        ({"compression": "topk", "accumulate": 4}, "topk of 0.01, 4 steps together"),
        ({"compression": "powersgd", "powersgd_rank": 4}, "powersgd of rank 4"),
        ({"reduction": "adasum"}, "adasum"),
    ],
)
def test_gradient_settings_are_described_in_words(given: dict[str, Any], words: str) -> None:
    settings = GradientSettings(**given)
    assert settings.description == words
    assert sorted(settings.changed_names) == sorted(given)


def test_worker_record_and_rerun_have_the_arguments_of_the_verb(store: Path) -> None:
    run = experiment.submit(report_specification, progress=False, **{**GIVEN, "register_as": None})
    result = run.result(END_S)
    received = msgspec.convert(json.loads(result.metrics["spec"]), RunSpec)
    recorded = msgspec.convert(RunDir(result.run_dir).read_run()["spec"], RunSpec)
    again = repeat.build(result.run_dir).spec
    for spec in (received, recorded, again):
        found = settings(spec)
        assert {name: found[name] for name in expected_settings() if name != "register_as"} == {
            name: value for name, value in expected_settings().items() if name != "register_as"
        }
        assert isinstance(spec.group, ElasticGroup) and (spec.group.min_size, spec.group.size) == (1, 2)
        assert spec.seed == received.seed and spec.verb == "collective_all_reduce"
    assert again == recorded


def test_section_copies_and_validates_known_fields() -> None:
    @dataclasses.dataclass
    class Called:
        start_timeout: Any = 5
        unknown: int = 3

    assert section_from_options(FixedGroup, Called(), size=2) == FixedGroup(size=2, start_timeout_s=5.0)
    with pytest.raises(ValueError, match=r"start_timeout=0 is too small; it must be greater than 0 seconds"):
        section_from_options(FixedGroup, Called(0))
    with pytest.raises(TypeError, match=r"start_timeout='5' is a str; it must be a number of seconds"):
        section_from_options(FixedGroup, Called("5"))


@pytest.mark.parametrize(
    ("group", "limit", "expected"),
    [
        (FixedGroup(size=5), 3, 5),  # refused, then
        (ElasticGroup(size=5, min_size=2), 3, 3),
        (ElasticGroup(size=5, min_size=4), 3, 4),  # refused, then
        (ElasticGroup(size=2, min_size=1), 3, 2),
    ],
)
def test_requested_workers_are_limited_by_the_cluster_and_minimum(group: FixedGroup, limit: int, expected: int) -> None:
    assert group.size_within(limit) == expected


def test_specification_of_parameter_servers_and_mirrored_round_trips() -> None:
    servers = collective.build_with_servers(
        ParameterServerOptions(report_specification, num_workers=3, num_ps=2, evaluator=True, start_timeout=77.0)
    ).spec
    assert (servers.group.size, servers.group.start_timeout_s, servers.roles) == (7, 77.0, Roles(2, evaluator=True))
    assert servers.roles.without_gpu == 3 and Roles(2, evaluator=True, evaluator_gpu=True).without_gpu == 2
    mirrored = collective.build_mirrored(MirroredOptions(report_specification, logical_devices=2)).spec
    assert (mirrored.group.size, mirrored.all_gpus, mirrored.logical_devices) == (1, True, 2)
    for spec in (servers, mirrored):
        assert msgspec.convert(json.loads(json.dumps(spec_record(spec))), RunSpec) == spec


@pytest.mark.parametrize(("value", "servers"), [(None, 1), ("3", 3)])
def test_num_tf_ps_variable_sets_the_number_of_parameter_servers(
    monkeypatch: pytest.MonkeyPatch, value: str | None, servers: int
) -> None:
    monkeypatch.delenv("NUM_TF_PS", raising=False)
    if value is not None:
        monkeypatch.setenv("NUM_TF_PS", value)
    assert collective.build_with_servers(ParameterServerOptions(report_specification)).spec.roles == Roles(servers)


@pytest.mark.parametrize("verb", ["jax", "parameter_server"])
def test_verbs_without_encryption_are_refused_when_encryption_is_required(
    verb: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOPSML_ENCRYPTION", "1")
    monkeypatch.setenv("HOPSML_PROJECT_URL", f"file://{tmp_path}")
    more = {"num_ps": 1} if verb == "parameter_server" else {}
    with pytest.raises(ArgumentError, match=rf"experiment.{verb} with encryption \(HOPSML_ENCRYPTION=1"):
        getattr(experiment, verb)(lambda: 1, num_workers=2, progress=False, **more)
    assert not list(tmp_path.iterdir())


def test_specification_is_pickled_with_the_names_of_its_fields() -> None:
    """A later version may insert fields."""
    spec = RunSpec(name="x", preflight="off", group=ElasticGroup(size=3, min_size=2))
    rebuild, (kind, fields) = spec.__reduce__()
    assert kind is RunSpec and fields["preflight"] == "off" and fields["group"].min_size == 2
    assert (
        pickle.loads(pickle.dumps(spec))
        == spec
        == rebuild(kind, {"preflight": "off", "name": "x", "group": spec.group})
    )
