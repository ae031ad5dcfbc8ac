"""The thread that adds and ends nodes: it asks provider and manager in turn, and carries out what the autoscaler says.

What it knows over a restart is what the provider lists. Nothing is done where this server does not lead, or where the
cluster does not answer: silence concludes nothing.
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
from hopsml.service.providers import GivenNode, NodeProvider
from hopsml.service.providers.exclusion import YarnExclusion
from hopsml.service.scheduler.demand import Demand
from hopsml.service.scheduler.resources import NOTHING, Resources

log = logging.getLogger("hopsml.service")

TURN_S = 3.0
ASKED_AGAIN_S = 300.0  # for the end of a node that goes on


class Scaler:
    """``turn`` is called by one thread; ``start`` and ``close`` begin and end that of a server."""

    def __init__(
        self,
        manager: Manager,
        provider: NodeProvider,
        groups: Sequence[NodeGroup],
        exclusion: YarnExclusion | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``exclusion``: how YARN itself is told of nodes that are drained."""
        self._manager, self._provider, self._exclusion, self._clock = manager, provider, exclusion, clock
        self._groups: Mapping[str, NodeGroup] = {group.name: group for group in groups}
        self._problem = ""
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._forget()
        self._view = autoscaler.decide(self._memory, self._groups, Demand.nothing(), (), self._clock()).view
        manager.scaled(self._view)

    def _forget(self) -> None:
        self._term = 0
        self._memory = FleetMemory()
        self._known: set[str] = set()
        self._draining: set[str] = set()
        self._ending_s: dict[str, float] = {}  # since when nodes are to end
        self._excluded: dict[str, str] = {}  # id -> host

    # ------------------------------------------------------------------------------------------ the thread

    def start(self) -> None:
        """Begin."""
        self._thread = threading.Thread(target=self._run, name="hopsml-nodes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; nodes stay as they are."""
        self._ended.set()
        self._provider.close()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(TURN_S):
            try:
                self.turn()
            except Exception:  # nodes that cannot be scaled must not end the thread that may do it later
                log.exception("nodes: a turn failed")

    # ------------------------------------------------------------------------------------------ a turn

    def turn(self) -> None:
        """Look, decide, act."""
        try:
            self._turn()
        except StoreError as error:  # who leads is not known
            self._trouble(f"nodes cannot be added or ended: {error}")

    def _turn(self) -> None:
        if not self._still_leads():
            self._forget()
            self._term = self._manager.term()  # whatever was remembered counted under an earlier lease
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
        decision = autoscaler.decide(
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
        """True if no other server has led since this one's cached state was read. Raises StoreError."""
        return bool(self._term) and self._manager.term() == self._term

    def _trouble(self, said: str) -> None:
        if said != self._problem:
            log.warning("%s", said)
        self._problem = said
        self._manager.scaled(replace(self._view, problem=said))

    def _fleet(self, given: Sequence[GivenNode], demand: Demand, there: Mapping[str, Resources]) -> list[FleetNode]:
        """Nodes as they stand, the provider's word and the cluster's together."""
        found = [node for node in given if node.is_draining and node.id not in self._known]  # by an earlier life
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

    def _phase(self, node: GivenNode, name: str) -> NodePhase:
        if node.is_ending or node.id in self._ending_s:
            return NodePhase.ENDING
        if node.id in self._draining:
            return NodePhase.DRAINING
        return NodePhase.UP if name else NodePhase.BOOTING

    def _is_late(self, action: ScalingAction, used: frozenset[str]) -> bool:
        """Whether a job was placed on a node just before it was closed."""
        if isinstance(action, LaunchNodes | RecallNode) or action.node.is_warned:
            return False
        return bool(action.node.name) and action.node.name in used

    def _carry_out(self, action: ScalingAction, nodes: Mapping[str, GivenNode]) -> None:
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
        host = node.name.rpartition(":")[0] or node.name
        if self._exclusion is not None and host:
            self._excluded[node.id] = host
            self._exclusion.exclude(host)

    def _admit(self, nodes: Mapping[str, GivenNode]) -> None:
        """What is gone is taken out of YARN's file: another node may get its name."""
        for each in [each for each in self._excluded if each not in nodes]:
            try:
                if self._exclusion is not None:
                    self._exclusion.admit(self._excluded[each])
            except ProviderError as error:
                log.warning("nodes: %s", error)
            del self._excluded[each]


def _called(node: GivenNode, name: str, demand: Demand) -> list[str]:
    """By all names that the cluster has had for it: jobs may be on one that the cluster does not list any more."""
    if name:
        return [name]
    return [each for each in demand.nodes.rows if (each.rpartition(":")[0] or each) in node.hosts]
