"""Client of a driver's log stream: reads server-sent events and returns text.

After a connection failure it reconnects, and continues after the last event that it received.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from hopsml.core.decoding import MALFORMED
from hopsml.errors import ArgumentError, ServiceError

PATIENCE_S = 60.0  # seconds for which an unreachable server is retried
PAUSE_S = 0.5
# Opens a stream; the arguments are the query and the id of the last event that was received ("" for none). Yields
# lines.
Opens = Callable[[Mapping[str, Any], str], AbstractContextManager[Iterable[bytes]]]


class StreamUnavailable(Exception):
    """Error for a server without this stream: its hopsml is older, or the job does not exist."""


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One server-sent event of a stream."""

    id: str
    kind: str
    data: dict[str, Any]


def parse_events(lines: Iterable[bytes]) -> Iterator[ServerEvent]:
    """Parse the complete events of a stream of lines; an incomplete last event is dropped."""
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


def follow_log(
    opens: Opens,
    task: str,
    *,
    pause: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[str]:
    """Yield the text of a task's driver log until the job ends, and reconnect after failures.

    Args:
        opens: Opens the stream.
        task: Name of the task.
        pause: Sleeps between two attempts.
        clock: Monotonic time, in seconds.

    Raises:
        StreamUnavailable: The first attempt finds no stream at this address.
        ServiceError: For a minute, the server has been unreachable or has sent events that cannot be read.
    """
    at, application, patient_until, problem = "", "", clock() + PATIENCE_S, ""
    while True:
        unless_readable = patient_until  # for a connection that sends nothing that can be read
        try:
            with opens({"task": task, "application": application}, at) as lines:
                for event in parse_events(lines):
                    at, application = event.id, event.data.get("application", application)
                    patient_until = 0.0
                    if event.kind == "log":
                        yield event.data["text"]
                        unless_readable = 0.0
                    if event.kind == "end":
                        return
            problem = "the server ended the stream"
        except StreamUnavailable:
            if not at:
                raise
            problem = "the server no longer has this stream"
        except ArgumentError:  # listed first, as it is also a ValueError
            raise
        except (OSError, http.client.HTTPException) as error:
            problem = str(error) or type(error).__name__
        except MALFORMED as error:
            problem, patient_until = f"its events cannot be read: {error}"[:200], unless_readable
        patient_until = patient_until or clock() + PATIENCE_S
        if clock() >= patient_until:
            raise ServiceError(
                f"the job service no longer answers ({problem}), and the job continues without it; check that "
                "`hopsml server` is running"
            )
        pause(PAUSE_S)
