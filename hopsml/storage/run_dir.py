"""Run directory: all its paths, and the records that begin and end a run.

<project>/Experiments/<appId>_<n>/
    run.json            specification of the run; written first, exclusively: it reserves the directory
    cancel.json         request to end the run; its driver polls for it
    profile.json        newest request for a profile of a worker, and its state
    environment.json    packages, settings, variables, hardware, git; written while the run is active
    worker.json         the same for the chief's interpreter and machine
    inputs.jsonl        inputs that the function declared
    mlflow.json         where the run is sent in MLflow, and whether it has been sent
    code/               function.pickle: what was shipped; script.py or cells.py, git.diff
    events/             TensorBoard event files, shared by all ranks
    checkpoints/        step-000000120/ ..., complete or absent
    fit-2/checkpoints/  the same for the function's second fit(), and so on
    logs/               g0-rank0.log, g0-rank0.system.jsonl ...
    metrics.jsonl       one line per report
    export/             models
    profiles/           profiles of running workers, taken on request
    artifacts/          files that the function saved in the chief's working folder; rank-<n>/ for the others
    trials/<id>/        the same layout for each trial of a search
    .outputs.json .hparams.json    under the predecessor's names and form
    gang.jsonl          if the run did not finish: its group's newest events, for tools.replay_gang
    driver.json         heartbeat of the driver, while the run is active
    continued.json      the run that continues this one, written exclusively: it reserves the continuation
    continued-1.json    the driver that continues a search after so many sessions, written exclusively, too
    status.json         state and result of the run; written last

A job's driver also stores its run directory at the URL in ``HOPSML_JOB_RECORD``, for the process that started it: a
scheduler (Airflow) sets the variable, and reads the file when the driver has exited. The last run that a driver begins
counts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from hopsml.core import redact
from hopsml.core.callbacks import nonblocking_logger
from hopsml.core.variables import SETTINGS, Settings
from hopsml.errors import ArgumentError, ArgumentTypeError, PathExists, PathNotFound, PermissionRefused, StorageError
from hopsml.storage import causes, durable, filesystem, privacy, urls
from hopsml.storage.filesystem import FileSystem, exists, for_url, read_record

logger = nonblocking_logger(__name__)

_STEP = re.compile(r"^step-(\d{9,})$")
_FIT = re.compile(r"^fit-([2-9]|[1-9]\d+)$")
EXPERIMENTS = "Experiments"
SYSTEM_METRICS = ".system.jsonl"
_RECORDS = (
    "run.json cancel.json environment.json worker.json inputs.jsonl mlflow.json metrics.jsonl gang.jsonl status.json"
)
_OF_DRIVERS = "driver.json continued.json profile.json"
_FOLDERS = "code events checkpoints evaluations logs export profiles artifacts trials journal"
_OF_SEARCHES = "best.json trials.parquet trial.json output.log .outputs.json .hparams.json .metric .summary.json"
# Names of entries directly in the directory of a run or a trial.
RESERVED_NAMES = frozenset(f"{_RECORDS} {_OF_DRIVERS} {_FOLDERS} {_OF_SEARCHES}".split())


def step_name(step: int) -> str:
    """Return the directory name of a checkpoint, for instance ``step-000000120``, which sorts by step."""
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        raise ArgumentError(f"step={step!r}: a step must be a whole number, 0 or more")
    return f"step-{step:09d}"


def parse_step_name(name: str) -> int | None:
    """Return the step of a checkpoint's directory name; None for any other name."""
    found = _STEP.match(name)
    return int(found.group(1)) if found else None


def fit_name(number: int) -> str:
    """Return the directory name of the function's ``number``-th call of ``fit`` (2 or more), for instance ``fit-2``."""
    return f"fit-{number}"


def parse_fit_name(name: str) -> int | None:
    """Return the number in the directory name of a call of ``fit``; None for any other name."""
    found = _FIT.match(name)
    return int(found.group(1)) if found else None


class RunEnded(StorageError):
    """Error: a write to a run that has ended, or that another driver has taken over."""


class _Below:
    """Descriptor of a run directory's attribute: the URL of an entry that always has the same name."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def __get__(self, run: RunDir, owner: type[RunDir]) -> str:
        return urls.join(run.url, *self._names)


class RunDir:
    """Paths of one run, on any store; local paths and mirrors of a run have the same layout.

    Each attribute is a URL; creating the object accesses nothing. ``timeout_s``: deadline of one storage step, in
    seconds.
    """

    run_json = _Below("run.json")  # specification of the run; written first
    status_json = _Below("status.json")  # state and result; exists once the run has ended
    cancel_json = _Below("cancel.json")  # request to end the run
    profile_json = _Below("profile.json")  # newest request for a profile of a worker
    driver_json = _Below("driver.json")  # newest heartbeat of the driver
    continued_json = _Below("continued.json")  # the run that continues this one
    best_json = _Below("best.json")  # best trial of a search so far
    environment_json = _Below("environment.json")  # packages, settings and variables of the driver
    worker_json = _Below("worker.json")  # interpreter, hardware and variables of the chief
    inputs = _Below("inputs.jsonl")  # inputs that the function declared, one JSON object per line
    mlflow_json = _Below("mlflow.json")  # where the run is sent in MLflow, and whether it has been sent
    code = _Below("code")  # code that was shipped to the workers, and the code around it
    function = _Below("code", "function.pickle")  # the pickled function with its arguments, as shipped
    events = _Below("events")  # TensorBoard event files
    checkpoints = _Below("checkpoints")  # complete checkpoints, one directory per step
    evaluations = _Below("evaluations")  # results of an evaluator for each checkpoint
    logs = _Below("logs")  # output of the workers and their system metrics
    metrics = _Below("metrics.jsonl")  # reported metrics, one JSON object per line
    gang_log = _Below("gang.jsonl")  # events and decisions of the group of a run that did not finish
    export = _Below("export")  # exported models
    profiles = _Below("profiles")  # profiles of running workers
    artifacts = _Below("artifacts")  # files that the function saved in its working folder
    outputs_json = _Below(".outputs.json")  # return value of the function, under the predecessor's name
    hparams_json = _Below(".hparams.json")  # arguments of the function, under the predecessor's name
    trials = _Below("trials")  # trials of a search

    def __init__(self, url: str | os.PathLike[str], timeout_s: float | None = None) -> None:
        self.url = os.fspath(url).rstrip("/")
        self._timeout_s = timeout_s

    def __repr__(self) -> str:
        return f"RunDir({self.url!r})"

    @property
    def run_id(self) -> str:
        """Last component of the URL: ``<appId>_<n>`` of a run, the id of a trial."""
        return urls.name(self.url)

    def checkpoints_of_fit(self, fit: int) -> str:
        """Return the URL of the checkpoints of the function's call of ``fit`` with this number, 1 or more."""
        return self.checkpoints if fit == 1 else urls.join(self.url, fit_name(fit), "checkpoints")

    def list_further_fits(self) -> list[int]:
        """Return the numbers, 2 or more, of the function's calls of ``fit`` that have a directory.

        Empty if the run directory does not exist.
        """
        try:
            entries = self._system.list_dir(self.url)
        except PathNotFound:
            return []
        return sorted(
            number for entry in entries if entry.is_dir and (number := parse_fit_name(entry.name)) is not None
        )

    def log_url(self, generation: int, rank: int) -> str:
        """Return the URL of the log of one worker in one generation."""
        return urls.join(self.logs, f"g{generation}-rank{rank}.log")

    # ------------------------------------------------------------------ records

    def write_run(self, record: Mapping[str, Any]) -> None:
        """Write ``run.json``, replacing it atomically. Raises StorageError."""
        self.write_json(self.run_json, record)

    def read_run(self) -> dict[str, Any]:
        """Return the content of ``run.json``; PathNotFound if this is not a run directory."""
        return self.read_json(self.run_json)

    def write_status(self, record: Mapping[str, Any]) -> None:
        """Write ``status.json`` atomically: the run has ended."""
        self._sync()
        self.write_json(self.status_json, record)

    def read_status(self) -> dict[str, Any] | None:
        """Return the content of ``status.json``; None if the run has not ended."""
        try:
            return self.read_json(self.status_json)
        except PathNotFound:
            return None

    def write_status_once(self, record: Mapping[str, Any]) -> bool:
        """Write ``status.json`` unless the run has ended already.

        If a driver that counted as dead and the one that took its run over both write, the first one wins. Files that
        the workers wrote into the run's directory on this machine's disk are durable afterwards.

        Returns:
            True if this call ended the run.
        """
        self._sync()
        try:
            self._system.write_bytes(self.status_json, to_json(record), overwrite=False)
        except PathExists:
            if not exists(self.status_json, self._timeout_s):  # the existing path is a file where a folder should be
                raise
            return False
        return True

    def write_successor(self, successor: str) -> None:
        """Record that the run of this URL continues this one; raises PathExists if another run does."""
        self._system.write_bytes(self.continued_json, to_json({"continued_by": successor}), overwrite=False)

    def remove_successor(self, successor: str) -> None:
        """Undo ``write_successor`` for the run of this URL, which has not begun, so that another may continue this run."""
        if self.read_successor() != successor:
            return
        status = self.read_status()
        if status is not None and status.pop("continued_by", None):
            self._system.write_bytes(self.status_json, to_json({**status, "error": "its driver died"}))
        self._system.delete(self.continued_json)

    def read_successor(self) -> str:
        """Return the URL of the run that continues this one; "" if there is none."""
        try:
            return str(self.read_json(self.continued_json).get("continued_by", ""))
        except PathNotFound:
            return str((self.read_status() or {}).get("continued_by") or "")

    def check_not_ended(self) -> None:
        """Raise RunEnded if the run has ended or is continued elsewhere, so that no checkpoint may be added."""
        status = self.read_status()
        if status is not None:
            successor = status.get("continued_by")
            why = f"it continues in {successor}" if successor else f"it has ended ({status.get('state')})"
            raise RunEnded(f"no more files are written to {self.url}: {why}", self.url)

    def write_json(self, url: str, record: Mapping[str, Any]) -> None:
        """Write any record of this run, atomically; ArgumentTypeError names a value that JSON cannot represent."""
        self._system.write_bytes(url, to_json(record))

    def write_gang_log(self, lines: bytes) -> None:
        """Write ``gang.jsonl``, the group's newest events, atomically."""
        self._system.write_bytes(self.gang_log, lines)

    def read_gang_log(self) -> bytes:
        """Return the content of ``gang.jsonl``; PathNotFound where the run has none, as it finished or is under way."""
        return self._read(self.gang_log)

    def read_json(self, url: str) -> dict[str, Any]:
        """Return any record of this run. StorageError if it is not a JSON object."""
        data = self._read(url)
        try:
            record = json.loads(data)
            if b"\\u" in data:
                _check_characters(record)
        except (ValueError, RecursionError) as error:
            raise StorageError(
                f"cannot read {url}: it is not JSON ({error}), so hopsml did not write it; inspect "
                "the file, then move or delete it",
                url,
            ) from error
        if not isinstance(record, dict):
            raise StorageError(f"cannot read {url}: it must contain a JSON object, not {type(record).__name__}", url)
        return record

    def read_json_lines(self, url: str) -> list[dict[str, Any]]:
        """Return the JSON objects of a file with one per line, as ``parse_json_lines`` does; empty if there is no file.

        Raises StorageError.
        """
        try:
            return parse_json_lines(self._read(url).decode(errors="replace"))
        except PathNotFound:
            return []

    def _sync(self) -> None:
        """Sync files that workers have written directly: logs, reports, events, exports. Raises StorageError."""
        if urls.is_local(self.url):
            try:
                durable.sync_tree(urls.split(self.url)[2])
            except OSError as error:
                raise causes.from_os_error("write", self.url, error) from error

    def _read(self, url: str) -> bytes:
        return read_record(url, self._timeout_s)

    @property
    def _system(self) -> FileSystem:
        return for_url(self.url, self._timeout_s)


def find_run_dir(run: Any, project_url: str) -> RunDir:
    """Return the directory of a run given by URL, by path, by id, or by an object with a ``run_dir``.

    Raises ArgumentError if there is none.
    """
    named = str(getattr(run, "run_dir", run))
    if "/" in named and "://" not in named:
        named = os.path.abspath(named)  # workers have other working folders
    directory = RunDir(named if "/" in named else urls.join(project_url, EXPERIMENTS, named))
    if exists(directory.run_json):
        return directory
    if "/" not in named and (nested := _nested(named, project_url)) is not None:
        return nested
    raise ArgumentError(
        f"run {named!r}: there is no file {directory.run_json}; give the id, URL or path of a run (ids are "
        "searched in the project of HOPSML_PROJECT_URL)"
    )


def _nested(run_id: str, project_url: str) -> RunDir | None:
    """Return the directory of an ended run within another run, such as app-1_2-0 within app-1_2; None if there is none."""
    whole, _, number = run_id.rpartition("-")
    around = RunDir(urls.join(project_url, EXPERIMENTS, whole))
    if not whole or not number.isdigit() or not exists(around.run_json):
        return None
    folders = [RunDir(entry.url) for entry in for_url(around.url).list_dir(around.url) if entry.is_dir]
    return next((one for one in folders if (one.read_status() or {}).get("run_id") == run_id), None)


def create_run_dir(
    project_url: str,
    app_id: str,
    record: Mapping[str, Any] | None = None,
    timeout_s: float | None = None,
    share: str | None = None,
) -> RunDir:
    """Create and return the next free run directory of an application: ``Experiments/<app_id>_<n>``, n from 1.

    Args:
        project_url: URL of the project.
        app_id: id of the application.
        record: content of ``run.json``, which is written exclusively: two concurrent callers get two directories.
        timeout_s: deadline of one storage step, in seconds.
        share: who besides its owner may read it, see ``privacy.share_mode``.

    Raises:
        ArgumentError: an invalid ``app_id`` or ``share``.
        StorageError: the directory cannot be created.
    """
    mode = privacy.share_mode(share)
    if not app_id or "/" in app_id:
        raise ArgumentError(
            f"app_id={app_id!r}: the id is the name of a directory, so it must not be empty or contain a '/'"
        )
    experiments = urls.join(project_url, EXPERIMENTS)
    system = for_url(project_url, timeout_s)
    number = _highest(system, experiments, app_id) + 1
    if number == 1:
        ensure_project_folder(project_url, mode, timeout_s)
    _open_the_way(system, project_url, mode)
    while True:
        run = RunDir(urls.join(experiments, f"{app_id}_{number}"), timeout_s)
        system.make_dirs(run.url, mode)
        try:
            system.write_bytes(run.run_json, to_json(record or {"run_id": run.run_id}), overwrite=False)
            return run
        except PathExists:
            number += 1


def ensure_project_folder(project_url: str, mode: int | None = None, timeout_s: float | None = None) -> None:
    """Create the project's folder if it does not exist.

    Args:
        project_url: URL of the project.
        mode: permission of a new folder; None: according to ``HOPSML_SHARE``.
        timeout_s: deadline of one storage step, in seconds.

    Raises:
        PathExists: the project is a file.
    """
    system, mode = for_url(project_url, timeout_s), privacy.share_mode(None) if mode is None else mode
    try:
        found = system.status(project_url)
    except PathNotFound:
        system.make_dirs(project_url, mode)
        return
    if not found.is_dir:
        raise PathExists(
            f"the project {project_url} is a file; set HOPSML_PROJECT_URL to a folder, or to a path where one can be "
            "created",
            project_url,
        )


def _open_the_way(system: FileSystem, project_url: str, mode: int) -> None:
    """Let users who may read the run pass through the folders above it, as far as this user may change those."""
    through = mode & 0o055
    if not through:
        return
    for folder in (project_url, urls.join(project_url, EXPERIMENTS)):
        system.make_dirs(folder)
        permission = system.status(folder).permission
        if permission and permission & through != through:
            try:
                system.set_permission(folder, permission | through)
            except PermissionRefused:
                logger.warning(
                    "the run is shared, but other users cannot read %s; ask its owner for the permission", folder
                )


def parse_json_lines(text: str) -> list[dict[str, Any]]:
    """Return the JSON objects in a text with one per line.

    Other lines, such as a partly written last one, are left out.
    """
    found = []
    for line in text.split("\n"):
        with contextlib.suppress(ValueError, RecursionError):
            content = json.loads(line)
            if "\\u" in line:
                _check_characters(content)
            if isinstance(content, dict):
                found.append(content)
    return found


def _check_characters(content: Any) -> None:
    """Raise ValueError for a lone surrogate, which JSON can contain, but which cannot be encoded in a response."""
    json.dumps(content, ensure_ascii=False).encode()


def to_json(record: Mapping[str, Any]) -> bytes:
    """Return a record as UTF-8 JSON without secrets.

    Numpy's scalars and arrays, paths and dataclasses become plain values, NaN stays NaN. Raises ArgumentTypeError for a
    value that JSON cannot represent.
    """
    try:
        plain = json.loads(json.dumps(record, default=_plain))
        return (json.dumps(redact.record(plain), indent=1, ensure_ascii=False) + "\n").encode()
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(
            f"the record cannot be written as JSON: {error}; use numbers, text, lists and dicts"
        ) from error


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


JOB_RECORD = Settings.job_record.name


def announce_run(directory: RunDir, application: str) -> None:
    """Record the run that this driver has just begun; does nothing if no record was requested."""
    url = SETTINGS.job_record
    if url:
        write_job_record(url, {"run_dir": directory.url, "run_id": directory.run_id, "application": application})


def write_job_record(url: str, record: Mapping[str, Any]) -> None:
    """Write the record as JSON to ``url`` atomically, replacing an existing one. Raises StorageError."""
    filesystem.for_url(url).write_bytes(url, to_json(record))


def read_job_record(url: str) -> dict[str, Any] | None:
    """Return the record that a driver wrote to ``url``; None if there is none. Raises StorageError."""
    try:
        return RunDir(urls.parent(url)).read_json(url)
    except PathNotFound:
        return None
