"""Comparison of two runs: how they were made, and whether they have the same result. No side effects but reading.

The result is the same if every value that the functions returned is equal, to the last bit of every number, and so is
every file of the last checkpoint that holds weights. Paths within a run's own directory count as equal.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from hopsml.errors import PathNotFound
from hopsml.storage import filesystem, urls
from hopsml.storage.checkpoints import CORRUPT
from hopsml.storage.run_dir import RunDir, parse_step_name
from hopsml.tracking.catalog import StoredRun
from hopsml.tracking.inputs import sha256_of

MISSING = None
_NOTES = ("checkpoint.json", "manifest.json")  # contain an id and times that differ for each checkpoint
_SELF = "<this run>"
_ABOVE = ("verb", "name", "description", "seed")  # of the specification, which the record holds by themselves
_ESSENTIALS = ("verb", "name", "function", "workers", "seed", "backend", "profile")


@dataclass(frozen=True)
class Difference:
    """Entry in which two runs differ; None for a run that does not have it."""

    section: str
    name: str
    left: Any
    right: Any


@dataclass(frozen=True)
class Comparison:
    """Result of comparing the results of two runs.

    ``compared`` are the names of the entries that both have, ``differing`` those that differ, ``causes`` the
    differences in how the runs were made.
    """

    same: bool
    compared: tuple[str, ...] = ()
    differing: tuple[Difference, ...] = ()
    causes: tuple[Difference, ...] = field(default=(), compare=False)  # differences in how the runs were made


def differences(left: StoredRun, right: StoredRun) -> list[Difference]:
    """Return all entries in which two runs differ, by section."""
    found: list[Difference] = []
    for section, one, other in _sections(left, right):
        found += [
            Difference(section, name, one.get(name, MISSING), other.get(name, MISSING))
            for name in sorted(one.keys() | other.keys())
            if not is_equal_json(one.get(name, MISSING), other.get(name, MISSING))
        ]
    return found


def source_diff(left: StoredRun, right: StoredRun) -> str:
    """Return the unified diff of the two functions' sources; empty if they are equal."""
    lines = difflib.unified_diff(
        str(left.run.get("source", "")).splitlines(),
        str(right.run.get("source", "")).splitlines(),
        left.run_id,
        right.run_id,
        lineterm="",
    )
    return "\n".join(lines)


def compare_results(left: StoredRun, right: StoredRun, ignore: Collection[str] = ()) -> Comparison:
    """Compare outputs and last checkpoints of two runs.

    Args:
        left: one run.
        right: the other run.
        ignore: names of outputs that may differ, such as a measured time.
    """
    one, other = _results(left, ignore), _results(right, ignore)
    differing = [
        Difference("result", name, one.get(name, MISSING), other.get(name, MISSING))
        for name in sorted(one.keys() | other.keys())
        if name not in one or name not in other or not is_equal_json(one[name], other[name])
    ]
    if left.state != right.state:
        differing.insert(0, Difference("result", "state", left.state, right.state))
    causes = [found for found in differences(left, right) if found.section not in ("result", "machine")]
    return Comparison(not differing, tuple(sorted(one.keys() & other.keys())), tuple(differing), tuple(causes))


def is_equal_json(one: Any, other: Any) -> bool:
    """Return True if two JSON values are equal to the bit.

    NaN equals NaN, 1 is not 1.0 nor True, 0.0 is not -0.0.
    """
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(other)) or (
            one == other and math.copysign(1, one) == math.copysign(1, other)
        )
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(is_equal_json(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(is_equal_json, one, other))
    return bool(one == other)


def last_checkpoint_digests(directory: RunDir) -> dict[str, str]:
    """Return the digest of each file of the last checkpoint, by ``step/name``.

    Files that only describe the checkpoint are left out, and so are corrupt checkpoints.
    """
    try:
        entries = filesystem.for_url(directory.checkpoints).list_dir(directory.checkpoints)
    except PathNotFound:
        return {}
    steps = [
        entry
        for entry in entries
        if entry.is_dir
        and parse_step_name(entry.name) is not None
        and not filesystem.exists(urls.join(entry.url, CORRUPT))
    ]
    if not steps:
        return {}
    newest = max(steps, key=lambda entry: parse_step_name(entry.name) or 0)
    digests = {}
    for file in filesystem.walk(newest.url):
        if not file.is_dir and file.name not in _NOTES:
            digests[urls.relative(file.url, directory.checkpoints)] = sha256_of(file.url)
    return digests


def _sections(left: StoredRun, right: StoredRun) -> list[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    def both(section: str, take: Any) -> tuple[str, Mapping[str, Any], Mapping[str, Any]]:
        return section, take(left) or {}, take(right) or {}

    return [
        both("run", _essentials),
        both("arguments", lambda run: run.run.get("arguments")),
        both("specification", _asked),
        both("code", _code),
        both("inputs", _inputs),
        both("packages", lambda run: run.environment.get("packages")),
        both("python", lambda run: {**_of(run.environment, "python"), **_of_worker(run, "python")}),
        both("spark", lambda run: _of(run.environment, "spark").get("settings")),
        both("variables", lambda run: {**_of(run.environment, "environment"), **_of(run.worker, "environment")}),
        both("machine", _machine),
        both("result", lambda run: _outputs(run)),
    ]


def _of(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    return record.get(name) or {}


def _of_worker(run: StoredRun, name: str) -> dict[str, Any]:
    return {f"worker.{key}": value for key, value in _of(run.worker, name).items()}


def _essentials(run: StoredRun) -> dict[str, Any]:
    return {**{name: run.run.get(name) for name in _ESSENTIALS}, "state": run.state}


def _asked(run: StoredRun) -> dict[str, Any]:
    """Return the run's specification as flat settings, such as "group.min_size"."""
    found: dict[str, Any] = {}
    asked = {name: value for name, value in (run.run.get("spec") or {}).items() if name not in _ABOVE}
    for name, value in asked.items():
        inner = value.items() if isinstance(value, dict) else ()
        found |= {f"{name}.{one}": setting for one, setting in inner} or {name: value}
    return found


def _code(run: StoredRun) -> dict[str, Any]:
    code = _of(run.environment, "code")
    git = code.get("git") or {}
    return {
        "function": run.run.get("code_sha256"),
        "script": (code.get("script") or {}).get("sha256"),
        "git commit": git.get("commit"),
        "git diff": git.get("diff_sha256"),
    }


def _inputs(run: StoredRun) -> dict[str, Any]:
    noted = [*(run.environment.get("inputs") or []), *run.inputs]
    return {
        str(entry.get("url")): entry.get("checksum") or entry.get("problem")
        for entry in noted
        if isinstance(entry, dict)
    }


def _machine(run: StoredRun) -> dict[str, Any]:
    return {**_of(run.environment, "hardware"), **_of_worker(run, "hardware")}


def _outputs(run: StoredRun) -> dict[str, Any]:
    return {name: _neutral(value, run) for name, value in run.outputs.items() if name != "log"}


def _results(run: StoredRun, ignore: Collection[str]) -> dict[str, Any]:
    checkpoint = {f"checkpoint {name}": digest for name, digest in last_checkpoint_digests(run.directory).items()}
    return {name: value for name, value in {**_outputs(run), **checkpoint}.items() if name not in ignore}


def _neutral(value: Any, run: StoredRun) -> Any:
    """Return the value with the run's own URL and id replaced, as they differ for each run."""
    if isinstance(value, str):
        return value.replace(run.directory.url, _SELF).replace(run.run_id, _SELF)
    if isinstance(value, list):
        return [_neutral(item, run) for item in value]
    if isinstance(value, dict):
        return {name: _neutral(item, run) for name, item in value.items()}
    return value
