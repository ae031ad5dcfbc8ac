"""Replay the events of a run's gang and show its decisions: ``python -m tools.replay_gang RUN``.

RUN is the directory, or the id, of a run that did not finish; its ``gang.jsonl``, written by ``driver/run_state.py``,
is read. Each event with a consequence is shown with its time, the decisions, and the phase if it is a new one.
The exit status is 1 if this hopsml decides differently from the one that wrote the file.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

import hopsml
from hopsml.cluster.driver.run_state import VERSION, event_record
from hopsml.cluster.gang import events
from hopsml.cluster.gang.elastic.machine import ElasticGroupMachine
from hopsml.cluster.gang.elastic.state import Commits, FailurePolicy, GroupProgress, Growth, InPlaceState, Membership
from hopsml.cluster.gang.independent_machine import IndependentGroupMachine
from hopsml.cluster.gang.machine import GroupMachine
from hopsml.cluster.gang.server_machine import ServerGroupMachine
from hopsml.core import redact, settings
from hopsml.core.decoding import MALFORMED
from hopsml.errors import HopsmlError
from hopsml.storage.run_dir import find_run_dir

_KINDS: tuple[type[GroupMachine], ...] = (ElasticGroupMachine, IndependentGroupMachine, ServerGroupMachine)
MACHINES = {one.__name__: one for one in _KINDS}
# Classes that records of version 1 name -> today's class, and what its group could do in place: lose, admit members.
OLD_MACHINES: dict[str, tuple[type[GroupMachine], bool, bool]] = {
    "Gang": (ElasticGroupMachine, False, False),
    "ElasticGang": (ElasticGroupMachine, False, False),
    "MendingGang": (ElasticGroupMachine, True, False),
    "GrowingGang": (ElasticGroupMachine, True, True),
    "IndependentGang": (IndependentGroupMachine, False, False),
    "ServerGang": (ServerGroupMachine, False, False),
}
_COMPONENTS = {
    "membership": Membership,
    "commits": Commits,
    "policy": FailurePolicy,
    "progress": GroupProgress,
    "in_place": InPlaceState,
    "growth": Growth,
}
_OLD_FIELDS = {"newest_of": "commits"}  # field of a component -> its name in version 1, if it had another one


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
    machine = _machine(first)
    for number, line in enumerate(lines, first["dropped"]):
        event = _event(line["event"])
        actions = machine.begin(line["at"]) if event is None else machine.handle(event, line["at"])
        # As for the file: a masked part of an event may be masked differently in a sentence that contains it.
        decided = json.loads(json.dumps(redact.record([event_record(one) for one in actions])))
        found = {"actions": decided, "phase": machine.phase.value}
        recorded = {"actions": line["actions"], "phase": line["phase"]}
        if found != recorded:
            raise Differs(
                f"event {number}, {line['event']}: hopsml {first['hopsml']} decided {recorded}, hopsml {hopsml.__version__} "
                f"decides {found}"
            )
        yield Step(line["at"], line["event"], decided, machine.phase.value)


def _machine(first: dict[str, Any]) -> GroupMachine:
    """Return the state machine that the first line describes, in its state before the events that follow."""
    if first["version"] not in (1, VERSION):
        raise Differs(f"the file is of version {first['version']}, and this hopsml reads 1 and {VERSION}")
    kind, state = MACHINES.get(first["machine"]), first["state"]
    if first["version"] == 1:
        kind, state = converted(first["machine"], state)
    machine: GroupMachine = msgspec.convert(state, kind, dec_hook=lambda kind, value: Counter(value))
    return machine


def converted(machine: str, state: dict[str, Any]) -> tuple[type[GroupMachine], dict[str, Any]]:
    """Return today's class and state for those of a record of version 1, whose fields were not in components."""
    kind, loses, admits = OLD_MACHINES[machine]
    found = dict(state)
    for component, its_class in _COMPONENTS.items() if kind is ElasticGroupMachine else ():
        names = {one.name: _OLD_FIELDS.get(one.name, one.name) for one in dataclasses.fields(its_class)}
        found[component] = {new: state[old] for new, old in names.items() if old in state}
    if kind is ElasticGroupMachine:
        found["in_place"]["enabled"], found["growth"]["enabled"] = loses, admits
        found["membership"].setdefault("target", state["spec"]["size"])  # a group of fixed size did not record it
    return kind, found


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
        for line in shown(find_run_dir(run, settings.project_url()).read_gang_log()):
            print(line)
    except (Differs, HopsmlError) as error:
        print(f"replay_gang: {error}", file=sys.stderr)
        return 1
    except (*MALFORMED, msgspec.MsgspecError) as error:
        print(f"replay_gang: gang.jsonl is damaged or incomplete ({error}); replay another run", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if len(sys.argv) == 2 else __doc__)
