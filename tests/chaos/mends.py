"""Scenarios for groups that continue in place, or are about to; over hopsml's collective only.

Reconfiguring in place takes some milliseconds. To disturb it midway, a member that should continue is stopped before
another one is killed: the others cannot reach it until it is resumed, or until they give up.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from tests.chaos import networks
from tests.chaos.scenarios import Scenario, Trial, network_lost
from tests.helpers.cluster.workloads import wait_until

WAIT_S = 60.0
SHORT_S = 1.0  # less than the others try to reach each other


def _lose(*ranks: int, then: int) -> Callable[[Trial], None]:
    """Kill these ranks simultaneously, and wait for steps of a group with ``left`` members."""

    def disturb(trial: Trial) -> None:
        generation = trial.await_world(3)
        trial.await_step(7)
        victims = [trial.pid(rank, generation) for rank in ranks]
        trial.disturbed = time.time()
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        trial.await_world(then, generation)
        trial.hurry()

    return disturb


def _amid(harm: Callable[[Trial, int], None], then: int) -> Callable[[Trial], None]:
    """Kill rank 2 while rank 1 is stopped, and call ``harm`` once the driver has told the others to continue."""

    def disturb(trial: Trial) -> None:
        generation = trial.await_world(3)
        trial.await_step(7)
        os.kill(trial.pid(1, generation), signal.SIGSTOP)
        trial.disturbed = time.time()
        os.kill(trial.pid(2, generation), signal.SIGKILL)
        wait_until(
            lambda: trial.run.status()["generation"] > generation,
            "the beginning of an in-place reconfiguration",
            WAIT_S,
        )
        harm(trial, generation)
        trial.await_world(then, generation)
        trial.hurry()

    return disturb


def _send(rank: int, number: int) -> Callable[[Trial, int], None]:
    return lambda trial, generation: os.kill(trial.pid(rank, generation), number)


def _wake(trial: Trial, generation: int) -> None:
    time.sleep(SHORT_S)  # the harm itself, not a wait for something
    os.kill(trial.pid(1, generation), signal.SIGCONT)


def _stopped_agent(trial: Trial) -> None:
    """Rank 1 could continue, but its stopped agent does not forward the message.

    The others continue without it or restart, depending on which is noticed first: its silence, or its absence.
    """
    generation = trial.await_world(3)
    trial.await_step(7)
    trial.above(1, "agent", generation).send_signal(signal.SIGSTOP)
    trial.disturbed = time.time()
    os.kill(trial.pid(2, generation), signal.SIGKILL)
    wait_until(lambda: _steps_behind(trial, generation) or trial.run.done(), "a step of a later generation", WAIT_S)
    trial.hurry()


def _steps_behind(trial: Trial, generation: int) -> bool:
    made = [int(path.name.partition("-")[0]) for path in trial.folder.glob("[0-9]*-*-0.npy")]
    return max(made, default=-1) > generation


def _one_after_the_other(trial: Trial) -> None:
    """Kill a second rank right after the first reconfiguration, so that shares, ranks and ports have changed once."""
    generation = trial.await_world(3)
    trial.await_step(7)
    trial.disturbed = time.time()
    os.kill(trial.pid(1, generation), signal.SIGKILL)
    generation = trial.await_world(2, generation)
    os.kill(trial.pid(1, generation), signal.SIGKILL)
    trial.await_world(1, generation)
    trial.hurry()


def _network(trial: Trial) -> None:
    """Cut a host off without closing connections. Its workers end by themselves and are replaced."""
    generation = trial.await_world(2)
    network_lost(trial)
    trial.await_world(2, generation)
    trial.hurry()


def _scenario(name: str, disturb: Callable[[Trial], None], **named: object) -> Scenario:
    given = {"least": 1, "most": 3, "args": {"step_s": 0.1, "over": "hopsml"}, **named}
    return Scenario(name, disturb, **given)  # type: ignore[arg-type]


GOES_ON = "went on"
# Run on every backend by `make chaos`, and never over TensorFlow's collectives, where all processes restart.
MENDS = (
    _scenario("two of three are lost at once", _lose(1, 2, then=1), notes=GOES_ON),
    _scenario("two of three are lost at once, rank 0 too", _lose(0, 2, then=3)),
    _scenario("two of three are lost, one after the other", _one_after_the_other, notes=GOES_ON, quick=False),
    _scenario("kill -9 during an in-place reconfiguration", _amid(_send(1, signal.SIGKILL), then=1), notes=GOES_ON),
    _scenario("kill -9 of rank 0 during an in-place reconfiguration", _amid(_send(0, signal.SIGKILL), then=3)),
    _scenario("SIGSTOP during an in-place reconfiguration", _amid(lambda trial, generation: None, then=3)),
    _scenario("SIGSTOP for a second during an in-place reconfiguration", _amid(_wake, then=2), quick=False),
    _scenario("SIGSTOP of an agent during an in-place reconfiguration", _stopped_agent, quick=False,
              options={"heartbeat_timeout": 2.0}),
    _scenario("a host loses its network for good, and the other continues", _network, most=2,
              options={"heartbeat_timeout": 2.0}, needs="local", around=networks.two_hosts, quick=False, notes=GOES_ON),
)  # fmt: skip
