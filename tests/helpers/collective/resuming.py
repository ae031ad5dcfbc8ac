"""Resumable groups for failure tests: ``python -m tests.helpers.collective.resuming TRANSPORT SIZE SEED ROUNDS``.

This process acts as the agents of all members: it forks them, kills and stops them during their calls, sends the remaining
ones their new group, and admits new ones when all have paused. Members count their calls, and report the result of each;
a contradiction ends this process with the reason. The kernel ends the members with this process.

A member contributes 2 to the power of its identity, times small integers, so that a sum identifies its contributors.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hopsml.collective import Group
from hopsml.errors import CollectiveChanged, CollectiveError
from tests.helpers.collective.family import die_with_parent
from tests.helpers.collective.together import SECRET, TRANSPORTS, Array, addresses, listeners

MOST = 20  # identities that a scenario can use: sums of them are exact in float32
PATIENCE_S = 30.0
SIZES = (1, 700, 5_000, 70_000, 600_000)  # elements: one gate and several, one step and two, one round and several


def unit(call: int, count: int) -> Array:
    """Return the factor of all members in this call; never zero, so that it is a divisor."""
    return (np.arange(count) % 7 + call % 5 + 1).astype("float32")


def all_reduce(group: Group, mine: float, x: Array) -> list[float]:
    return [whole(group.all_reduce(mine * x), x)]


def all_reduce_in_place(group: Group, mine: float, x: Array) -> list[float]:
    own = mine * x
    return [whole(group.all_reduce(own, out=own), x)]


def all_gather(group: Group, mine: float, x: Array) -> list[float]:
    return [whole(row, x) for row in group.all_gather(mine * x)]


def broadcast(group: Group, mine: float, x: Array) -> list[float]:
    return [whole(group.broadcast(mine * x), x)]


def reduce_scatter(group: Group, mine: float, x: Array) -> list[float]:
    while True:
        try:
            return [whole(group.reduce_scatter(np.stack([mine * x] * group.size)), x)]
        except (CollectiveChanged, ValueError):  # ValueError: the size has changed between the question and the call
            continue


def rows_of(factor: float) -> int:
    """Return a member's number of rows, which may differ."""
    return 1 + int(np.log2(factor)) % 3


def barrier(group: Group, mine: float, x: Array) -> list[float]:
    group.barrier()
    return []


def whole(result: Array, x: Array) -> float:
    """Return the common factor of ``x``."""
    factor = float(result[0] / x[0])
    assert np.array_equal(result, np.float32(factor) * x), (result, factor)
    return factor


Operation = Callable[[Group, float, Array], list[float]]


def of_group() -> tuple[Operation, ...]:
    """Return the library's operations."""
    return all_reduce, all_reduce_in_place, all_gather, broadcast, reduce_scatter, barrier


class Channel:
    """Channel of JSON lines between this process and a member."""

    def __init__(self, one: socket.socket) -> None:
        self._file = one.makefile("rwb", buffering=0)
        self._lock = threading.Lock()

    def send(self, **what: Any) -> None:
        with self._lock:
            self._file.write((json.dumps(what) + "\n").encode())

    def receive(self) -> dict[str, Any] | None:
        line = self._file.readline()
        return json.loads(line) if line else None


def member(
    identity: int, channel: Channel, listener: socket.socket, transport: str, seed: int, operations: Sequence[Operation]
) -> None:
    """Make calls until stopped; ``seed`` determines the order of operations on all members."""
    first = channel.receive()
    assert first is not None
    options = {"secret": SECRET, "form_timeout_s": PATIENCE_S}

    def place(order: dict[str, Any]) -> dict[str, Any]:
        hosts = TRANSPORTS[transport](len(order["addresses"]))
        wanted = {key: order[key] for key in ("rank", "addresses", "generation")}
        return {**options, **wanted, "hosts": hosts, "listener": os.dup(listener.fileno())}

    group = Group.form(**place(first), resumable=True)
    group.make_default()
    resumed = threading.Event()

    def obey() -> None:
        while (order := channel.receive()) is not None:
            if order["what"] == "pause":
                group.request_pause()
            elif order["what"] == "end":
                group.end("enough")
            else:
                threading.Thread(target=reform, args=(order,), daemon=True).start()

    def reform(order: dict[str, Any]) -> None:
        try:
            group.reform(**place(order))
            channel.send(what="formed", generation=order["generation"])
            resumed.set()
        except CollectiveError as error:
            channel.send(what="failed", generation=order["generation"], error=type(error).__name__, text=str(error))

    channel.send(what="formed", generation=first["generation"])
    threading.Thread(target=obey, daemon=True).start()
    for call in range(first["call"], 1_000_000):
        chance = random.Random(f"{seed} {call}")
        operation, x = chance.choice(operations), unit(call, chance.choice(SIZES))
        try:
            result = operation(group, float(2**identity), x)
        except CollectiveError as error:
            channel.send(what="over", call=call, error=type(error).__name__, text=str(error))
            break
        channel.send(
            what="done",
            call=call,
            operation=operation.__name__,
            result=result,
            at=time.monotonic(),
            generation=group.generation,
        )
        resumed.clear()
        if group.pause_agreed:
            channel.send(what="paused", call=call)
            resumed.wait(PATIENCE_S)
    while channel.receive() is not None:
        time.sleep(0.01)


@dataclass
class Member:
    """This process's view of one member."""

    identity: int
    pid: int
    channel: Channel
    address: str
    results: dict[int, tuple[str, list[float]]] = field(default_factory=dict)
    times: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))  # of results, by generation
    events: list[dict[str, Any]] = field(default_factory=list)


class Agents:
    """All agents of one group, with checks of its members."""

    def __init__(
        self, transport: str, size: int, seed: int, operations: Callable[[], Sequence[Operation]] = of_group
    ) -> None:
        self.transport, self.seed, self.operations = transport, seed, operations
        self.chance = random.Random(seed)
        self.members: list[Member] = []  # in rank order
        self.generation = 0
        self.generations: list[tuple[float, ...]] = []
        self.stopped: list[Member] = []
        self._identities = iter(range(MOST))
        self._received = threading.Condition()
        for one in self._born(size):
            self.members.append(one)
        self._tell_all(call=0)
        self.wait(self.formed, "all have formed")

    def _born(self, count: int) -> list[Member]:
        """Start processes that wait for their group."""
        born = []
        for listener in listeners(count):
            identity, (ours, theirs) = next(self._identities), socket.socketpair()
            pid = os.fork()
            if pid == 0:
                die_with_parent()
                ours.close()
                member(identity, Channel(theirs), listener, self.transport, self.seed, self.operations())
                os._exit(0)
            theirs.close()
            one = Member(identity, pid, Channel(ours), addresses([listener])[0])
            listener.close()
            threading.Thread(target=self._listen, args=(one,), daemon=True).start()
            born.append(one)
        return born

    def _listen(self, one: Member) -> None:
        try:
            while (event := one.channel.receive()) is not None:
                with self._received:
                    if event["what"] == "done":
                        one.results[event["call"]] = (event["operation"], event["result"])
                        one.times[event["generation"]].append(event["at"])
                    else:
                        one.events.append(event)
                    self._received.notify_all()
        except OSError:  # it was killed
            pass

    def _tell_all(self, call: int) -> None:
        self.generation += 1
        self.generations.append(tuple(float(2**one.identity) for one in self.members))
        names = [one.address for one in self.members]
        for rank, one in enumerate(self.members):
            one.channel.send(what="reform", rank=rank, addresses=names, generation=self.generation, call=call)

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        with self._received:
            if not self._received.wait_for(condition, PATIENCE_S):
                last = {one.identity: (max(one.results, default=None), one.events[-3:]) for one in self.members}
                raise AssertionError(f"{what}: not within {PATIENCE_S} s; generation {self.generation}, {last}")

    def formed(self) -> bool:
        return all({"what": "formed", "generation": self.generation} in one.events for one in self.members)

    def paused(self) -> bool:
        return all(one.events and one.events[-1]["what"] == "paused" for one in self.members)

    def done(self, more: int) -> None:
        """Wait until each member has made so many calls more than any has now."""
        aim = max(max(one.results, default=-1) for one in self.members) + more
        self.wait(lambda: all(max(one.results, default=-1) >= aim for one in self.members), f"{more} calls")

    def resumed(self) -> float:
        """Return the time when all members had a result of the newest generation."""
        self.wait(lambda: all(one.times[self.generation] for one in self.members), "calls go on")
        return max(one.times[self.generation][0] for one in self.members)

    def harm(self, number: signal.Signals, count: int = 1) -> float:
        """Harm so many members at a random moment, and return the time. They are left out from now on."""
        time.sleep(self.chance.random() * 0.01)
        for _ in range(count):
            victim = self.members.pop(self.chance.randrange(len(self.members)))
            os.kill(victim.pid, number)
            if number == signal.SIGKILL:
                os.waitpid(victim.pid, 0)
            else:
                self.stopped.append(victim)
        return time.monotonic()

    def reform(self, *, shuffled: bool = False, harmed: bool = False) -> None:
        """Reform the remaining members; ``harmed``: one of them is killed during the reform, which is repeated."""
        if shuffled:
            self.chance.shuffle(self.members)
        self._tell_all(call=-1)
        if harmed:
            time.sleep(self.chance.random() * 0.004)
            self.harm(signal.SIGKILL)
            self._tell_all(call=-1)
        self.wait(self.formed, "those that are left go on")

    def grow(self, count: int = 1) -> None:
        """Pause all members at the same call, and admit new ones."""
        self.chance.choice(self.members).channel.send(what="pause")
        self.wait(self.paused, "all pause")
        calls = {one.events[-1]["call"] for one in self.members}
        assert len(calls) == 1, f"paused after different calls: {calls}"
        self.members.extend(self._born(count))
        self._tell_all(call=calls.pop() + 1)
        self.wait(self.formed, "new ones are in")

    def check(self) -> None:
        """Check that each call had equal results on all members of a generation, and that no member missed one."""
        of_call: dict[int, tuple[str, list[float]]] = {}
        for one in [*self.members, *self.stopped]:
            calls = sorted(one.results)
            assert calls == list(range(calls[0], calls[-1] + 1)), f"{one.identity} left out a call: {calls}"
            for call in calls:
                known = of_call.setdefault(call, one.results[call])
                assert known == one.results[call], f"call {call}: {known}, but to {one.identity} {one.results[call]}"
        newest = 0
        for call, (operation, result) in sorted(of_call.items()):
            expected = [EXPECTED[operation](factors) for factors in self.generations]
            fits = [index for index, one in enumerate(expected) if one == result[-len(one) :]]
            assert fits, f"call {call}: {operation} gave {result}, of {self.generations}"
            assert fits[-1] >= newest, f"call {call} is of an older generation than the one before it"
            newest = max(newest, fits[0])

    def end(self) -> None:
        """End all members."""
        for one in [*self.members, *self.stopped]:
            os.kill(one.pid, signal.SIGKILL)
            os.waitpid(one.pid, 0)


EXPECTED: dict[str, Callable[[tuple[float, ...]], list[float]]] = {
    "all_reduce": lambda factors: [sum(factors)],
    "all_reduce_in_place": lambda factors: [sum(factors)],
    "all_gather": list,
    "broadcast": lambda factors: [factors[0]],
    "reduce_scatter": lambda factors: [sum(factors)],
    "barrier": lambda factors: [],
    "step": lambda factors: [sum(factors)],  # the last of several calls: members may change between them
    "rows": lambda factors: [factor for factor in factors for _ in range(rows_of(factor))],
    "first": lambda factors: [factors[0]],
}


def main(
    transport: str, size: int, seed: int, rounds: int, operations: Callable[[], Sequence[Operation]] = of_group
) -> None:
    """Do harm of any kind so many times, and print each delay from the harm to the next result of all."""
    agents = Agents(transport, size, seed, operations)
    held: dict[str, list[float]] = defaultdict(list)
    agents.done(2)
    for _ in range(rounds):
        what = agents.chance.choice(["kill", "stop", "twice", "meanwhile", "nobody"])
        if what in ("twice", "meanwhile") and len(agents.members) < 3:
            what = "kill"
        at = time.monotonic()
        if what != "nobody":
            at = agents.harm(signal.SIGSTOP if what == "stop" else signal.SIGKILL, 2 if what == "twice" else 1)
        agents.reform(shuffled=agents.chance.random() < 0.5, harmed=what == "meanwhile")
        held[what].append(agents.resumed() - at)
        agents.done(3)
        if len(agents.members) < size:
            agents.grow(size - len(agents.members))
            agents.done(2)
    agents.check()
    agents.end()
    print(json.dumps({what: sorted(times) for what, times in held.items()}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
