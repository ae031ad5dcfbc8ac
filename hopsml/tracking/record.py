"""Run record ``run.json``: specification and origin of a run, and the checks that a rerun makes of it.

    run.json                  verb, name, arguments, options, seed, source, hash and size of the shipped bytes; who, when
    code/function.pickle      the shipped bytes; code/script.py or cells.py, code/git.diff: the code around them
    environment.json          packages, Spark's settings, variables, driver's hardware, git, inputs of the driver
    worker.json inputs.jsonl  the chief's interpreter and machine; inputs recorded by the function
    .outputs.json status.json results of the run

``RunRecordWriter`` writes the slow part, ``code/`` and ``environment.json``, on a thread while the run is active; a record
that cannot be written never fails the run. No secret is recorded (``redact``); where the function was given one, its
pickle contains a placeholder.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from hopsml.core import redact
from hopsml.core.callbacks import nonblocking_logger
from hopsml.core.redact import REDACTED
from hopsml.errors import ArgumentError, PathNotFound, SafeMode, StorageTimeout, StorageUnavailable
from hopsml.storage import filesystem, urls
from hopsml.storage.run_dir import RunDir, to_json
from hopsml.tracking import inputs, provenance
from hopsml.tracking.provenance import Code

logger = nonblocking_logger(__name__)

JOIN_S = 60.0
FORMAT = 1  # of run.json; records without this entry are older, and are read as well
_STORE_IS_AWAY = (SafeMode, StorageTimeout, StorageUnavailable)


class RunRecordWriter:
    """Writer of one run's record; call ``join`` before the run is reported as complete."""

    def __init__(
        self,
        directory: RunDir,
        payload: bytes | None,
        *,
        more: Mapping[str, Callable[[], Any]] | None = None,
        code_of: RunDir | None = None,
    ) -> None:
        """Prepare the record of a run; ``start`` writes it.

        Args:
            directory: the run directory.
            payload: bytes that were shipped to the workers; None if there are none.
            more: further entries of ``environment.json``, each computed on the thread.
            code_of: the run that this one repeats, whose script and git state are copied.
        """
        self.directory, self.problems = directory, list[str]()
        self._is_away = False  # shared storage unreachable: each further file would delay the run's end by a timeout
        self._payload, self._more, self._code_of = payload, dict(more or {}), code_of
        self._inputs = inputs.recorded_inputs()
        self._thread = threading.Thread(target=self._record, name=f"hopsml-record-{directory.run_id}", daemon=True)

    def start(self) -> RunRecordWriter:
        """Start writing on a background thread, and return this object."""
        self._thread.start()
        return self

    def join(self, timeout_s: float = JOIN_S) -> None:
        """Wait until everything is written, at most ``timeout_s`` seconds; raises nothing."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._note(f"not complete after {timeout_s:g} s")

    def _record(self) -> None:
        began = time.monotonic()
        if (payload := self._payload) is not None:
            self._attempt("the function", lambda: self._write(self.directory.function, payload))
        around = self._attempt("the code around the function", self._code) or Code()
        for name, content in around.files.items():
            self._attempt(name, partial(self._write, urls.join(self.directory.code, name), content))
        record: dict[str, Any] = {
            "code": around.facts,
            "python": provenance.interpreter_facts(),
            "packages": self._attempt("the packages", provenance.packages),
            "environment": provenance.environment(),
            "hardware": self._attempt("the hardware", provenance.hardware_facts),
            "inputs": self._inputs,
        }
        for name, compute in self._more.items():
            record[name] = self._attempt(name, compute)
        record["problems"] = list(self.problems)
        self._attempt("the environment", lambda: self._write(self.directory.environment_json, to_json(record)))
        logger.debug("record of %s written in %.3f s", self.directory.url, time.monotonic() - began)

    def _code(self) -> Code:
        return provenance.collect_code() if self._code_of is None else read_code(self._code_of)

    def _write(self, url: str, content: bytes) -> None:
        if not self._is_away:
            filesystem.for_url(url).write_bytes(url, content)

    def _attempt(self, what: str, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except Exception as error:  # noqa: BLE001 a record must not fail what it records
            self._is_away = self._is_away or isinstance(error, _STORE_IS_AWAY)
            self._note(f"{what}: {type(error).__name__}: {error}")
            return None

    def _note(self, problem: str) -> None:
        self.problems.append(redact.text(problem))
        logger.warning("the record of run %s is incomplete: %s", self.directory.run_id, problem)


def read_code(directory: RunDir) -> Code:
    """Return the code around a recorded run's function, as it was recorded."""
    found = Code()
    try:
        found.facts = dict(directory.read_json(directory.environment_json).get("code") or {})
        entries = filesystem.for_url(directory.code).list_dir(directory.code)
    except PathNotFound:
        return found
    for entry in entries:
        is_code = not entry.is_dir and not urls.is_temporary(entry.url) and entry.url != directory.function
        if is_code and entry.length <= filesystem.MOST_RECORD_BYTES:
            found.files[entry.name] = filesystem.for_url(entry.url).read_bytes(entry.url)
    return found


def driver_record() -> dict[str, Any]:
    """Return the part of the record that describes the driver: user, host, command, time.

    It takes less than a millisecond.
    """
    script = provenance.script_path()
    return {
        "format": FORMAT,
        "started": time.time(),
        "driver_process": provenance.process_identity(),
        "command": redact.command(sys.argv),
        "script": str(script) if script is not None else "",
        "working_directory": os.getcwd(),
        "python": provenance.interpreter_facts()["version"],
    }


@dataclass(frozen=True)
class ShippedFunction:
    """Bytes that a recorded run's workers received, checked against its record."""

    payload: bytes
    sha256: str


def read_shipped_function(directory: RunDir, record: Mapping[str, Any]) -> ShippedFunction:
    """Return the function of a recorded run, still pickled; nothing of it is run here.

    Raises:
        ArgumentError: there is none, it is not the one that was recorded, the record has a newer format, or it was
            pickled by another minor version of Python, whose byte code this one cannot run.
    """
    if record.get("format", 0) > FORMAT:
        raise ArgumentError(
            f"run {directory.run_id} was recorded by a newer hopsml (format {record['format']}; this one reads "
            f"{FORMAT}): repeat it with that version"
        )
    if why := record.get("unrecorded"):
        raise ArgumentError(f"run {directory.run_id} cannot be repeated: {why}; start its script again instead")
    if not filesystem.exists(directory.function):
        raise ArgumentError(
            f"run {directory.run_id} cannot be repeated: there is no {directory.function}; the run was made by an older "
            "hopsml or ended before it was written. Start its script again instead"
        )
    theirs, ours = str(record.get("python", "")), ".".join(map(str, sys.version_info[:3]))
    if theirs.split(".")[:2] != ours.split(".")[:2]:
        raise ArgumentError(
            f"run {directory.run_id} was recorded with Python {theirs}, but this is Python {ours}, which cannot "
            f"execute its byte code; repeat the run with Python {'.'.join(theirs.split('.')[:2])}"
        )
    payload = filesystem.for_url(directory.function).read_bytes(directory.function)
    digest = hashlib.sha256(payload).hexdigest()
    if digest != record.get("payload_sha256"):
        raise ArgumentError(
            f"{directory.function} differs from the record of run {directory.run_id} (sha256 {digest[:12]}, recorded "
            f"{str(record.get('payload_sha256'))[:12]}): it was changed or damaged, and is not executed"
        )
    return ShippedFunction(payload, digest)


def given_environment(recorded: Mapping[str, str], current: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the call gave to its workers.

    Redacted ones are taken from the ``current`` environment.

    Raises:
        ArgumentError: naming redacted variables that are not set there.
    """
    missing = [name for name, value in recorded.items() if REDACTED in value and name not in current]
    if missing:
        raise ArgumentError(
            f"the workers of the run had the variables {', '.join(missing)}, whose values are secret and were not "
            f"recorded; set {'it' if len(missing) == 1 else 'them'} in this environment and start again"
        )
    return {name: current[name] if REDACTED in value else value for name, value in recorded.items()}
