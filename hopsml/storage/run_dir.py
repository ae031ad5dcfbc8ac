"""The run directory: all its paths, and the two records that begin and end a run.

<project>/Experiments/<appId>_<n>/
    run.json            what was asked; written first, exclusively: it claims the directory
    cancel.json         a request that the run should end; its driver polls for it
    profile.json        the newest wish for a profile of a worker, and what has become of it
    environment.json    with what: packages, settings, variables, hardware, git; written while the run is under way
    worker.json         the same of the chief's interpreter and machine
    inputs.jsonl        what the function noted as its inputs
    mlflow.json         where the run is sent in MLflow, and whether it is there
    code/               function.pickle: what was shipped; script.py or cells.py, git.diff
    events/             TensorBoard event files, shared by all ranks
    checkpoints/        step-000000120/ ..., complete or absent
    fit-2/checkpoints/  the same of the function's second fit(), and so on
    logs/               g0-rank0.log, g0-rank0.system.jsonl ...
    metrics.jsonl       one line a report
    export/             models
    profiles/           of running workers, taken where somebody asked for one
    artifacts/          what the function saved in the folder that the chief ran in; rank-<n>/ of the others
    trials/<id>/        the same layout for each trial of a search
    .outputs.json .hparams.json    under the predecessor's names and form
    gang.jsonl          where the run did not finish: its gang's newest events, for tools.replay_gang
    driver.json         a sign of life of the driver, while the run is under way
    continued.json      the run that goes on with this one, written exclusively: it claims that
    continued-1.json    who goes on with a search after so many sessions, written exclusively in the same way
    status.json         how it went; written last
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

from hopsml import redact
from hopsml.delivery import logger_aside
from hopsml.errors import ArgumentError, ArgumentTypeError, PathExists, PathNotFound, PermissionRefused, StorageError
from hopsml.storage import causes, durable, privacy, urls
from hopsml.storage.filesystem import FileSystem, exists, for_url, read_record

logger = logger_aside(__name__)

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
# Directly in the directory of a run or a trial.
RESERVED_NAMES = frozenset(f"{_RECORDS} {_OF_DRIVERS} {_FOLDERS} {_OF_SEARCHES}".split())


def step_name(step: int) -> str:
    """Directory name of a checkpoint, for instance ``step-000000120``: sorts by step."""
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        raise ArgumentError(f"step={step!r}: a step is a whole number from 0")
    return f"step-{step:09d}"


def step_of(name: str) -> int | None:
    """The step that a checkpoint's directory name stands for; None for any other name."""
    found = _STEP.match(name)
    return int(found.group(1)) if found else None


def fit_name(number: int) -> str:
    """Directory of what the function's call of ``fit`` with this number (2 or more) leaves, for instance ``fit-2``."""
    return f"fit-{number}"


def fit_of(name: str) -> int | None:
    """The number that such a directory's name stands for; None for any other name."""
    found = _FIT.match(name)
    return int(found.group(1)) if found else None


class RunEnded(StorageError):
    """Something was to be added to a run that has ended, or that another driver has taken up."""


class _Below:
    """An attribute of a run directory: the URL of something in it that always has the same name."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def __get__(self, run: RunDir, owner: type[RunDir]) -> str:
        return urls.join(run.url, *self._names)


class RunDir:
    """Names every path of one run, on any store; local paths and mirrors of a run have the same layout.

    Each attribute is a URL; none is looked at when the object is made. ``timeout_s``: deadline of one storage step, seconds.
    """

    run_json = _Below("run.json")  # what was asked; written first
    status_json = _Below("status.json")  # how it went; there once the run has ended
    cancel_json = _Below("cancel.json")  # a request that the run should end
    profile_json = _Below("profile.json")  # the newest wish for a profile of a worker
    driver_json = _Below("driver.json")  # the driver's newest heartbeat
    continued_json = _Below("continued.json")  # which run goes on with this one
    best_json = _Below("best.json")  # a search's best trial so far
    environment_json = _Below("environment.json")  # packages, settings and variables of the driver
    worker_json = _Below("worker.json")  # interpreter, hardware and variables of the chief
    inputs = _Below("inputs.jsonl")  # inputs that the function noted, one JSON object a line
    mlflow_json = _Below("mlflow.json")  # where the run is sent in MLflow, and whether it is there
    code = _Below("code")  # what was shipped to the workers, and the code around it
    function = _Below("code", "function.pickle")  # the pickled function with its arguments, as shipped
    events = _Below("events")  # TensorBoard event files
    checkpoints = _Below("checkpoints")  # complete checkpoints, one directory a step
    evaluations = _Below("evaluations")  # what an evaluator found of each checkpoint
    logs = _Below("logs")  # what the workers printed and used
    metrics = _Below("metrics.jsonl")  # reported metrics, one JSON object a line
    gang_log = _Below("gang.jsonl")  # what the gang of a run that did not finish met and decided
    export = _Below("export")  # models for others to load
    profiles = _Below("profiles")  # of running workers
    artifacts = _Below("artifacts")  # what the function saved in its working folder
    outputs_json = _Below(".outputs.json")  # what the function returned, under the predecessor's name
    hparams_json = _Below(".hparams.json")  # the function's arguments, under the predecessor's name
    trials = _Below("trials")  # a search's trials

    def __init__(self, url: str | os.PathLike[str], timeout_s: float | None = None) -> None:
        self.url = os.fspath(url).rstrip("/")
        self._timeout_s = timeout_s

    def __repr__(self) -> str:
        return f"RunDir({self.url!r})"

    @property
    def run_id(self) -> str:
        """Last component of the URL: ``<appId>_<n>`` of a run, the id of a trial."""
        return urls.name(self.url)

    def checkpoints_of(self, fit: int) -> str:
        """URL of the checkpoints of the function's call of ``fit`` with this number, 1 or more."""
        return self.checkpoints if fit == 1 else urls.join(self.url, fit_name(fit), "checkpoints")

    def further_fits(self) -> list[int]:
        """Numbers, 2 or more, of the function's calls of ``fit`` that have left a directory; none without a run."""
        try:
            entries = self._system.list_dir(self.url)
        except PathNotFound:
            return []
        return sorted(number for entry in entries if entry.is_dir and (number := fit_of(entry.name)) is not None)

    def log(self, generation: int, rank: int) -> str:
        """URL of what one worker of one generation printed."""
        return urls.join(self.logs, f"g{generation}-rank{rank}.log")

    # ------------------------------------------------------------------ records

    def write_run(self, record: Mapping[str, Any]) -> None:
        """Write ``run.json``, replacing it in one step. Raises StorageError."""
        self.write_json(self.run_json, record)

    def read_run(self) -> dict[str, Any]:
        """``run.json``; PathNotFound if this is no run directory."""
        return self.read_json(self.run_json)

    def write_status(self, record: Mapping[str, Any]) -> None:
        """Write ``status.json``, in one step: the run has ended."""
        self._sync()
        self.write_json(self.status_json, record)

    def read_status(self) -> dict[str, Any] | None:
        """``status.json``; None as long as the run has not ended."""
        try:
            return self.read_json(self.status_json)
        except PathNotFound:
            return None

    def end(self, record: Mapping[str, Any]) -> bool:
        """Write ``status.json`` unless the run has ended already; whether it was this call that ended it.

        Of a driver that was taken for dead and the one that took its run up, the first to write wins. What the workers
        wrote into the run's directory on this machine's disk is durable then.
        """
        self._sync()
        try:
            self._system.write_bytes(self.status_json, to_json(record), overwrite=False)
        except PathExists:
            if not exists(self.status_json, self._timeout_s):  # what exists is a file where a folder was
                raise
            return False
        return True

    def hand_over(self, successor: str) -> None:
        """Let the run of this URL go on with this one; raises PathExists where another one does."""
        self._system.write_bytes(self.continued_json, to_json({"continued_by": successor}), overwrite=False)

    def take_back(self, successor: str) -> None:
        """Undo ``hand_over`` to the run of this URL, which has not begun: another one may go on with this one."""
        if self.successor() != successor:
            return
        status = self.read_status()
        if status is not None and status.pop("continued_by", None):
            self._system.write_bytes(self.status_json, to_json({**status, "error": "its driver died"}))
        self._system.delete(self.continued_json)

    def successor(self) -> str:
        """URL of the run that goes on with this one; "" where none does."""
        try:
            return str(self.read_json(self.continued_json).get("continued_by", ""))
        except PathNotFound:
            return str((self.read_status() or {}).get("continued_by") or "")

    def check_open(self) -> None:
        """Raises RunEnded where it has ended, or goes on elsewhere: nothing may be added to its checkpoints then."""
        status = self.read_status()
        if status is not None:
            successor = status.get("continued_by")
            why = f"it goes on in {successor}" if successor else f"it has ended ({status.get('state')})"
            raise RunEnded(f"nothing is added to {self.url} any more: {why}", self.url)

    def write_json(self, url: str, record: Mapping[str, Any]) -> None:
        """Any record of this run, in one step. ArgumentTypeError names a value that JSON cannot hold."""
        self._system.write_bytes(url, to_json(record))

    def write_gang_log(self, lines: bytes) -> None:
        """Write ``gang.jsonl``, in one step."""
        self._system.write_bytes(self.gang_log, lines)

    def read_gang_log(self) -> bytes:
        """``gang.jsonl``; PathNotFound where the run has none, as it finished or is under way."""
        return self._read(self.gang_log)

    def read_json(self, url: str) -> dict[str, Any]:
        """Any record of this run. StorageError if it is not a JSON object."""
        data = self._read(url)
        try:
            record = json.loads(data)
            if b"\\u" in data:
                _check_characters(record)
        except (ValueError, RecursionError) as error:
            raise StorageError(f"cannot read {url}: not JSON ({error}); it was not written by hopsml", url) from error
        if not isinstance(record, dict):
            raise StorageError(f"cannot read {url}: a JSON object was expected, not {type(record).__name__}", url)
        return record

    def read_lines(self, url: str) -> list[dict[str, Any]]:
        """A file of this run with one JSON object a line, as ``parse_lines``; none where there is no file. StorageError."""
        try:
            return parse_lines(self._read(url).decode(errors="replace"))
        except PathNotFound:
            return []

    def _sync(self) -> None:
        """Make durable what workers have written by its path: logs, reports, events, exports. StorageError."""
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


def find(run: Any, project_url: str) -> RunDir:
    """The directory of a run given by URL, by path, by id, or by an object with a ``run_dir``.

    Raises ArgumentError when there is none.
    """
    named = str(getattr(run, "run_dir", run))
    if "/" in named and "://" not in named:
        named = os.path.abspath(named)  # workers have folders of their own
    directory = RunDir(named if "/" in named else urls.join(project_url, EXPERIMENTS, named))
    if not exists(directory.run_json):
        raise ArgumentError(
            f"run {named!r}: there is no {directory.run_json}; give the run's id, its URL or its path "
            "(HOPSML_PROJECT_URL says where ids are looked for)"
        )
    return directory


def claim(
    project_url: str,
    app_id: str,
    record: Mapping[str, Any] | None = None,
    timeout_s: float | None = None,
    share: str | None = None,
) -> RunDir:
    """The next free run directory of an application: ``Experiments/<app_id>_<n>``, n from 1.

    ``record`` becomes its ``run.json``, written exclusively: two callers at the same time get two
    directories. ``share``: who besides its owner may look into it, see ``privacy.mode_of``.
    """
    mode = privacy.mode_of(share)
    if not app_id or "/" in app_id:
        raise ArgumentError(f"app_id={app_id!r}: it names a directory, so it must not be empty or hold a '/'")
    experiments = urls.join(project_url, EXPERIMENTS)
    system = for_url(project_url, timeout_s)
    number = _highest(system, experiments, app_id) + 1
    if number == 1:
        make_project(project_url, mode, timeout_s)
    _open_the_way(system, project_url, mode)
    while True:
        run = RunDir(urls.join(experiments, f"{app_id}_{number}"), timeout_s)
        system.make_dirs(run.url, mode)
        try:
            system.write_bytes(run.run_json, to_json(record or {"run_id": run.run_id}), overwrite=False)
            return run
        except PathExists:
            number += 1


def make_project(project_url: str, mode: int | None = None, timeout_s: float | None = None) -> None:
    """The project is a folder, or becomes one: as open as ``mode``, by default as ``HOPSML_SHARE`` says."""
    system, mode = for_url(project_url, timeout_s), privacy.mode_of(None) if mode is None else mode
    try:
        found = system.status(project_url)
    except PathNotFound:
        system.make_dirs(project_url, mode)
        return
    if not found.is_dir:
        raise PathExists(
            f"the project {project_url} is a file; HOPSML_PROJECT_URL must name a folder, or one that can be made",
            project_url,
        )


def _open_the_way(system: FileSystem, project_url: str, mode: int) -> None:
    """Let whoever may look into the run come there, as far as the folders above it are ours to open."""
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
                logger.warning("the run is shared, but %s is not open to those who may read it; ask its owner", folder)


def parse_lines(text: str) -> list[dict[str, Any]]:
    """The JSON objects in a text with one a line; what is none is left out, as a last line that is half written."""
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
    """Raise ValueError for half of a character (a lone surrogate), which JSON can hold, and no answer of a server."""
    json.dumps(content, ensure_ascii=False).encode()


def to_json(record: Mapping[str, Any]) -> bytes:
    """UTF-8 JSON without secrets; numpy's scalars and arrays, paths and dataclasses become plain values, NaN stays NaN."""
    try:
        plain = json.loads(json.dumps(record, default=_plain))
        return (json.dumps(redact.record(plain), indent=1, ensure_ascii=False) + "\n").encode()
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
