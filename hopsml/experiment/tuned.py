"""Records of ``tune_communication``, one file for each function and number of workers, and their use by runs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from msgspec.structs import replace

from hopsml.cluster.shared.spec import Communication, Section
from hopsml.core import settings
from hopsml.errors import ArgumentError, PathNotFound, StorageError
from hopsml.storage import urls
from hopsml.storage.filesystem import for_url, read_record

_Section = TypeVar("_Section", bound=Section)


def record_url(function: str, workers: int) -> str:
    """Return the URL of the record for a function and a number of workers."""
    name = re.sub(r"[^\w.-]+", "_", function)
    return urls.join(settings.project_url(), "Communication", f"{name}-{workers}.json")


def write_record(url: str, record: Mapping[str, Any]) -> None:
    """Write the record of a tuning; runs use its entries ``chosen``, ``ratio`` and ``settings``."""
    for_url(url).write_bytes(url, (json.dumps(record, indent=1) + "\n").encode())


def with_tuned_settings(communication: Communication, function: str, workers: int) -> tuple[Communication, str]:
    """Return a run's communication with the tuned settings, and a note.

    Settings that the call specifies remain. Nothing changes, which the note reports, if the project has no record for
    this function and number of workers, or if the record conflicts with the call.

    Raises:
        StorageError: The record cannot be read or is malformed, or the call names one that does not exist.
    """
    if not communication.tuned:
        return communication, ""
    named = communication.tuned if isinstance(communication.tuned, str) else ""
    url = named or record_url(function, workers)
    try:
        record = json.loads(read_record(url))
        given = dict(record["settings"])
        chosen, ratio, implementation = record["chosen"], float(record["ratio"]), given["implementation"]
    except PathNotFound:
        if named:
            raise
        return communication, f"tuned=True has no effect: {function}() was not tuned for {workers} workers ({url})"
    except (ArithmeticError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise StorageError(
            f"{url} is not a record of hopsml runs tune-communication ({type(error).__name__}: {error}); run that "
            "command again",
            url,
        ) from error
    if communication.implementation not in ("auto", implementation):
        return (
            communication,
            f"tuned has no effect: the run sets {communication.implementation}, and tuning chose {chosen}",
        )
    try:
        found = _completed(communication, given)
    except ArgumentError as error:
        return communication, f"tuned has no effect: tuning chose {chosen}, and {error}"
    return found, f"tuned communication: {chosen}, {ratio:.2f} of the time with the default settings"


def _completed(section: _Section, given: Mapping[str, Any]) -> _Section:
    """Return the section, and those in it, with the given values where it still has the defaults."""
    unsaid, values = type(section)(), {}
    for name in section.__struct_fields__:
        own = getattr(section, name)
        if isinstance(own, Section):
            values[name] = _completed(own, given)
        elif own == getattr(unsaid, name) and name in given:
            values[name] = given[name]
    return replace(section, **values)
