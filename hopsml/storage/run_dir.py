"""The run directory: all its paths, and the two records that begin and end a run.

<project>/Experiments/<appId>_<n>/
    run.json            what was asked; written first, exclusively: it claims the directory
    environment.json    with what: packages, settings, variables, hardware, git; written while the run is under way
    worker.json         the same of the chief's interpreter and machine
    inputs.jsonl        what the function noted as its inputs
    mlflow.json         where the run is sent in MLflow, and whether it is there
    code/               function.pickle: what was shipped; script.py or cells.py, git.diff
    events/             TensorBoard event files, shared by all ranks
    checkpoints/        step-000000120/ ..., complete or absent
    logs/               g0-rank0.log, g0-rank0.system.jsonl ...
    metrics.jsonl       one line a report
    export/             models
    trials/<id>/        the same layout for each trial of a search
    .outputs.json .hparams.json    under the predecessor's names and form
    status.json         how it went; written last
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from hopsml.errors import ArgumentError, ArgumentTypeError, PathExists, PathNotFound, StorageError
from hopsml.storage import urls
from hopsml.storage.filesystem import FileSystem, for_url

_STEP = re.compile(r"^step-(\d{9,})$")
EXPERIMENTS = "Experiments"
SYSTEM_METRICS = ".system.jsonl"


def step_name(step: int) -> str:
    """Directory name of a checkpoint, for instance ``step-000000120``: sorts by step."""
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        raise ArgumentError(f"step={step!r}: a step is a whole number from 0")
    return f"step-{step:09d}"


def step_of(name: str) -> int | None:
    """The step that a checkpoint's directory name stands for; None for any other name."""
    found = _STEP.match(name)
    return int(found.group(1)) if found else None


class RunDir:
    """Names every path of one run, on any store; local paths and mirrors of a run have the same layout."""

    def __init__(self, url: str | os.PathLike[str], timeout_s: float | None = None) -> None:
        self.url = os.fspath(url).rstrip("/")
        self._timeout_s = timeout_s

    def __repr__(self) -> str:
        return f"RunDir({self.url!r})"

    @property
    def run_id(self) -> str:
        """``<appId>_<n>``, or a trial's id."""
        return urls.name(self.url)

    @property
    def run_json(self) -> str:
        """What was asked."""
        return urls.join(self.url, "run.json")

    @property
    def status_json(self) -> str:
        """How it went; there once the run has ended."""
        return urls.join(self.url, "status.json")

    @property
    def environment_json(self) -> str:
        """With what the run was made, as the driver sees it."""
        return urls.join(self.url, "environment.json")

    @property
    def worker_json(self) -> str:
        """Interpreter, hardware and variables of the chief."""
        return urls.join(self.url, "worker.json")

    @property
    def inputs(self) -> str:
        """Inputs that the function noted, one JSON object a line."""
        return urls.join(self.url, "inputs.jsonl")

    @property
    def mlflow_json(self) -> str:
        """Where the run is sent in MLflow, and whether it is there."""
        return urls.join(self.url, "mlflow.json")

    @property
    def code(self) -> str:
        """What was shipped to the workers, and the code around it."""
        return urls.join(self.url, "code")

    @property
    def function(self) -> str:
        """The pickled function with its arguments, exactly the bytes that the workers got."""
        return urls.join(self.code, "function.pickle")

    @property
    def events(self) -> str:
        """TensorBoard event files."""
        return urls.join(self.url, "events")

    @property
    def checkpoints(self) -> str:
        """Complete checkpoints, one directory a step."""
        return urls.join(self.url, "checkpoints")

    def checkpoint(self, step: int) -> str:
        """One checkpoint's directory."""
        return urls.join(self.checkpoints, step_name(step))

    @property
    def logs(self) -> str:
        """What the workers printed."""
        return urls.join(self.url, "logs")

    def log(self, generation: int, rank: int) -> str:
        """What one worker of one generation printed."""
        return urls.join(self.logs, f"g{generation}-rank{rank}.log")

    def system_metrics(self, generation: int, rank: int) -> str:
        """What one worker used of its machine, one JSON object a sample."""
        return urls.join(self.logs, f"g{generation}-rank{rank}{SYSTEM_METRICS}")

    @property
    def metrics(self) -> str:
        """Reported metrics, one JSON object a line."""
        return urls.join(self.url, "metrics.jsonl")

    @property
    def export(self) -> str:
        """Models for others to load."""
        return urls.join(self.url, "export")

    @property
    def outputs_json(self) -> str:
        """What the function returned, under the predecessor's name."""
        return urls.join(self.url, ".outputs.json")

    @property
    def hparams_json(self) -> str:
        """The function's arguments, under the predecessor's name."""
        return urls.join(self.url, ".hparams.json")

    @property
    def trials(self) -> str:
        """Trials of a search."""
        return urls.join(self.url, "trials")

    def trial(self, trial_id: str) -> RunDir:
        """The run directory of one trial."""
        return RunDir(urls.join(self.trials, trial_id), self._timeout_s)

    # ------------------------------------------------------------------ records

    def write_run(self, record: Mapping[str, Any]) -> None:
        """Write ``run.json``, in one step."""
        self.write_json(self.run_json, record)

    def read_run(self) -> dict[str, Any]:
        """``run.json``; PathNotFound if this is no run directory."""
        return self.read_json(self.run_json)

    def write_status(self, record: Mapping[str, Any]) -> None:
        """Write ``status.json``, in one step: the run has ended."""
        self.write_json(self.status_json, record)

    def read_status(self) -> dict[str, Any] | None:
        """``status.json``; None as long as the run has not ended."""
        try:
            return self.read_json(self.status_json)
        except PathNotFound:
            return None

    def end(self, record: Mapping[str, Any]) -> bool:
        """Write ``status.json`` unless the run has ended already; whether it was this call that ended it.

        Of a driver that was taken for dead and the one that took its run up, the first to write wins.
        """
        try:
            self._system.write_bytes(self.status_json, to_json(record), overwrite=False)
        except PathExists:
            return False
        return True

    def check_open(self) -> None:
        """Raises StorageError where the run has ended: nothing may be added to its checkpoints then."""
        status = self.read_status()
        if status is not None:
            successor = status.get("continued_by")
            why = f"it goes on in {successor}" if successor else f"it has ended ({status.get('state')})"
            raise StorageError(f"nothing is added to {self.url} any more: {why}", self.url)

    def write_json(self, url: str, record: Mapping[str, Any]) -> None:
        """Any record of this run, in one step. ArgumentTypeError names a value that JSON cannot hold."""
        self._system.write_bytes(url, to_json(record))

    def read_json(self, url: str) -> dict[str, Any]:
        """Any record of this run. StorageError if it is not a JSON object."""
        data = self._system.read_bytes(url)
        try:
            record = json.loads(data)
        except ValueError as error:
            raise StorageError(f"cannot read {url}: not JSON ({error}); it was not written by hopsml", url) from error
        if not isinstance(record, dict):
            raise StorageError(f"cannot read {url}: a JSON object was expected, not {type(record).__name__}", url)
        return record

    @property
    def _system(self) -> FileSystem:
        return for_url(self.url, self._timeout_s)


def claim(
    project_url: str, app_id: str, record: Mapping[str, Any] | None = None, timeout_s: float | None = None
) -> RunDir:
    """The next free run directory of an application: ``Experiments/<app_id>_<n>``, n from 1.

    ``record`` becomes its ``run.json``, written exclusively: two callers at the same time get two
    directories.
    """
    if not app_id or "/" in app_id:
        raise ArgumentError(f"app_id={app_id!r}: it names a directory, so it must not be empty or hold a '/'")
    experiments = urls.join(project_url, EXPERIMENTS)
    system = for_url(project_url, timeout_s)
    number = _highest(system, experiments, app_id) + 1
    while True:
        run = RunDir(urls.join(experiments, f"{app_id}_{number}"), timeout_s)
        try:
            system.write_bytes(run.run_json, to_json(record or {"run_id": run.run_id}), overwrite=False)
            return run
        except PathExists:
            number += 1


def next_run_id(project_url: str, app_id: str, timeout_s: float | None = None) -> str:
    """As ``claim``, with the bare facts as its record; returns ``<app_id>_<n>``."""
    return claim(project_url, app_id, timeout_s=timeout_s).run_id


def to_json(record: Mapping[str, Any]) -> bytes:
    """UTF-8 JSON; numpy's scalars and arrays, paths and dataclasses become plain values, NaN stays NaN."""
    try:
        return (json.dumps(record, indent=1, default=_plain, ensure_ascii=False) + "\n").encode()
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(f"not a JSON record: {error}; use numbers, text, lists and dicts") from error


def _highest(system: FileSystem, experiments: str, app_id: str) -> int:
    pattern = re.compile(re.escape(app_id) + r"_(\d+)$")
    try:
        found = [pattern.match(entry.name) for entry in system.list_dir(experiments)]
    except PathNotFound:
        return 0
    return max((int(match.group(1)) for match in found if match), default=0)


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, PurePath):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, (set, frozenset, tuple)):
        return list(value)
    raise TypeError(f"{value!r} is a {type(value).__name__}")
