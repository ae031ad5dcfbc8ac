"""Further scenarios on YARN: failures of nodes, ResourceManager and HDFS; nodes that join and leave."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from hopsml.storage import checkpoints
from hopsml.storage.run_dir import RunDir
from tests.chaos import places
from tests.chaos.scenarios import Scenario, Trial
from tests.helpers.cluster.elastic_workload import BATCH, EPOCHS, N_SAMPLES
from tests.helpers.cluster.workloads import wait_until
from tests.integration.yarn.conftest import Hadoop
from tools.hadoop import daemons

STEPS = EPOCHS * -(-N_SAMPLES // BATCH)
WAIT_S = 60.0
DOWN_S = 20.0  # how long the NameNode is away
SLOW = {"step_s": 1.0, "commit": 1, "patience_s": 4.0}  # until the harm is done: then the rest takes no time
SLOWER = SLOW | {"step_s": 1.5}


# ------------------------------------------------------------------------------------------ where things are


def node_of(cluster: Hadoop, pid: int) -> str:
    """Return the NodeManager in one of whose containers the process runs."""
    return next(name for name in cluster.names("nm") if pid in daemons.containers_of(cluster.home, name))


def busy_nodes(cluster: Hadoop) -> list[str]:
    """Return the NodeManagers that run a container."""
    return [name for name in cluster.names("nm") if daemons.containers_of(cluster.home, name)]


def containers(cluster: Hadoop) -> int:
    """Return the number of the running application's containers, as counted by the ResourceManager."""
    (running,) = [app for app in cluster.applications() if app["state"] == "RUNNING"]
    return int(cluster.resource_manager.application(running["id"])["runningContainers"])


def newest_checkpoint(trial: Trial) -> int:
    """Return the step of the newest checkpoint; -1 if there is none."""
    step = checkpoints.latest_complete(RunDir(trial.run.run_dir).checkpoints)
    return -1 if step is None else step


def saved_to_the_end(trial: Trial) -> str:
    """Check that the last state is on the store after its outage."""
    newest = newest_checkpoint(trial)
    return "" if newest == STEPS else f"the newest checkpoint is of step {newest}, the last step was {STEPS}"


def saved_and_noted_at_both_ends(trial: Trial) -> str:
    """Check also that the outage was noted once at its start and once at its end."""
    notes = [note for note in trial.run.state.notes if note.startswith("checkpoints ")]
    if ["cannot be written" in note for note in notes] != [True, False] or "are written again" not in notes[1]:
        return f"what was told of checkpoints: {'; '.join(notes) or 'nothing'}"
    return saved_to_the_end(trial)


# ------------------------------------------------------------------------------------------ harm


def _power_cut(trial: Trial) -> None:
    """A node is lost with all its processes, restarts, and is used again."""
    cluster = trial.cluster
    generation = trial.await_world(3)
    node = node_of(cluster, trial.pid(2, generation))
    trial.disturbed = time.time()
    cluster.kill(node, containers=True)
    generation = trial.await_world(2, generation)
    cluster.revive(node)
    back = time.monotonic()
    trial.await_world(3, generation)
    trial.detail = f"used again {time.monotonic() - back:.1f} s after its NodeManager had registered"
    trial.hurry()


def _without_resource_manager(trial: Trial) -> None:
    """Training continues without the ResourceManager and loses an executor; once it is back, the executor is replaced."""
    generation = trial.await_world(2)
    trial.cluster.kill("rm")
    step = trial.step()
    trial.await_step(step + 3)
    trial.disturbed = time.time()
    trial.above(1, "executor", generation).kill()
    generation = trial.await_world(1, generation)
    trial.cluster.revive("rm")
    back = time.monotonic()
    trial.await_world(2, generation)
    trial.detail = f"another executor at work {time.monotonic() - back:.1f} s after the ResourceManager was back"
    trial.hurry()


def _without_namenode(trial: Trial) -> None:
    """Kill the NameNode during a training with frequent checkpoints; it is restarted later."""
    wait_until(lambda: newest_checkpoint(trial) >= 0, "a checkpoint", WAIT_S)
    trial.cluster.kill("nn")
    gone = time.monotonic()
    step = trial.step()
    trial.await_step(step + 3)
    wait_until(lambda: time.monotonic() - gone > DOWN_S, "the end of the outage", DOWN_S + 5)
    trial.cluster.revive("nn")
    trial.detail = f"away for {time.monotonic() - gone:.0f} s, {trial.step() - step} steps"
    trial.hurry()


def _with_frozen_namenode(trial: Trial) -> None:
    """Freeze the NameNode for a while: each call ends at its deadline."""
    wait_until(lambda: newest_checkpoint(trial) >= 0, "a checkpoint", WAIT_S)
    trial.cluster.kill("nn", signal.SIGSTOP)
    step, gone = trial.step(), time.monotonic()
    wait_until(lambda: any("checkpoints" in note for note in trial.run.state.notes), "the note", WAIT_S)
    wait_until(lambda: time.monotonic() - gone > DOWN_S, "the end of the outage", DOWN_S + 5)
    trial.cluster.send("nn", signal.SIGCONT)
    trial.detail = f"frozen for {time.monotonic() - gone:.0f} s, {trial.step() - step} steps"
    trial.hurry()


def _without_datanode(trial: Trial) -> None:
    """Kill one of two DataNodes while checkpoints are written."""
    wait_until(lambda: newest_checkpoint(trial) >= 0, "a checkpoint", WAIT_S)
    trial.cluster.kill("dn1")
    before = newest_checkpoint(trial)
    wait_until(lambda: newest_checkpoint(trial) > before, "a checkpoint on the other DataNode", WAIT_S)
    trial.hurry()


def _one_node_for_workers(cluster: Hadoop) -> None:
    """Remove nodes until one is left in addition to that of the driver's container."""
    wait_until(lambda: len(busy_nodes(cluster)) == 1, "the end of idle executors", WAIT_S)
    idle = [name for name in cluster.names("nm") if name not in busy_nodes(cluster)]
    for name in idle[1:]:
        cluster.remove_nodemanager(name)


def _join_and_leave(trial: Trial) -> None:
    """Nodes join one by one and are used; then workers leave, and their executors are released."""
    cluster, used = trial.cluster, []
    generation = trial.await_world(1)
    for world in (2, 3):
        cluster.add_nodemanager()
        joined = time.monotonic()
        generation = trial.await_world(world, generation)
        used.append(time.monotonic() - joined)
    trial.run.resize(1)
    trial.await_world(1, generation)
    resized = time.monotonic()
    wait_until(lambda: containers(cluster) == 2, "executors that are given back", WAIT_S)
    given_back = time.monotonic() - resized
    trial.detail = (
        f"a new node made its first step {used[0]:.1f} and {used[1]:.1f} s after it had registered; "
        f"2 executors were given back {given_back:.1f} s after the group had shrunk"
    )
    trial.hurry()


def _node_leaves(time_s: int, world: int = 2, room: bool = True) -> Callable[[Trial], None]:
    """Decommission the node of rank 0 by YARN, ``time_s`` seconds after the warning.

    Without ``room`` no other node is free until the workers of this one have ended.
    """

    def disturb(trial: Trial) -> None:
        cluster, generation = trial.cluster, trial.await_world(world)
        trial.await_step(4)
        node = node_of(cluster, trial.pid(0, generation))
        if not room:
            for idle in set(cluster.names("nm")) - set(busy_nodes(cluster)):
                cluster.remove_nodemanager(idle)
        trial.disturbed = time.time()
        cluster.decommission(node, time_s)
        if not room:
            cluster.wait_no_containers(node, 2 * time_s)
            cluster.add_nodemanager()
        trial.await_world(world, generation)
        trial.hurry()
        cluster.recommission()

    return disturb


OFTEN = {"checkpoint_every_s": 0.2}
SELDOM = {"checkpoint_every_s": 600.0}  # what lies on storage was put there because its holder left
LEAVES = "is about to leave (Spark decommissions executor"

YARN_SCENARIOS = (
    Scenario("a NodeManager dies with its containers, and comes back", _power_cut, least=1, most=3, args=SLOW),
    Scenario("the ResourceManager dies, an executor too, and it restarts", _without_resource_manager, least=1,
             args=SLOWER, quick=False),
    Scenario("a NameNode that is away while checkpoints are made", _without_namenode, args=SLOW, options=OFTEN,
             loses_nothing=True, after=saved_and_noted_at_both_ends, quick=False),
    Scenario("a NameNode that is frozen while checkpoints are made", _with_frozen_namenode, args=SLOW, options=OFTEN,
             around=places.impatient, loses_nothing=True, after=saved_and_noted_at_both_ends, quick=False),
    Scenario("a DataNode dies while checkpoints are made", _without_datanode, args=SLOW, options=OFTEN,
             loses_nothing=True, after=saved_to_the_end, quick=False),
    Scenario("YARN takes the node of the only worker out of service", _node_leaves(40, world=1), least=1, most=1, args=SLOW,
             options=SELDOM, loses_nothing=True, notes=LEAVES),
    Scenario("YARN takes the node of one of two workers out of service", _node_leaves(40), args=SLOW, options=SELDOM,
             loses_nothing=True, notes=LEAVES, quick=False),
    Scenario("nodes join: 1 worker becomes 3; then 1, and executors are given back", _join_and_leave, least=1, most=3,
             args=SLOWER, options={"keep_warm": 1.0}, loses_nothing=True, before=_one_node_for_workers, quick=False),
)  # fmt: skip

# Where all workers are on one node.
DRAIN_SCENARIOS = (
    Scenario("YARN takes the node of all workers out of service, and there is another one", _node_leaves(40), args=SLOW,
             options=SELDOM, loses_nothing=True, notes=LEAVES),
    Scenario("the same with 5 s of warning", _node_leaves(5), args=SLOW, options=SELDOM, loses_nothing=True,
             notes=LEAVES),
    Scenario("the same, and another one comes when the workers have gone", _node_leaves(15, room=False), args=SLOW,
             options=SELDOM, loses_nothing=True, notes=LEAVES),
)  # fmt: skip
