"""Decision on which nodes to launch, drain and terminate, and the texts about nodes for which a job waits.

Waiting gangs are packed as a whole, in the scheduler's order, and the nodes they lack are added. Nodes that no gang
could use, and that were idle for long enough, are removed. Whole gangs are packed on current, booting and possible nodes, so
that fragmented room is counted correctly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hopsml.service.autoscaler.model import (
    DrainNode,
    FleetMemory,
    FleetNode,
    LaunchNodes,
    NodeGroup,
    NodePhase,
    RecallNode,
    ScalingAction,
    ScalingView,
    TerminateNode,
)
from hopsml.service.scheduler.cluster_status import Demand
from hopsml.service.scheduler.nodes import Array, Nodes
from hopsml.service.scheduler.reasons import NodeKind
from hopsml.service.scheduler.resources import GangShape, Placement, Resources


class Packing:
    """Copy of the nodes on which gangs are placed tentatively.

    Attributes:
        taken: Names of the nodes on which gangs were placed in this packing.
    """

    def __init__(self, nodes: Nodes) -> None:
        """Initialize the packing with a copy of the current nodes."""
        self._nodes = nodes.clone()
        self._hidden: set[str] = set()
        self.taken: set[str] = set()

    def add_node(self, name: str, capacity: Resources, label: str, *, hidden: bool = False) -> None:
        """Add a node, or open a closed one; a hidden node is used only where a method names it."""
        self._nodes.set_node(name, capacity, label)
        if hidden:
            self._hidden.add(name)

    def close(self, name: str) -> None:
        """Stop placing gangs on a node."""
        self._nodes.close(name)

    def give_back(self, gang: GangShape, placement: Placement) -> None:
        """Release the room of a gang, as if it had ended."""
        self._nodes.forget(gang, placement)

    def place(self, gang: GangShape, shown: Iterable[str] = ()) -> Placement | None:
        """Return a placement of a gang's minimum; None if it does not fit.

        Args:
            gang: Shape of the gang.
            shown: Names of hidden nodes that may be used.
        """
        return self._nodes.place(gang, self._free(set(shown)), least=True)

    def occupy(self, gang: GangShape, placement: Placement) -> None:
        """Place a gang tentatively; the hidden nodes that it uses become visible."""
        self._nodes.promise(gang, placement)
        names = {name for nodes in placement for name in nodes}
        self.taken |= names
        self._hidden -= names

    def _free(self, shown: set[str]) -> Array:
        """Return the free resources, without those of hidden nodes that are not shown."""
        free = self._nodes.copy()
        free[[self._nodes.rows[name] for name in self._hidden - shown]] = 0
        return free


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """Hidden nodes of one group, at a price for each node."""

    names: Sequence[str]
    price: float


def cheapest_placement(
    packing: Packing, gang: GangShape, offers: Sequence[NodeOffer], also: Sequence[str] = ()
) -> Placement | None:
    """Return the cheapest placement of a gang with offered nodes; None if the gang does not fit on all of them.

    Each group is tried as the preferred one, with the fewest nodes of the other groups that the gang needs.

    Args:
        packing: Current packing.
        gang: Shape of the gang.
        offers: Nodes that could be added.
        also: Hidden nodes that cost nothing.
    """
    if packing.place(gang, [*also, *(name for offer in offers for name in offer.names)]) is None:
        return None
    best: tuple[float, int, int, list[str]] | None = None
    for first in range(len(offers)):
        order = [offers[first], *offers[:first], *offers[first + 1 :]]
        counts = _fewest(packing, gang, order, also)
        cost = sum(offer.price * count for offer, count in zip(order, counts, strict=True))
        names = _names(order, counts)
        best = min(best or (cost, sum(counts), first, names), (cost, sum(counts), first, names))
    return packing.place(gang, [*also, *(best[3] if best is not None else [])])


def _names(offers: Sequence[NodeOffer], counts: Sequence[int]) -> list[str]:
    """Return the first nodes of each offer, as many as its count."""
    return [name for offer, count in zip(offers, counts, strict=True) for name in offer.names[:count]]


def _fewest(packing: Packing, gang: GangShape, order: Sequence[NodeOffer], also: Sequence[str]) -> list[int]:
    """Return how many nodes of each offer suffice, with as few of the last ones as possible."""
    counts = [len(offer.names) for offer in order]

    def fits() -> bool:
        return packing.place(gang, [*also, *_names(order, counts)]) is not None

    for index in reversed(range(len(order))):
        low, high = 0, counts[index]
        while low < high:  # ``high`` nodes are known to suffice
            counts[index] = (low + high) // 2
            if fits():
                high = counts[index]
            else:
                low = counts[index] + 1
        counts[index] = high
    return counts


def nodes_text(count: int, more: str = "") -> str:
    """Return a number of nodes as text, such as ``1 node`` or ``2 more nodes``."""
    return f"{count} {more}node{'' if count == 1 else 's'}"


def duration_text(seconds: float) -> str:
    """Return a duration as text, such as ``40 s`` or ``3 min``."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def booting_text(group: str, count: int, since_s: float, usual_s: float, is_known: bool) -> str:
    """Return the text about nodes that are booting; ``usual_s`` is a measured mean if ``is_known``, else a limit."""
    usually = f"usually {duration_text(usual_s)}" if is_known else f"at most {duration_text(usual_s)}"
    verb = "is" if count == 1 else "are"
    return f"{nodes_text(count)} of {group!r} {verb} booting (since {duration_text(since_s)}, {usually})"


def added_text(group: str, count: int, boot_s: float) -> str:
    """Return the text about nodes that are about to be launched."""
    return f"waits for {nodes_text(count, 'more ')} of group {group!r}, about {duration_text(boot_s)}"


def resting_text(group: str, failures: int, pause_s: float) -> str:
    """Return the text about a group that is paused after failed launches."""
    often = "" if failures == 1 else f", {failures} times in a row"
    return f"requested nodes of {group!r} did not start{often}; they are requested again in {duration_text(pause_s)}"


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """Result of one decision.

    Attributes:
        memory: Memory to be passed to the next decision.
        actions: Actions on nodes.
        view: Information for the scheduler and for users.
    """

    memory: FleetMemory
    actions: tuple[ScalingAction, ...]
    view: ScalingView


def decide_scaling(
    memory: FleetMemory, groups: Mapping[str, NodeGroup], demand: Demand, fleet: Sequence[FleetNode], now: float
) -> ScalingDecision:
    """Decide which nodes of the groups to launch, drain, recall and terminate.

    The same arguments give the same decision.

    Args:
        memory: Memory of the previous decision.
        groups: Groups of nodes, in order of preference; nodes of other groups are ignored.
        demand: Waiting gangs and current nodes of the scheduler.
        fleet: Nodes of the provider.
        now: Time in seconds of the caller's clock.
    """
    nodes = [node for node in fleet if node.group in groups]
    memory, overdue = memory.looked(groups, nodes, now)
    listed = Counter(node.group for node in nodes)
    plan = _Plan(memory, groups, demand, [node for node in nodes if node not in overdue], listed, now)
    for job, gang in demand.gangs:
        plan.plan_nodes_for(job, gang)
    launches = plan.launches(listed)
    memory = plan.idle(memory)
    ended = [
        *(TerminateNode(node, "the node did not start in time") for node in overdue if not node.is_used),
        *plan.terminations(),
    ]
    drains = plan.drains(memory)
    recalls = [RecallNode(node) for node in plan.nodes if node.id in plan.recalled]
    return ScalingDecision(memory, (*ended, *drains, *recalls, *launches), plan.view(drains))


def growth_text(gang: GangShape, nodes: Nodes, addable: Sequence[NodeKind]) -> str:
    """Return the text that names the nodes a gang would need in addition to all current nodes; "" if none.

    The current nodes count as empty.

    Args:
        gang: Shape of the gang.
        nodes: Current nodes.
        addable: Nodes that could be added.
    """
    packing, offers = Packing(nodes.without_usage()), []
    for kind in sorted(addable, key=lambda kind: kind.price):
        names = [f"+{kind.group}/{number}" for number in range(kind.count)]
        for name in names:
            packing.add_node(name, kind.capacity, kind.label, hidden=True)
        offers.append(NodeOffer(names, kind.price))
    placement = cheapest_placement(packing, gang, offers)
    used = {name for placed in placement or () for name in placed}
    counts = {kind.group: sum(name.startswith(f"+{kind.group}/") for name in used) for kind in addable}
    return "; ".join(added_text(kind.group, counts[kind.group], kind.boot_s) for kind in addable if counts[kind.group])


class _Plan:
    """One decision in progress.

    Booting nodes, and nodes that could be added, have names in the packing that differ from all node names.
    """

    def __init__(
        self,
        memory: FleetMemory,
        groups: Mapping[str, NodeGroup],
        demand: Demand,
        nodes: Sequence[FleetNode],
        listed: Counter[str],
        now: float,
    ) -> None:
        self.nodes, self.recalled = sorted(nodes, key=lambda node: node.id), set[str]()
        self._memory, self._groups, self._demand, self._now = memory, groups, demand, now
        self._packing = Packing(demand.nodes)
        self._new: dict[str, list[str]] = {name: [] for name in groups}  # names of possible nodes in the packing
        self._names: dict[str, tuple[str, FleetNode | None]] = {}  # name in the packing -> group, booting node
        self._leaving: dict[str, FleetNode] = {}  # name -> draining node that may be recalled
        self._launched: dict[str, dict[str, None]] = {name: {} for name in groups}
        self._jobs: dict[str, dict[str, None]] = {name: {} for name in groups}
        self._refused: dict[GangShape, None] = {}
        self._waits: dict[str, str] = {}
        for node in self.nodes:
            self._put(node)
        self._offer(listed)
        self._foresee()

    # ------------------------------------------------------------------------------------- current nodes

    def _put(self, node: FleetNode) -> None:
        """Add a node of the provider to the packing."""
        group = self._groups[node.group]
        if node.phase == NodePhase.BOOTING and not node.is_warned and node.id not in self._memory.came:
            name = f"booting {node.id}"
            self._names[name] = (node.group, node)
            self._packing.add_node(name, *self._memory.group(node.group).shape(group))
        elif node.name and (node.is_warned or node.phase != NodePhase.UP):
            self._packing.close(node.name)
            if node.phase == NodePhase.DRAINING and not node.is_warned:
                self._leaving[node.name] = node
                self._packing.add_node(node.name, node.capacity, node.label, hidden=True)

    def _rests(self, group: str) -> bool:
        """Return True if a group is paused after failed launches."""
        return self._now < self._memory.group(group).rests_until_s

    def _offer(self, listed: Counter[str]) -> None:
        """Add the nodes that each group could launch as hidden nodes to the packing."""
        for name, group in self._groups.items():
            shape = self._memory.group(name).shape(group)
            for number in range(0 if self._rests(name) else group.most - listed[name]):
                new = f"+{name}/{number}"
                self._names[new] = (name, None)
                self._new[name].append(new)
                self._packing.add_node(new, *shape, hidden=True)

    def _foresee(self) -> None:
        """Release the room of gangs that will end before a new node could have booted."""
        boots = [
            self._memory.group(name).usual_boot_s(group) for name, group in self._groups.items() if self._new[name]
        ]
        for end in self._demand.ends:
            if end.at_s <= self._now + min(boots, default=0.0):
                self._packing.give_back(end.gang, end.placement)

    # ------------------------------------------------------------------------------------- waiting gangs

    def plan_nodes_for(self, job: str, gang: GangShape) -> None:
        """Place a gang, with additional nodes if it needs them, and note the nodes for which it waits."""
        if gang in self._refused:
            placement = None
        else:
            placement = self._packing.place(gang) or self._grown(gang)
        if placement is None:
            self._refused[gang] = None
            self._waits[job] = self._told_of_rest(gang)
            return
        self._packing.occupy(gang, placement)
        used = {name: None for nodes in placement for name in nodes}
        for name in used:
            if name in self._leaving:
                self.recalled.add(self._leaving.pop(name).id)
            group, booting = self._names.get(name, ("", None))
            if group and booting is None:
                self._launched[group][name] = None
                self._jobs[group][job] = None
        self._new = {group: [name for name in names if name not in used] for group, names in self._new.items()}
        self._waits[job] = "; ".join(self._told(used))

    def _grown(self, gang: GangShape) -> Placement | None:
        """Return a placement with draining nodes or the cheapest additional nodes; None if the gang does not fit."""
        leaving = list(self._leaving)
        if (placement := self._packing.place(gang, leaving)) is not None:
            return placement
        offers = [NodeOffer(names, self._groups[name].price) for name, names in self._new.items() if names]
        return cheapest_placement(self._packing, gang, sorted(offers, key=lambda offer: offer.price), leaving)

    def _told(self, used: Mapping[str, None]) -> Iterator[str]:
        """Yield texts about the nodes for which a job waits."""
        found = [self._names[name] for name in used if name in self._names]
        for name, group in self._groups.items():
            memory = self._memory.group(name)
            usual_s = memory.usual_boot_s(group)
            boots = [node.launched_s for of, node in found if of == name and node is not None]
            if boots:
                since_s = max(0.0, self._now - min(boots))
                yield booting_text(name, len(boots), since_s, usual_s, bool(memory.boots_s))
            if new := sum(of == name and node is None for of, node in found):
                yield added_text(name, new, usual_s)

    def _told_of_rest(self, gang: GangShape) -> str:
        """Return the text about paused groups that a gang could use."""
        labels = {part.label for part in gang.parts}
        return "; ".join(
            resting_text(name, memory.failures, memory.rests_until_s - self._now)
            for name, group in self._groups.items()
            if group.label in labels and self._rests(name)
            for memory in (self._memory.group(name),)
        )

    # ------------------------------------------------------------------------------------- actions

    def _alive(self, group: str) -> list[FleetNode]:
        """Return the nodes of a group that are up or booting and will remain."""
        return [
            node
            for node in self.nodes
            if node.group == group
            and not node.is_warned
            and (node.phase in (NodePhase.BOOTING, NodePhase.UP) or node.id in self.recalled)
        ]

    def launches(self, listed: Counter[str]) -> list[LaunchNodes]:
        """Return the launches for gangs, and for groups below their minimum."""
        found = []
        for name, group in self._groups.items():
            count = len(self._launched[name])
            if not self._rests(name):
                missing = group.least - len(self._alive(name))
                count = max(count, min(missing, group.most - listed[name]))
            if count > 0:
                found.append(LaunchNodes(name, count, tuple(self._jobs[name])))
        return found

    def idle(self, memory: FleetMemory) -> FleetMemory:
        """Return the memory with the start of each node's idle time.

        A node is idle if it is unused and no waiting gang could use it.
        """
        wanting = self._could_ever_run()
        idle = {
            node.id: memory.idle_s.get(node.id, self._now)
            for node in self.nodes
            if node.phase == NodePhase.UP and not node.is_used and not self._is_wanted(node, wanting)
        }
        return replace(memory, idle_s=idle)

    def _is_wanted(self, node: FleetNode, wanting: Sequence[GangShape]) -> bool:
        """Return True if a gang is placed on a node, or a slot of ``wanting`` would fit on it."""
        parts = (part for gang in wanting for part in gang.parts)
        return node.name in self._packing.taken or any(
            part.label == node.label and part.each.within(node.capacity) for part in parts
        )

    def _could_ever_run(self) -> list[GangShape]:
        """Return the gangs that fit neither now nor with new nodes, but will fit when other jobs have ended."""
        if not self._refused:
            return []
        empty = Packing(self._demand.nodes.without_usage())
        for name, group in self._groups.items():
            shape = self._memory.group(name).shape(group)
            up = sum(node.group == name and node.phase == NodePhase.UP for node in self.nodes)
            for number in range(group.most - up):
                empty.add_node(f"+{name}/{number}", *shape)
        return [gang for gang in self._refused if empty.place(gang) is not None]

    def drains(self, memory: FleetMemory) -> list[DrainNode]:
        """Return the drains: warned nodes at once; idle nodes, the longest idle first, down to the group's minimum."""
        found = [
            DrainNode(node, "the node will be removed")
            for node in self.nodes
            if node.is_warned and node.phase in (NodePhase.BOOTING, NodePhase.UP)
        ]
        for name, group in self._groups.items():
            alive = self._alive(name)
            idle = [node for node in alive if node.id in memory.idle_s]
            idle.sort(key=lambda node: (memory.idle_s[node.id], node.id))
            long = [node for node in idle if self._now - memory.idle_s[node.id] >= group.idle_s]
            for node in long[: max(0, len(alive) - group.least)]:
                found.append(DrainNode(node, f"idle for {duration_text(self._now - memory.idle_s[node.id])}"))
        return found

    def terminations(self) -> list[TerminateNode]:
        """Return the terminations of drained nodes that are neither used nor promised."""
        return [
            TerminateNode(node, "no container runs on the node")
            for node in self.nodes
            if node.phase == NodePhase.DRAINING and not node.is_used and node.id not in self.recalled
        ]

    def view(self, drains: Sequence[DrainNode]) -> ScalingView:
        """Return the information for the scheduler, for admission and for reasons for which jobs wait."""
        leaving = [node for node in self.nodes if node.phase in (NodePhase.DRAINING, NodePhase.ENDING)]
        closed = {node.name for node in [*leaving, *(drain.node for drain in drains)] if node.id not in self.recalled}
        addable = []
        for name, group in self._groups.items():
            memory = self._memory.group(name)
            there = sum(node.phase == NodePhase.UP and node.name not in closed for node in self._alive(name))
            capacity, label = memory.shape(group)
            kind = NodeKind(capacity, group.most - there, label, name, group.price)
            addable.append(replace(kind, boot_s=memory.usual_boot_s(group)))
        waits = {job: said for job, said in self._waits.items() if said}
        return ScalingView(frozenset(closed - {""}), tuple(addable), waits)
