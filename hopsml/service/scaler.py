"""Thread that adds and removes nodes: it polls provider and manager, and carries out the autoscaler's decisions.

After a restart, its only state is the provider's list of nodes. It does nothing while this server is not the leader, or
while the cluster does not respond: a missing response is not evidence that nodes are absent.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from hopsml.errors import ProviderError, StoreError
from hopsml.service import autoscaler
from hopsml.service.autoscaler import (
    DrainNode,
    FleetMemory,
    FleetNode,
    LaunchNodes,
    NodeGroup,
    NodePhase,
    RecallNode,
    ScalingAction,
    TerminateNode,
)
from hopsml.service.manager import Manager
from hopsml.service.providers import NodeProvider, ProviderNode
from hopsml.service.providers.command import YarnExclusion
from hopsml.service.scheduler.cluster_status import Demand
from hopsml.service.scheduler.resources import NOTHING, Resources

log = logging.getLogger("hopsml.service")

TURN_S = 3.0
ASKED_AGAIN_S = 300.0  # seconds after which the removal of a node that still exists is requested again


class Scaler:
    """Control loop of nodes, with one thread that calls ``run_pass``; ``start`` and ``close`` control the thread."""

    def __init__(
        self,
        manager: Manager,
        provider: NodeProvider,
        groups: Sequence[NodeGroup],
        exclusion: YarnExclusion | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Initialize the loop, and publish the view of an empty fleet.

        Args:
            manager: Reports demand and leadership, and receives the view of the nodes.
            provider: Lists, launches and terminates nodes.
            groups: The node groups that may be scaled.
            exclusion: YARN's exclude file for nodes that are drained; None if there is none.
            clock: The time, in seconds since 1970.
        """
        self._manager, self._provider, self._exclusion, self._clock = manager, provider, exclusion, clock
        self._groups: Mapping[str, NodeGroup] = {group.name: group for group in groups}
        self._problem = ""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._forget()
        self._view = autoscaler.decide_scaling(self._memory, self._groups, Demand.nothing(), (), self._clock()).view
        manager.scaled(self._view)

    def _forget(self) -> None:
        """Discard all cached state, as after a change of the leader."""
        self._term = 0
        self._memory = FleetMemory()
        self._known: set[str] = set()
        self._draining: set[str] = set()
        self._ending_s: dict[str, float] = {}  # node id -> time at which its removal was requested
        self._excluded: dict[str, str] = {}  # id -> host

    # ------------------------------------------------------------------------------------------ the thread

    def start(self) -> None:
        """Start the thread that scales nodes."""
        self._thread = threading.Thread(target=self._run, name="hopsml-nodes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the scaling thread; nodes remain as they are."""
        self._ended.set()
        self._provider.close()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        """Run a pass every ``TURN_S`` seconds until the thread is stopped."""
        while not self._ended.wait(TURN_S):
            try:
                self.run_pass()
            except Exception:  # a failure must not end the thread, as a later pass may succeed
                log.exception("nodes: a turn failed")

    # ------------------------------------------------------------------------------------------ one pass

    def run_pass(self) -> None:
        """Run one pass: list nodes, let the autoscaler decide, and carry out its actions."""
        try:
            self._turn()
        except StoreError as error:  # the leader is unknown
            self._trouble(f"nodes cannot be added or ended: {error}")

    def _turn(self) -> None:
        """Run one pass, while this server is the leader. Raises StoreError."""
        if not self._still_leads():
            self._forget()
            self._term = self._manager.term()  # state of an earlier lease is obsolete
            if not self._term:
                return
        try:
            given = [node for node in self._provider.list() if node.group in self._groups]
        except ProviderError as error:
            self._trouble(f"nodes cannot be added or ended: {error}")
            return
        told = self._manager.demand()
        if told is None:
            return
        demand, there = told
        decision = autoscaler.decide_scaling(
            self._memory, self._groups, demand, self._fleet(given, demand, there), self._clock()
        )
        self._memory, self._view, self._problem = decision.memory, decision.view, ""
        used = self._manager.scaled(decision.view)
        nodes = {node.id: node for node in given}
        for action in decision.actions:
            if not self._still_leads():
                return
            if not self._is_late(action, used):
                self._carry_out(action, nodes)
        if self._still_leads():
            self._admit(nodes)

    def _still_leads(self) -> bool:
        """Return True if no other server has led since this one's cached state was read. Raises StoreError."""
        return bool(self._term) and self._manager.term() == self._term

    def _trouble(self, said: str) -> None:
        """Publish a problem with the view of the nodes, and log it if it is new."""
        if said != self._problem:
            log.warning("%s", said)
        self._problem = said
        self._manager.scaled(replace(self._view, problem=said))

    def _fleet(self, given: Sequence[ProviderNode], demand: Demand, there: Mapping[str, Resources]) -> list[FleetNode]:
        """Return the state of each node, from the lists of the provider and of the cluster."""
        found = [node for node in given if node.is_draining and node.id not in self._known]  # drained before a restart
        self._draining |= {node.id for node in found}
        self._excluded |= {node.id: node.hosts[0] for node in found if node.hosts}
        self._known = {node.id for node in given}
        self._draining &= self._known
        now = self._clock()
        self._ending_s = {
            each: since for each, since in self._ending_s.items() if each in self._known and now - since < ASKED_AGAIN_S
        }
        names = {name.rpartition(":")[0] or name: name for name in there}
        fleet = []
        for node in given:
            name = next((names[host] for host in node.hosts if host in names), "")
            fleet.append(
                FleetNode(
                    node.id,
                    node.group,
                    self._phase(node, name),
                    node.launched_s,
                    name,
                    there.get(name, NOTHING),
                    demand.nodes.labels[demand.nodes.rows[name]] if name else "",
                    is_used=any(demand.nodes.in_use(each) for each in _called(node, name, demand)),
                    is_warned=node.is_warned,
                )
            )
        return fleet

    def _phase(self, node: ProviderNode, name: str) -> NodePhase:
        """Return the phase of a node's life: booting, up, draining or ending."""
        if node.is_ending or node.id in self._ending_s:
            return NodePhase.ENDING
        if node.id in self._draining:
            return NodePhase.DRAINING
        return NodePhase.UP if name else NodePhase.BOOTING

    def _is_late(self, action: ScalingAction, used: frozenset[str]) -> bool:
        """Return True if a job was placed on the node just before the node was closed to jobs.

        The action must not be carried out then, unless the provider has announced the end of the node.
        """
        if isinstance(action, LaunchNodes | RecallNode) or action.node.is_warned:
            return False
        return bool(action.node.name) and action.node.name in used

    def _carry_out(self, action: ScalingAction, nodes: Mapping[str, ProviderNode]) -> None:
        """Carry out one action of the autoscaler; a provider's failure is logged."""
        try:
            match action:
                case LaunchNodes(group, count, jobs):
                    log.info("nodes: %d more of %s%s", count, group, f" for {', '.join(jobs)}" if jobs else "")
                    self._provider.launch(group, count, jobs)
                case DrainNode(node, why):
                    log.info("nodes: %s (%s) is drained: %s", node.id, node.name or node.group, why)
                    self._draining.add(node.id)
                    self._exclude(node)
                    self._provider.drain(nodes[node.id])
                case RecallNode(node):
                    log.info("nodes: %s (%s) is needed again", node.id, node.name or node.group)
                    self._draining.discard(node.id)
                    if self._exclusion is not None and (host := self._excluded.pop(node.id, "")):
                        self._exclusion.admit(host)
                    self._provider.recall(nodes[node.id])
                case TerminateNode(node, why):
                    log.info("nodes: %s (%s) is ended: %s", node.id, node.name or node.group, why)
                    self._provider.terminate(nodes[node.id])
                    self._ending_s[node.id] = self._clock()
        except ProviderError as error:
            log.warning("nodes: %s", error)
            if isinstance(action, LaunchNodes):
                self._memory = self._memory.failed(action.group, self._clock())

    def _exclude(self, node: FleetNode) -> None:
        """Add a node's host to YARN's exclude file."""
        host = node.name.rpartition(":")[0] or node.name
        if self._exclusion is not None and host:
            self._excluded[node.id] = host
            self._exclusion.exclude(host)

    def _admit(self, nodes: Mapping[str, ProviderNode]) -> None:
        """Remove hosts of ended nodes from YARN's exclude file, as a new node may get the same name."""
        for each in [each for each in self._excluded if each not in nodes]:
            try:
                if self._exclusion is not None:
                    self._exclusion.admit(self._excluded[each])
            except ProviderError as error:
                log.warning("nodes: %s", error)
            del self._excluded[each]


def _called(node: ProviderNode, name: str, demand: Demand) -> list[str]:
    """Return all names by which the cluster has known a node; jobs may run on one that it does not list any more."""
    if name:
        return [name]
    return [each for each in demand.nodes.rows if (each.rpartition(":")[0] or each) in node.hosts]
