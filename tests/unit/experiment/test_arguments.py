"""Tests that impossible calls are refused before a start, with value and rule."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from hopsml import experiment
from hopsml.core import processes, settings
from hopsml.errors import (
    ArgumentError,
    ArgumentTypeError,
    HopsmlError,
    NotEnoughSlots,
    PermissionRefused,
    QuotaExceeded,
)
from hopsml.storage import causes
from tests.helpers.local_application import SLOTS

pytestmark = pytest.mark.fast


def train(lr: float = 0.1, batch_size: int = 128) -> float:
    return lr * batch_size


async def coroutine() -> None:
    pass


def generator() -> Iterator[int]:
    yield 1


async def both() -> AsyncIterator[int]:
    yield 1


@pytest.fixture(autouse=True)
def calls_start_nothing(store: Path) -> Iterator[None]:
    """No thread, no process and no run directory comes of a call in this file."""
    threads, children = set(threading.enumerate()), set(processes.descendants_of(os.getpid()))
    yield
    assert set(threading.enumerate()) == threads
    assert set(processes.descendants_of(os.getpid())) == children
    assert not store.exists(), sorted(store.rglob("*"))


def assert_refused(kind: type[HopsmlError], *words: str, call: Callable[..., Any], **named: Any) -> None:
    with pytest.raises(kind) as caught:
        call(train, **named) if "train_fn" not in named else call(**named)
    for word in words:
        assert word in str(caught.value)


VERBS = pytest.mark.parametrize("call", [experiment.collective_all_reduce, experiment.submit])


@VERBS
@pytest.mark.parametrize(
    ("named", "kind", "words"),
    [
        ({"num_workers": 0}, ArgumentError, ["num_workers=0", "at least 1"]),
        ({"num_workers": -3}, ArgumentError, ["num_workers=-3", "at least 1"]),
        ({"num_workers": "2"}, ArgumentTypeError, ["num_workers='2'", "str", "whole number"]),
        ({"num_workers": True}, ArgumentTypeError, ["num_workers=True", "bool", "whole number"]),
        ({"num_workers": 2.5}, ArgumentTypeError, ["num_workers=2.5", "float", "whole number"]),
        ({"min_workers": 3, "max_workers": 2}, ArgumentError, ["min_workers=3", "max_workers=2"]),
        ({"min_workers": 0}, ArgumentError, ["min_workers=0", "at least 1"]),
        (
            {"min_workers": 2, "max_workers": 4, "first_workers": 1},
            ArgumentError,
            ["first_workers=1", "min_workers=2 to"],
        ),
        ({"min_workers": 2, "max_workers": 4, "first_workers": 5}, ArgumentError, ["first_workers=5", "max_workers=4"]),
        ({"min_workers": 2, "first_workers": 1}, ArgumentError, ["first_workers=1: it must be from min_workers=2"]),
        ({"min_workers": 1, "first_workers": 1.5}, ArgumentTypeError, ["first_workers=1.5", "whole number"]),
        ({"num_workers": 2, "max_workers": 1}, ArgumentError, ["num_workers=2", "max_workers=1"]),
        ({"workers": 2}, ArgumentTypeError, ["'workers'", "did you mean num_workers or min_workers or max_workers?"]),
        ({"num_worker": 2}, ArgumentTypeError, ["no argument 'num_worker': did you mean num_workers?"]),
        (
            {"epochs": 2},
            ArgumentTypeError,
            ["'epochs'", "help(experiment.collective_all_reduce) lists those that it has"],
        ),
        ({"lr": 0.2}, ArgumentTypeError, ["'lr'", "did you mean args={'lr': 0.2}, for train()?"]),
        ({"args": {"learning_rate": 0.1}}, ArgumentTypeError, ["learning_rate", "train(lr"]),
        ({"args": {"batchsize": 8}}, ArgumentTypeError, ["'batchsize'", "did you mean batch_size?"]),
        ({"args": [0.1]}, ArgumentTypeError, ["[0.1]", "list", "dict"]),
        ({"implementation": "nccl"}, ArgumentError, ["implementation='nccl'", "'auto', 'tensorflow', 'hopsml'"]),
        ({"implementation": "hopsml", "merge_scope": 4}, ArgumentError, ["implementation='hopsml'", "merge_scope"]),
        ({"merge_scope": 0}, ArgumentError, ["merge_scope=0", "at least 1"]),
        ({"merge_scope": "none"}, ArgumentError, ["merge_scope='none'", "'all'"]),
        ({"merge_scope": 1.5}, ArgumentTypeError, ["merge_scope=1.5", "whole number"]),
        ({"compression": "fp32"}, ArgumentError, ["compression='fp32'", "None, or one of 'fp16', 'bf16', 'topk'"]),
        ({"compression": "topk", "topk": 2}, ArgumentError, ["topk=2", "greater than 0 and less than 1"]),
        ({"compression": "topk", "topk": "1%"}, ArgumentTypeError, ["topk='1%'", "such as 0.01"]),
        ({"topk": 0.1}, ArgumentError, ["topk=0.1 with compression=None", "use that compression, or omit topk"]),
        ({"compression": "powersgd", "powersgd_rank": 0}, ArgumentError, ["powersgd_rank=0", "at least 1"]),
        ({"accumulate": 0}, ArgumentError, ["accumulate=0", "at least 1"]),
        ({"reduction": "mean"}, ArgumentError, ["reduction='mean'", "'sum', 'adasum'"]),
        (
            {"reduction": "adasum", "compression": "topk"},
            ArgumentError,
            ["adasum", "compression='topk'", "'fp16', 'bf16'"],
        ),
        (
            {"compression": "fp16", "tuned": True},
            ArgumentError,
            ["tuned=True with compression", "omit one of the two"],
        ),
        (
            {"compression": "topk", "merge_scope": 4},
            ArgumentError,
            ["compression with merge_scope", "only hopsml's own"],
        ),
        (
            {"accumulate": 2, "double_buffering": True, "implementation": "tensorflow"},
            ArgumentError,
            ["double_buffering and accumulate with implementation='tensorflow'", "use implementation='hopsml'"],
        ),
        ({"start_timeout": 0}, ArgumentError, ["start_timeout=0", "greater than 0"]),
        ({"start_timeout": float("nan")}, ArgumentError, ["start_timeout=nan"]),
        ({"start_timeout": "60"}, ArgumentTypeError, ["start_timeout='60'", "seconds"]),
        ({"keep_warm": -1}, ArgumentError, ["keep_warm=-1"]),
        ({"preload": "numpy"}, ArgumentTypeError, ["preload='numpy'", "list"]),
        ({"preload": [1]}, ArgumentTypeError, ["preload=[1]", "list"]),
        ({"environment": {"A": 1}}, ArgumentTypeError, ["environment['A']=1", "str"]),
        ({"environment": ["A=1"]}, ArgumentTypeError, ["environment=['A=1']", "dict"]),
        ({"environment": {"A=B": "1"}}, ArgumentError, ["'A=B'"]),
        ({"environment": {"A": "1\0"}}, ArgumentError, ["environment['A']", "NUL"]),
        ({"name": 7}, ArgumentTypeError, ["name=7", "text"]),
        ({"args": {"zzz": 1}}, ArgumentTypeError, ["cannot be called with zzz", "or the function"]),
        ({"evaluator": True, "num_workers": 2}, ArgumentError, ["evaluator=True", "at least 3", "2"]),
        ({"profile": "nowhere"}, ArgumentError, ["'nowhere'", "local"]),
        ({"resume": "local-0-none_1"}, ArgumentError, ["'local-0-none_1'", "no run with this id or name"]),
        ({"resume": "file:///nowhere/app_1"}, ArgumentError, ["file:///nowhere/app_1", "run.json"]),
    ],
    ids=lambda value: str(value)[:50] if isinstance(value, dict) else "",
)
def test_invalid_argument_is_refused_at_the_call(
    call: Callable[..., Any], named: dict[str, Any], kind: type[HopsmlError], words: list[str]
) -> None:
    assert_refused(kind, *words, call=call, **named)
    assert issubclass(kind, (ValueError, TypeError))


@VERBS
@pytest.mark.parametrize(
    ("function", "words"),
    [
        (train(), ["12.8", "a float", "collective_all_reduce(train), without parentheses"]),
        (None, ["None"]),
        ("train", ["'train'", "str"]),
        (coroutine, ["coroutine is a coroutine"]),
        (generator, ["generator is a generator", "return"]),
        (both, ["both is a generator"]),
    ],
)
def test_object_that_is_not_a_plain_function_is_refused(
    call: Callable[..., Any], function: Any, words: list[str]
) -> None:
    assert_refused(ArgumentTypeError, *words, call=call, train_fn=function)


@VERBS
def test_call_without_function_or_with_too_many_arguments_is_refused(call: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="needs the training function"):
        call()
    with pytest.raises(TypeError, match="'name' twice"):
        call(train, "digits", name="digits")
    with pytest.raises(TypeError, match="at most"):
        call(train, *range(100))


@pytest.mark.parametrize(
    ("table", "kind", "words"),
    [
        ({"lr": [1, 2], "batch_size": [3]}, ArgumentError, ["'lr': 2", "'batch_size': 1", "equal"]),
        ({"lr": []}, ArgumentError, ["empty"]),
        ({"lr": 0.1}, ArgumentTypeError, ["args_dict['lr']=0.1", "list"]),
        ({"lr": "abc"}, ArgumentTypeError, ["args_dict['lr']='abc'", "list"]),
        ([1, 2], ArgumentTypeError, ["args_dict=[1, 2]", "dict of lists"]),
        ({"rate": [0.1]}, ArgumentTypeError, ["rate", "train(lr"]),
    ],
)
def test_invalid_table_of_combinations_is_refused(table: Any, kind: type[HopsmlError], words: list[str]) -> None:
    assert_refused(kind, *words, call=experiment.launch, args_dict=table)


def test_launch_refuses_num_workers_and_args() -> None:
    assert_refused(ArgumentTypeError, "num_workers", "one worker", call=experiment.launch, num_workers=3)
    assert_refused(ArgumentTypeError, "args_dict", call=experiment.launch, args={"lr": 0.1})


@pytest.mark.parametrize("name", ["TF_CONFIG", "CUDA_VISIBLE_DEVICES"])
@pytest.mark.parametrize("call", [experiment.collective_all_reduce, experiment.launch])
def test_cluster_variable_set_by_the_user_is_refused(
    call: Callable[..., Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "{}" if name == "TF_CONFIG" else "0")
    with pytest.raises(HopsmlError, match=f"{name} is already set.*honour_environment=True"):
        call(train)


def test_invalid_tf_config_is_refused_even_with_honour_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", "{cluster")
    with pytest.raises(HopsmlError, match="not a JSON object"):
        experiment.collective_all_reduce(train, honour_environment=True)


def test_captured_object_that_cannot_be_pickled_is_named() -> None:
    lock = threading.Lock()

    def guarded() -> None:
        with lock:
            pass

    with pytest.raises(ArgumentError, match="`lock`"):
        experiment.collective_all_reduce(guarded)


def test_too_many_workers_error_names_the_setting_that_limits_slots() -> None:
    with pytest.raises(NotEnoughSlots) as caught:
        experiment.collective_all_reduce(train, num_workers=SLOTS + 1)
    assert f"num_workers={SLOTS + 1}" in str(caught.value)
    assert f"at most {SLOTS} slots" in str(caught.value) and f"local_slots={SLOTS}" in str(caught.value)
    assert "HOPSML_LOCAL_SLOTS" in str(caught.value)
    experiment.shutdown()


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOSPC])
def test_unwritable_project_error_names_hopsml_project_url_without_internal_frames(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, or one closed to this user (never to root), raises this operating-system error."""

    def project_url() -> NoReturn:
        raise causes.from_os_error("create", "file:///project", OSError(number, os.strerror(number)))

    monkeypatch.setattr(settings, "project_url", project_url)
    with pytest.raises((PermissionRefused, QuotaExceeded), match="HOPSML_PROJECT_URL") as refusal:
        experiment.collective_all_reduce(train, num_workers=1)
    assert refusal.value.__suppress_context__ and refusal.traceback[-1].name == "start_with_application"


def test_deleted_working_directory_is_named_in_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("HOPSML_CONF_DIR", raising=False)
    folder.rmdir()
    with pytest.raises(ArgumentError, match="the working directory has been deleted; change to an existing one"):
        experiment.collective_all_reduce(train, num_workers=1)
