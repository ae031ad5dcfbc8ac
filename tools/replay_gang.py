"""Replay the events of a run's gang and show its decisions: ``python -m tools.replay_gang RUN``.

RUN is the directory, or the id, of a run that did not finish; its ``gang.jsonl``, written by ``gang_log.py``, is read. Each
event with a consequence is shown with its time, the decisions, and the phase if it is a new one.
The exit status is 1 if this hopsml decides differently from the one that wrote the file.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

import hopsml
from hopsml.cluster.driver.gang_log import VERSION, described
from hopsml.cluster.gang import events
from hopsml.cluster.gang.elastic_gang import ElasticGang
from hopsml.cluster.gang.gang import Gang
from hopsml.cluster.gang.growing_gang import GrowingGang
from hopsml.cluster.gang.independent_gang import IndependentGang
from hopsml.cluster.gang.mending_gang import MendingGang
from hopsml.cluster.gang.server_gang import ServerGang
from hopsml.core import redact, settings
from hopsml.errors import HopsmlError
from hopsml.storage.run_dir import find

_KINDS = (Gang, ElasticGang, MendingGang, GrowingGang, IndependentGang, ServerGang)
MACHINES: dict[str, type[Gang]] = {one.__name__: one for one in _KINDS}


class Differs(Exception):
    """Error of events that do not lead to the recorded decisions."""


@dataclass(frozen=True)
class Step:
    """One event with its actions, and the phase after it."""

    at: float
    event: dict[str, Any] | None
    actions: list[dict[str, Any]]
    phase: str


def replay(content: bytes) -> Iterator[Step]:
    """Yield the steps of a replayed ``gang.jsonl``; raise Differs at the first one that differs from the record."""
    first, *lines = map(json.loads, content.splitlines())
    if first["version"] != VERSION:
        raise Differs(f"the file is of version {first['version']}, and this hopsml reads {VERSION}")
    machine = msgspec.convert(first["state"], MACHINES[first["machine"]], dec_hook=lambda kind, value: Counter(value))
    for number, line in enumerate(lines, first["dropped"]):
        event = _event(line["event"])
        actions = machine.begin(line["at"]) if event is None else machine.handle(event, line["at"])
        # As for the file: a masked part of an event may be masked differently in a sentence that contains it.
        decided = json.loads(json.dumps(redact.record([described(one) for one in actions])))
        found = {"actions": decided, "phase": machine.phase.value}
        recorded = {"actions": line["actions"], "phase": line["phase"]}
        if found != recorded:
            raise Differs(
                f"event {number}, {line['event']}: hopsml {first['hopsml']} decided {recorded}, hopsml {hopsml.__version__} "
                f"decides {found}"
            )
        yield Step(line["at"], line["event"], decided, machine.phase.value)


def _event(line: dict[str, Any] | None) -> events.Event | None:
    if line is None:
        return None
    fields = dict(line)
    event: events.Event = msgspec.convert(fields, getattr(events, fields.pop("kind")))
    return event


def shown(content: bytes) -> Iterator[str]:
    """Yield the lines of the output; raises Differs as ``replay`` does."""
    first = json.loads(content.split(b"\n", 1)[0])
    yield f"{first['machine']}, recorded by hopsml {first['hopsml']}"
    if first["dropped"]:
        yield f"the first {first['dropped']} events were dropped; before the next one: {first['state']['phase']}"
    phase, quiet, count = "", 0, 0
    for step in replay(content):
        count += 1
        if not step.actions and step.phase == phase:
            quiet += 1
            continue
        if quiet:
            yield f"              ({quiet} without consequence)"
        when = datetime.fromtimestamp(first["clock"] + step.at).isoformat(" ", "milliseconds")[11:]
        yield f"{when}  {_words(step.event) if step.event else 'begin'}"
        yield from (f"                -> {_words(action)}" for action in step.actions)
        if step.phase != phase:
            yield f"              == {step.phase}"
        phase, quiet = step.phase, 0
    yield f"all {count} events give the decisions that were recorded"


def _words(value: dict[str, Any]) -> str:
    """Return an event or action as Python source, without empty fields."""
    said = {name: item for name, item in value.items() if name != "kind" and (item == 0 or item) and item is not False}
    return f"{value['kind']}({', '.join(f'{name}={item!r}' for name, item in said.items())})"


def main(run: str) -> int:
    """Print the steps of a run's gang; return the exit status."""
    try:
        for line in shown(find(run, settings.project_url()).read_gang_log()):
            print(line)
    except (Differs, HopsmlError) as error:
        print(f"replay_gang: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if len(sys.argv) == 2 else __doc__)
