"""Run record ``run.json``: specification and origin of a run, and the checks that a rerun makes of it.

    run.json                  verb, name, arguments, options, seed, source, hash and size of the shipped bytes; who, when
    code/function.pickle      the shipped bytes; code/script.py or cells.py, code/git.diff: the code around them
    environment.json          packages, Spark's settings, variables, driver's hardware, git, inputs of the driver
    worker.json inputs.jsonl  the chief's interpreter and machine; inputs recorded by the function
    .outputs.json status.json results of the run

No secret is recorded (``redact``); where the function was given one, its pickle contains a placeholder.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hopsml.core import redact
from hopsml.core.redact import REDACTED
from hopsml.errors import ArgumentError
from hopsml.storage import filesystem
from hopsml.storage.run_dir import RunDir
from hopsml.tracking import code, machine


def of_driver() -> dict[str, Any]:
    """Return the part of the record that describes the driver: user, host, command, time.

    It takes less than a millisecond.
    """
    script = code.script()
    return {
        "started": time.time(),
        "driver_process": machine.who(),
        "command": redact.command(sys.argv),
        "script": str(script) if script is not None else "",
        "working_directory": os.getcwd(),
        "python": machine.python()["version"],
    }


@dataclass(frozen=True)
class Shipped:
    """Bytes that a recorded run's workers received, checked against its record."""

    payload: bytes
    sha256: str


def shipped(directory: RunDir, record: Mapping[str, Any]) -> Shipped:
    """Return the function of a recorded run, still pickled; nothing of it is run here.

    Raises:
        ArgumentError: there is none, it is not the one that was recorded, or it was pickled by another minor version of
            Python, whose byte code this one cannot run.
    """
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
            f"run {directory.run_id} was made with Python {theirs}, and this is {ours}: byte code does not carry over; "
            f"rerun it with a Python {'.'.join(theirs.split('.')[:2])}"
        )
    payload = filesystem.for_url(directory.function).read_bytes(directory.function)
    digest = hashlib.sha256(payload).hexdigest()
    if digest != record.get("payload_sha256"):
        raise ArgumentError(
            f"{directory.function} is not what run {directory.run_id} recorded (sha256 {digest[:12]}, recorded "
            f"{str(record.get('payload_sha256'))[:12]}): it was changed or damaged since, and is not run"
        )
    return Shipped(payload, digest)


def given_environment(recorded: Mapping[str, str], current: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the call gave to its workers.

    Redacted ones are taken from the ``current`` environment.

    Raises:
        ArgumentError: naming redacted variables that are not set there.
    """
    missing = [name for name, value in recorded.items() if REDACTED in value and name not in current]
    if missing:
        raise ArgumentError(
            f"the run gave its workers {', '.join(missing)}, whose values are secret and were not recorded; set "
            f"{'it' if len(missing) == 1 else 'them'} in this environment and start again"
        )
    return {name: current[name] if REDACTED in value else value for name, value in recorded.items()}
