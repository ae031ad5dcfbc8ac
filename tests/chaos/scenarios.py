"""Scenarios: each defines how the run is started and disturbed; the runner checks the result."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from hopsml.errors import PathNotFound
from hopsml.experiment.run import Run
from hopsml.storage import checkpoints, filesystem, urls
from hopsml.storage.run_dir import RunDir, step_name
from tests.chaos import networks, places
from tests.helpers.cluster.elastic_workload import announce
from tests.helpers.cluster.finding import agent_of
from tests.helpers.cluster.workloads import wait_until

WAIT_S = 60.0
FULL = bool(os.environ.get("HOPSML_CHAOS_RESULTS"))  # `make chaos`, not only a test run


@dataclass
class Trial:
    """One run under disturbance."""

    run: Run
    folder: Path
    cluster: Any = None  # the Hadoop cluster, where there is one
    detail: str = ""  # what a scenario has measured besides
    may_lose: int | None = None  # steps, if the disturbance knows them; by default those between two commits
    disturbed: float = 0.0  # when the harm was done, seconds since the epoch; 0: when the disturbance returns

    def pid(self, rank: int, generation: int = 0) -> int:
        """Return the pid of a worker."""
        path = self.folder / f"pid-{rank}-{generation}"
        wait_until(path.exists, f"rank {rank} of generation {generation}", WAIT_S)
        return int(path.read_text())

    def above(self, rank: int, kind: str, generation: int = 0) -> psutil.Process:
        """Return the zygote, fork server, agent or executor that is an ancestor of a worker."""
        if kind in ("fork server", "zygote"):
            server = psutil.Process(self.pid(rank, generation)).parent()
            return server if kind == "fork server" else server.parent()
        if generation:
            self.pid(rank, generation)  # it is that far; the first one may begin without this rank
        agent = agent_of(self.run, rank)
        return agent if kind == "agent" else next(above for above in agent.parents() if "java" in above.name())

    def step(self) -> int:
        """Return the last step that rank 0 has finished; waits for its first one."""
        path = self.folder / "step-0"
        wait_until(path.exists, "a step", WAIT_S)
        return int(path.read_text())

    def await_step(self, step: int) -> None:
        """Wait until rank 0 has finished this step."""
        path = self.folder / "step-0"
        wait_until(lambda: path.exists() and int(path.read_text()) >= step, f"step {step}", WAIT_S)

    def hurry(self) -> None:
        """Let the remaining steps take no time."""
        (self.folder / "hurry").touch()

    def await_world(self, world: int, after: int = -1) -> int:
        """Wait for a generation after ``after`` in which this many members have made a step, and return its number.

        A member that has made a step holds the state; a single worker before was the only holder.
        """

        def started_step() -> int | None:
            status = self.run.status()
            number, members = status["generation"], len(status["members"])
            steps = all(any(self.folder.glob(f"{number}-*-{rank}.npy")) for rank in range(world))
            return number + 1 if number > after and members == world and steps else None

        found = wait_until(lambda: started_step() or self.run.done(), f"{world} workers that make steps", WAIT_S)
        assert not self.run.done(), f"the run ended before {world} workers made steps"
        return int(found) - 1

    def await_generation(self, number: int, world: int) -> None:
        """Wait until the group has this many members."""

        def has_members() -> bool:
            status = self.run.status()
            return status["generation"] >= number and len(status["members"]) == world

        wait_until(lambda: has_members() or self.run.done(), f"generation {number} with {world} workers", WAIT_S)
        assert has_members(), f"the run ended before generation {number} with {world} workers was there"


@dataclass(frozen=True)
class Scenario:
    """A scenario; its ``disturb`` returns after the harm."""

    name: str
    disturb: Callable[[Trial], None]
    least: int = 2
    most: int = 2
    args: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    # "spark": there must be an executor; "local": agents that are processes of this machine; "shared": they share the
    # driver's machine, so that one process imports for all
    needs: str = ""
    around: Callable[[Path], AbstractContextManager[None]] = lambda folder: nullcontext()  # where it takes place
    notes: str = ""  # notes that the run must have
    error: str = ""  # part of the message of the RunError with which it must end; empty: it must finish
    loses_nothing: bool = False  # a planned change
    before: Callable[[Any], None] | None = None  # what is done to the Hadoop cluster before the run begins
    after: Callable[[Trial], str] | None = None  # check of other conditions at the end; returns the problem
    quick: bool = True  # whether it is played in every test run, not only by `make chaos`


def _kill(*ranks: int, number: int = signal.SIGKILL) -> Callable[[Trial], None]:
    def disturb(trial: Trial) -> None:
        trial.await_step(7)
        generation = trial.run.status()["generation"]  # on a busy machine ``progress_timeout`` may have ended the first
        for pid in [trial.pid(rank, generation) for rank in ranks]:
            os.kill(pid, number)

    return disturb


def _end(kind: str, rank: int, number: int = signal.SIGKILL) -> Callable[[Trial], None]:
    def disturb(trial: Trial) -> None:
        trial.await_step(7)
        trial.above(rank, kind).send_signal(number)

    return disturb


def _second_loss(trial: Trial) -> None:
    """Kill a second member while the group recovers from the first loss."""
    generation = trial.await_world(2)
    _kill(1)(trial)
    os.kill(trial.pid(0, generation + 1), signal.SIGKILL)


def _corrupted_checkpoint(trial: Trial) -> None:
    """Kill all holders of commits after altering the newest checkpoint known to the driver.

    Reports of newer checkpoints may be lost with the agents, so all from the newest known one on are altered.
    """
    trial.await_step(12)
    made = RunDir(trial.run.run_dir).checkpoints

    def complete() -> list[int]:
        found = list[int]()
        for step in checkpoints.steps(made):
            with suppress(PathNotFound):  # an old one, which the driver removes at this moment
                found += [step] if checkpoints.is_complete(urls.join(made, step_name(step))) else []
        return found

    def known() -> int:
        state: Any = trial.run.state
        return int(state.gang_log._gang.commits.drains.stored)

    wait_until(lambda: any(step < known() for step in complete()), "a checkpoint before the newest known one", WAIT_S)
    agents = [trial.above(rank, "agent") for rank in (0, 1)]
    alongside = [child for agent in agents for child in agent.children(recursive=True)]
    workers = [psutil.Process(trial.pid(rank)) for rank in (0, 1)]
    first = known()
    for process in (*agents, *alongside):  # a mirror that outlives its agent would bring one checkpoint more
        with suppress(psutil.NoSuchProcess):
            process.kill()
    wait_until(lambda: not any(_lives(process) for process in alongside), "the end of what agents start", WAIT_S)
    reached = trial.step()
    before = max(step for step in complete() if step < first)
    for step in complete():
        if step < first:
            continue
        url = urls.join(made, step_name(step), checkpoints.STATE_FILE)
        store = filesystem.for_url(url)
        content = bytearray(store.read_bytes(url))
        content[len(content) // 2] ^= 0xFF
        store.write_bytes(url, bytes(content))
    wait_until(lambda: not any(_lives(worker) for worker in workers), "the end of the agents' workers", WAIT_S)
    reached = max(reached, trial.step())
    trial.may_lose = reached - before + 2  # both ends counted, and the step that was under way


def _decommission(rank: int) -> Callable[[Trial], None]:
    """Decommission like a node manager or Kubernetes: the executor's JVM gets SIGPWR, and some time."""

    def disturb(trial: Trial) -> None:
        trial.await_step(4)
        trial.above(rank, "executor").send_signal(signal.SIGPWR)

    return disturb


def _network_away(trial: Trial) -> None:
    """Cut a host off for less time than counts as a loss."""
    trial.await_step(4)
    networks.pull_cable(1)
    time.sleep(3.0)  # the harm itself, not a wait for something
    networks.plug_in(1)


def network_lost(trial: Trial) -> None:
    """Cut a host off permanently: its member ends by its own lease, as no message reaches it."""
    generation = trial.await_world(2)
    trial.await_step(4)
    rank = _rank_on(f"{networks.SUBNET}.11", trial)
    worker, agent = psutil.Process(trial.pid(rank, generation)), trial.above(rank, "agent", generation)
    networks.pull_cable(1)
    trial.disturbed = time.time()
    wait_until(lambda: not (_lives(worker) or _lives(agent)), "the end of those that are cut off", WAIT_S)


def _lives(process: psutil.Process) -> bool:
    """True if the process runs; false for a zombie, which an agent remains until its driver waits for it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _rank_on(address: str, trial: Trial) -> int:
    return next(int(one["rank"]) for one in trial.run.status()["members"] if one["host"] == address)


def _out_of_memory(trial: Trial) -> None:
    """Let a worker exceed its control group's memory, so that the kernel kills it."""
    trial.await_step(7)
    pid = trial.pid(1)
    places.limit_memory(trial.folder, pid)
    announce(trial.folder / f"balloon-{pid}", "256")


def _failing_host(trial: Trial) -> None:
    """Let a worker fail, which excludes its host; after the cooldown the group is complete again."""
    generation = trial.await_world(2)
    trial.await_step(4)
    rank = _rank_on(f"{networks.SUBNET}.11", trial)
    os.kill(trial.pid(rank, generation), signal.SIGKILL)
    trial.disturbed = time.time()
    generation = trial.await_world(1, generation)
    alone = time.monotonic()
    trial.await_world(2, generation)
    trial.detail = f"alone for {time.monotonic() - alone:.1f} s"
    trial.hurry()


def _full_disk(trial: Trial) -> None:
    """Fill the disk permanently before the second checkpoint, and kill a worker."""
    trial.await_step(4)
    places.fill(trial.folder)
    trial.await_step(10)


def _while_forming(trial: Trial) -> None:
    os.kill(trial.pid(1), signal.SIGKILL)


def _too_often(trial: Trial) -> None:
    _kill(1)(trial)
    for generation in (1, 2):
        trial.await_generation(generation, 2)
        os.kill(trial.pid(1, generation), signal.SIGKILL)


def _shrink_and_grow(whole: int) -> Callable[[Trial], None]:
    def disturb(trial: Trial) -> None:
        generation = trial.await_world(whole)
        trial.run.resize(1)
        generation = trial.await_world(1, generation)
        trial.run.resize(whole)
        trial.await_world(whole, generation)
        trial.hurry()

    return disturb


def _same_agent_again_and_again(trial: Trial) -> None:
    """Kill an agent more often than Spark restarts one task; the others keep the state each time."""
    stays = trial.above(0, "agent").pid
    for number in range(1, 6):
        generation = trial.await_world(2, number - 2)
        trial.await_step(6 * number)
        rank = next(rank for rank in (0, 1) if trial.above(rank, "agent", generation).pid != stays)
        trial.above(rank, "agent", generation).kill()


def _executor_replaced(trial: Trial) -> None:
    """Kill an executor; the others continue, and its successor joins."""
    generation = trial.await_world(2)
    trial.await_step(7)
    trial.disturbed = time.time()
    trial.above(1, "executor", generation).kill()
    generation = trial.await_world(1, generation)
    trial.await_world(2, generation)
    trial.hurry()


LARGE = {"commit": 1, "ballast_mb": 40}

SCENARIOS = (
    Scenario("kill -9 of a worker", _kill(1)),
    Scenario("kill -9 of rank 0", _kill(0)),
    Scenario("kill -9 of two workers of three", _kill(1, 2), least=3, most=3),
    Scenario("kill -9 of all workers", _kill(0, 1)),
    Scenario("SIGSEGV of a worker", _kill(1, number=signal.SIGSEGV)),
    Scenario("SIGSTOP of a worker", _kill(1, number=signal.SIGSTOP), options={"progress_timeout": 2.0}),
    Scenario("SIGSTOP of rank 0", _kill(0, number=signal.SIGSTOP), options={"progress_timeout": 2.0}),
    Scenario("kill -9 of a fork server", _end("fork server", 1)),
    Scenario("kill -9 of the process that imports for all", _end("zygote", 0), needs="shared",
             loses_nothing=True),
    Scenario("kill -9 of an agent (Spark's Python worker)", _end("agent", 1)),
    Scenario("SIGSTOP of an agent", _end("agent", 1, signal.SIGSTOP), args={"step_s": 0.1},
             options={"heartbeat_timeout": 2.0}),
    # Where the workers are on two hosts, the third failure would exclude one of them for a minute.
    Scenario("kill -9 of the same agent, five times", _same_agent_again_and_again, args={"step_s": 0.05},
             options={"host_failure_limit": 10}, quick=False),
    Scenario("kill -9 of an executor", _end("executor", 1), needs="spark"),
    Scenario("kill -9 of rank 0's executor", _end("executor", 0), needs="spark"),
    Scenario("Spark decommissions an executor", _decommission(1), least=1, args={"step_s": 0.4, "commit": 1000},
             needs="spark", around=places.short_notice, loses_nothing=True,
             notes="rank 1 leaves: Spark decommissions executor"),
    Scenario("Spark decommissions rank 0's executor", _decommission(0), args={"step_s": 0.2, "commit": 1000},
             needs="spark", around=places.short_notice, loses_nothing=True,
             notes="rank 0 leaves: Spark decommissions executor"),
    Scenario("an executor dies and comes back", _executor_replaced, least=1, args={"step_s": 0.5}, needs="spark"),
    Scenario("3 workers, then 1, then 3", _shrink_and_grow(3), least=1, most=3, args={"step_s": 0.8, "commit": 1000},
             loses_nothing=True),
    Scenario("4 workers, then 1, then 4", _shrink_and_grow(4), least=1, most=4, args={"step_s": 0.8, "commit": 1000},
             needs="local", loses_nothing=True, quick=False),
    Scenario("memory limit of a worker", _out_of_memory, args={"step_s": 0.05}, around=places.memory_limit,
             notes="killed by signal 9"),
    Scenario("a host is set aside, and cools down", _failing_host, least=1, args={"step_s": 0.3, "commit": 1},
             options={"host_failure_limit": 1, "host_cooldown": 2.0}, needs="local", around=networks.two_hosts,
             notes="is set aside for 2 s"),
    Scenario("a loss during recovery", _second_loss),
    Scenario("a loss while forming", _while_forming),
    Scenario("a loss during commits of 40 MB", _kill(1), args=LARGE),
    Scenario("a worker that is ten times slower", lambda trial: None, args={"slow_rank": 1, "step_s": 0.03},
             notes="rank 1 on", quick=False),
    Scenario("loss of all agents, and the newest checkpoint is corrupted", _corrupted_checkpoint,
             args={"step_s": 0.05}, options={"checkpoint_every_s": 0.1}, notes="is skipped"),
    Scenario("loss of network for 3 s", _network_away, args={"step_s": 0.12}, needs="local",
             around=networks.two_hosts, loses_nothing=True),
    Scenario("loss of network for good", network_lost, args={"step_s": 0.1}, options={"heartbeat_timeout": 2.0},
             needs="local", around=networks.two_hosts),
    Scenario("full scratch disk", _full_disk, args={"step_s": 0.05, "ballast_mb": 2},
             options={"checkpoint_every_s": 0.2}, needs="local", around=places.small_disk, notes="No space left on device",
             error="results could not be stored"),
    Scenario("slow scratch disk, and a loss", _kill(1), args={"step_s": 0.02}, options={"checkpoint_every_s": 0.2},
             needs="local", around=places.slow_disk),
    Scenario("reset limit reached", _too_often, args={"step_s": 0.03}, options={"reset_limit": 2},
             error="the reset limit of 2 is reached"),
)  # fmt: skip


def played_here(scenarios: Iterable[Scenario]) -> list[Scenario]:
    """Return the scenarios of this test run: all of them in `make chaos`."""
    return [scenario for scenario in scenarios if FULL or scenario.quick]
