"""Tests that a failed run stores its gang's events and decisions, and that a replay decides the same."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopsml.cluster.driver import run_state
from hopsml.cluster.driver.run_state import GangLog
from hopsml.cluster.gang import events
from hopsml.cluster.gang.elastic.machine import ElasticGroupMachine
from hopsml.cluster.gang.events import Phase
from hopsml.cluster.gang.independent_machine import IndependentGroupMachine
from hopsml.cluster.gang.machine import GroupMachine
from hopsml.cluster.gang.server_machine import ServerGroupMachine
from hopsml.cluster.shared.spec import ElasticGroup, FixedGroup, IndependentGroup, ServerGroup
from hopsml.errors import WorkerFailed
from hopsml.storage.run_dir import RunDir
from tests.helpers.clock import END_S
from tests.helpers.cluster.backend_contract import submit
from tests.unit.cluster import test_elastic_gang, test_gang, test_given_back, test_independent_gang
from tests.unit.cluster.elastic_group import Kind, continuing_group, restarting_group
from tools import replay_gang
from tools.replay_gang import Differs, replay

pytestmark = pytest.mark.fast

REPOSITORY = Path(__file__).parents[3]


def watch(machine: GroupMachine) -> GangLog:
    """Return a log of all events that this machine handles from now on."""
    log, begin, handle = GangLog(machine), machine.begin, machine.handle

    def logged_begin(now: float) -> list[events.Action]:
        actions = begin(now)
        log.add(now, None, actions)
        return actions

    def logged_handle(event: events.Event, now: float) -> list[events.Action]:
        actions = handle(event, now)
        log.add(now, event, actions)
        return actions

    machine.begin, machine.handle = logged_begin, logged_handle  # type: ignore[method-assign]
    return log


@contextmanager
def watched() -> Iterator[list[GangLog]]:
    """The logs of all machines that are made inside."""
    logs: list[GangLog] = []
    with pytest.MonkeyPatch.context() as patch:
        for kind in (ElasticGroupMachine, IndependentGroupMachine, ServerGroupMachine):

            def make(machine: Any, *given: Any, made: Callable[..., None] = kind.__init__, **named: Any) -> None:
                made(machine, *given, **named)
                logs.append(watch(machine))

            patch.setattr(kind, "__init__", make)
        patch.setattr(run_state, "PART", 16)  # so that some are dropped
        yield logs


def check_replays(logs: list[GangLog]) -> None:
    assert logs
    for log in logs:
        steps = list(replay(log.to_jsonl()))
        assert len(steps) <= 32 and (not steps or steps[-1].phase == log._gang.phase.value)


@settings(max_examples=60, deadline=None)
@given(test_gang.sequences)
def test_log_of_any_fixed_group_can_be_replayed(sequence: list[tuple[events.Event, float]]) -> None:
    with watched() as logs:
        test_gang.play(sequence)
    check_replays(logs)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([restarting_group, continuing_group]), test_elastic_gang._ROUNDS)
def test_log_of_any_elastic_group_can_be_replayed(kind: Kind, rounds: list[list[tuple[str, str, Any]]]) -> None:
    with watched() as logs:
        test_elastic_gang.test_every_event_sequence_preserves_the_invariants_and_can_be_cancelled.hypothesis.inner_test(
            kind, rounds
        )
    check_replays(logs)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), test_independent_gang.SEQUENCES, st.booleans())
def test_log_of_any_independent_group_can_be_replayed(size: int, moves: list[tuple[str, int]], complete: bool) -> None:
    play = test_independent_gang.test_every_event_sequence_counts_lanes_once_and_ends
    with watched() as logs:
        play.hypothesis.inner_test(size, moves, complete)
    check_replays(logs)


@settings(max_examples=60, deadline=None)
@given(test_given_back.RUNS)
def test_log_of_successive_runs_can_be_replayed(runs: list[tuple[str, list[tuple[str, int]]]]) -> None:
    with watched() as logs:
        test_given_back.test_ended_run_holds_no_agent_and_idle_agents_are_dismissed.hypothesis.inner_test(runs)
    check_replays(logs)


@pytest.mark.parametrize("name", replay_gang.OLD_MACHINES)
def test_records_of_the_first_version_can_be_replayed(name: str) -> None:
    content = (Path(__file__).parent / "fixtures" / "gang_log" / f"{name}.jsonl").read_bytes()
    assert json.loads(content.split(b"\n")[0])["machine"] == name
    assert len(list(replay(content))) >= 10


def test_first_version_record_that_starts_while_agents_are_awaited_can_be_replayed() -> None:
    """Of a group of fixed size that has waited for longer than the oldest events are retained."""
    content = (Path(__file__).parent / "fixtures" / "gang_log" / "Gang.jsonl").read_text()
    first, begin, *others = map(json.loads, content.splitlines())
    assert begin["event"] is None and others[0]["event"]["kind"] == "Granted"
    first["dropped"], first["state"]["deadline"] = 1, begin["at"] + first["state"]["spec"]["start_timeout_s"]
    assert len(list(replay("\n".join(map(json.dumps, (first, *others))).encode()))) == len(others)


@pytest.mark.parametrize(
    ("kind", "group"),
    [
        (ElasticGroupMachine, FixedGroup(size=2)),
        (ElasticGroupMachine, ElasticGroup(size=2)),
        (IndependentGroupMachine, IndependentGroup(size=2)),
        (ServerGroupMachine, ServerGroup(size=2)),
    ],
)
def test_final_phases_have_a_transition_for_granted_agents_only(kind: type[GroupMachine], group: Any) -> None:
    table = kind(group).table
    assert {event for phase, event in table if phase.is_final} == {events.Granted}
    for event in (events.Tick, events.MemberLost, events.Refused, events.CancelRequested, events.Granted):
        missing = {phase for phase in Phase if not phase.is_final and (phase, event) not in table}
        assert not missing - {Phase.REFORMING, Phase.STOPPING}, event


def failed_log(cause: str = "killed by signal 9") -> GangLog:
    """Of a run whose rank 1 fails."""
    machine = ElasticGroupMachine(FixedGroup(size=2))
    log = watch(machine)
    machine.begin(10.0)
    machine.handle(events.Granted(("a", "b")), 11.0)
    for name in ("a", "b"):
        machine.handle(events.Started(name, 0), 12.0)
        machine.handle(events.Tick(), 12.5)
    machine.handle(events.Failed("b", 0, cause, outside=True), 13.0)
    for name in ("a", "b"):
        machine.handle(events.Closed(name, 0), 14.0)
    assert machine.phase is Phase.FAILED
    return log


def test_replay_is_shown_by_phase() -> None:
    lines = list(replay_gang.shown(failed_log().to_jsonl()))
    assert [line.strip() for line in lines if line.strip().startswith("==")] == [
        "== waiting for executors",
        "== starting workers",
        "== running",
        "== stopping",
        "== FAILED",
    ]
    assert any(line.endswith("Granted(agent_ids=['a', 'b'])") for line in lines)
    assert "              (2 without consequence)" in lines
    assert lines[-1] == "all 9 events give the decisions that were recorded"


@pytest.mark.parametrize(("number", "key"), [(2, "actions"), (7, "phase")])
def test_different_decision_in_a_replay_is_reported(number: int, key: str) -> None:
    lines = [json.loads(line) for line in failed_log().to_jsonl().splitlines()]
    lines[number][key] = lines[number - 1][key]
    with pytest.raises(Differs, match=rf"event {number - 1}, .*hopsml .* decided .*hopsml .* decides "):
        list(replay("\n".join(map(json.dumps, lines)).encode()))


def test_secrets_are_masked_and_the_replay_is_complete() -> None:
    content = failed_log("401 for https://user:hunter2-is-it@store/x?token=abcdef123456").to_jsonl()
    assert b"hunter2" not in content and b"abcdef123456" not in content
    assert len(list(replay(content))) == 9


def test_oldest_events_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_state, "PART", 4)
    log = failed_log()
    assert log.dropped == 4
    content = log.to_jsonl()
    steps = list(replay(content))
    assert [step.at for step in steps] == [12.0, 12.5, 13.0, 14.0, 14.0]
    assert "the first 4 events were dropped; before the next one: starting workers" in list(replay_gang.shown(content))


def test_only_a_failed_run_stores_the_events_of_its_gang(store: Path) -> None:
    def fails() -> None:
        raise ValueError("the wall")

    run = submit(fails, 2)
    with pytest.raises(WorkerFailed, match="the wall"):
        run.result(END_S)
    content = run.directory.read_gang_log()
    *_, last = replay(content)
    assert last.phase == "FAILED"
    (outcome,) = [action for action in last.actions if action["kind"] == "ConcludeRun"]
    assert outcome["error"] == "worker" and outcome["reason"].endswith("ValueError: the wall")
    command = [sys.executable, "-m", "tools.replay_gang", run.run_dir]
    shown = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert "== starting workers\n" in shown.stdout and "== FAILED\n" in shown.stdout

    finished = submit(lambda: 1, 1)
    finished.result(END_S)
    refused = subprocess.run([*command[:-1], finished.run_dir], cwd=REPOSITORY, capture_output=True, text=True)
    assert refused.returncode == 1 and "gang.jsonl" in refused.stderr


@pytest.mark.fast
@pytest.mark.parametrize("damage", ["cut", "empty", "deep", "unknown kind", "other types"])
def test_damaged_gang_log_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str) -> None:
    whole = failed_log().to_jsonl()
    first = whole.splitlines(keepends=True)[0]
    content = {
        "cut": whole[:-100],
        "empty": b"",
        "deep": first + b"[" * 100_000,
        "unknown kind": whole.replace(b'"kind": "Failed"', b'"kind": "msgspec"'),
        "other types": first.replace(b'"generation": 0', b'"generation": []') + b"{}\n",
    }[damage]
    directory = RunDir(f"file://{tmp_path}")
    directory.write_run({"name": "damaged"})
    directory.write_gang_log(content)
    assert replay_gang.main(str(tmp_path)) == 1
    assert "is damaged or incomplete" in capsys.readouterr().err
