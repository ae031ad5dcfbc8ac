"""A driver's log as it comes over HTTP: events in, text out; a connection that broke is made anew where it had come to."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from hopsml.errors import ArgumentError, ServiceError

PATIENCE_S = 60.0  # for a server that is away
PAUSE_S = 0.5
# Opens a stream with a query, and the id of the newest event that was seen, "" for none; its lines.
Opens = Callable[[Mapping[str, Any], str], AbstractContextManager[Iterable[bytes]]]


class NoStreamHere(Exception):
    """The server has no such address: it is of an older hopsml, or there is no such job."""


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event of a stream."""

    id: str
    kind: str
    data: dict[str, Any]


def events(lines: Iterable[bytes]) -> Iterator[ServerEvent]:
    """Whole events; what an end cut off is left out."""
    found: dict[str, str] = {}
    for line in lines:
        text = line.decode().rstrip("\r\n")
        if text:
            name, _, value = text.partition(": ")
            found[name] = value
        elif "data" in found:
            yield ServerEvent(found.get("id", ""), found.get("event", ""), json.loads(found["data"]))
            found = {}
        else:
            found = {}


def pieces(
    opens: Opens,
    task: str,
    *,
    pause: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[str]:
    """What is printed, to the end of the job.

    Raises NoStreamHere where it is no address at first, ServiceError where the server is away for a minute.
    """
    at, application, patient_until, problem = "", "", clock() + PATIENCE_S, ""
    while True:
        try:
            with opens({"task": task, "application": application}, at) as lines:
                for event in events(lines):
                    at, patient_until = event.id, 0.0
                    application = event.data.get("application", application)
                    if event.kind == "log":
                        yield event.data["text"]
                    if event.kind == "end":
                        return
            problem = "it ended the stream"
        except NoStreamHere:
            if not at:
                raise
            problem = "it has no such stream any more"
        except ArgumentError:  # it is a ValueError, too
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:
            problem = str(error) or type(error).__name__
        patient_until = patient_until or clock() + PATIENCE_S
        if clock() >= patient_until:
            raise ServiceError(
                f"the job service does not answer any more ({problem}); see whether `hopsml server` runs: the job goes on "
                "without it"
            )
        pause(PAUSE_S)
