"""Layout of a group: ranks in ring order, and the variables by which a worker finds the others.

Pure: no socket, thread, clock or disk. The same members in any order result in the same layout; numbers in host names,
addresses, racks and PCI buses are ordered by value (9 before 10).

Ring order makes neighbours close: racks, then hosts, then the GPUs of a host by their links. TensorFlow connects its
ring over the workers in the lexicographic order of their task names, so that worker 10 comes before worker 2; each
worker gets the task index that makes this order equal to the ring order.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from ipaddress import IPv6Address, ip_address
from itertools import groupby
from typing import Any

from hopsml.cluster.shared.gpus import Topology, best_ring, environment_for, parse_topology
from hopsml.cluster.shared.spec import Roles
from hopsml.core.variables import Settings
from hopsml.errors import ArgumentError, EnvironmentConflict


@lru_cache(maxsize=8192)  # a layout calls it three times per member, during group start-up
def host_key(host: str) -> tuple[Any, ...]:
    """Return a sort key that orders hosts by number: 10.0.0.9 before 10.0.0.10, node9 before node10.

    Two spellings of one address (::1 and 0:0::1, [::1], Node-1.lan.) have one key.
    """
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        name = host.rstrip(".").lower()
        return (9, natural_key(name), name)
    if isinstance(address, IPv6Address):
        mapped = address.ipv4_mapped
        return (6, int(address), address.scope_id or "") if mapped is None else (4, int(mapped), "")
    return (4, int(address), "")


def natural_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key that compares digits as numbers: rack2 before rack10."""
    parts = re.split(r"([0-9]+)", text)
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts if part)


def bus_key(bus_id: str) -> tuple[tuple[int, ...], str]:
    """Return a sort key for a PCI bus id.

    00000000:3B:00.0 and 0000:3b:00.0 are equal; other text is compared as text.
    """
    try:
        return tuple(int(part, 16) for part in re.split("[:.]", bus_id)), ""
    except ValueError:
        return (), bus_id


EVALUATOR_MIN_WORKERS = 3  # with fewer, one evaluator would leave a single trainer

CHIEF, WORKER, PS, EVALUATOR = "chief", "worker", "ps", "evaluator"
TRAINING_ROLES = (CHIEF, WORKER)
# Set for every worker that trains; a user's own value is refused or retained, never replaced silently.
GROUP_NAMES = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK")
ADDRESS = "HOPSML_ADDRESS"  # host:port that the agent reserves for its worker, by which the others reach it
OURS = "HOPSML_GROUP_VARIABLES"  # names of those variables that hopsml has set: a worker may start another run


@dataclass(frozen=True)
class Member:
    """Agent that takes part in a group: its addresses and the devices that it holds."""

    agent_id: str
    host: str  # address by which the others reach it: IPv4, IPv6 or a name
    port: int
    collective_port: int
    hostname: str
    rack: str = ""
    gpu_indices: tuple[int, ...] = ()  # numbered as by nvidia-smi on that host
    gpu_bus_ids: tuple[str, ...] = ()  # of the same GPUs, in the same order
    topology: str = ""  # output of `nvidia-smi topo -m` on that host
    slot: int = 0  # order among the members of a host that have no GPUs
    guards: bool = False  # TensorFlow's server in its worker authenticates its peers, and itself

    @property
    def address(self) -> str:
        """Address as host:port, with brackets around an IPv6 address."""
        return _address(self.host, self.port)

    @property
    def collective_address(self) -> str:
        """Address of its collective port, as host:port."""
        return _address(self.host, self.collective_port)


def _address(host: str, port: int) -> str:
    host = host.strip("[]")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True)
class Placement:
    """Rank, role, devices and variables of one member in a layout.

    Ranks are unique over all members: the ``world_size`` members that train come first, in ring order, then parameter
    servers and the evaluator. ``local_rank`` counts in rank order within the host.
    """

    agent_id: str
    rank: int
    local_rank: int
    world_size: int  # chief and workers
    role: str  # chief | worker | ps | evaluator
    task_index: int
    gpu_indices: tuple[int, ...]  # of the host, in ring order: the order of CUDA_VISIBLE_DEVICES
    ring_order: str  # collective_ring_order: devices as the worker numbers them; "" for one device or none
    env: dict[str, str] = field(hash=False)  # variables that differ between members


@dataclass(frozen=True)
class Layout:
    """Assignment of ranks and roles to the members of one generation of a group."""

    placements: tuple[Placement, ...]  # in rank order
    cluster: dict[str, list[str]]  # role -> addresses by task index
    leader: str  # address of rank 0
    collective: tuple[str, ...]  # collective addresses of those that train, by rank
    notes: tuple[str, ...] = ()  # for the log: what could not be taken into account, and why
    guarded: bool = False  # every member authenticates its peers

    @cached_property
    def cluster_json(self) -> str:
        """Cluster as JSON, encoded once: it is long, and the same for every member."""
        return json.dumps(self.cluster, separators=(",", ":"))


def group_variables(cluster_json: str, leader: str, world_size: int, role: str, task_index: int) -> dict[str, str]:
    """Return the variables by which one worker finds the others, in addition to those of its placement.

    They are TF_CONFIG, unless ``cluster_json`` is empty, and, for a role that trains, the variables of
    torch.distributed that are equal on all ranks. The worker's agent creates them from the messages it receives.

    Args:
        cluster_json: TF_CONFIG's "cluster".
        leader: address (host:port) of rank 0.
        world_size: number of members that train.
        role: role of the worker.
        task_index: its index within the role.
    """
    found = {}
    if role in TRAINING_ROLES:
        host, _, port = leader.rpartition(":")
        found = {"MASTER_ADDR": host.strip("[]"), "MASTER_PORT": port, "WORLD_SIZE": str(world_size)}
    if cluster_json:
        found["TF_CONFIG"] = f'{{"cluster":{cluster_json},"task":{{"type":"{role}","index":{task_index}}}}}'
    return found


_ALL_TRAIN = Roles()
MOST_NAMED = 16  # members that a note about the ring order names
RingOrder = Sequence[int | str]  # ranks, or names or addresses of hosts
_Assignment = tuple[Member, str, int]  # role, task index


def form(
    members: Sequence[Member],
    roles: Roles = _ALL_TRAIN,
    *,
    evaluator_apart: bool = False,
    order: RingOrder = (),
    is_complete: bool = True,
) -> Layout:
    """Return the layout of a new group: each member's rank, role, devices and variables.

    Parameter servers and the evaluator are the members with the fewest GPUs, among equals the last of the ring; the
    first of the others is the chief.

    Args:
        members: agents of the group, in any order.
        roles: number of members per role.
        evaluator_apart: True to give the evaluator a separate cluster, since a strategy that connects to every task
            would wait for it indefinitely.
        order: ring order of those that train, as ``ordered`` takes it.
        is_complete: as of ``ordered``.

    Raises:
        ArgumentError: for no members, two members with one address or agent id, roles that the members cannot fill,
            workers that hold different numbers of GPUs, and an order of other hosts or ranks.
    """
    _check_members(members)
    _check_roles(len(members), roles)
    notes: list[str] = []
    ring = [member for host in _hosts_in_ring_order(members) for member in _host_in_ring_order(host, notes)]
    trainers, servers = _spare(ring, roles.parameter_servers)
    trainers, evaluators = _spare(trainers, int(roles.evaluator))
    _check_devices(trainers)
    if order:
        trainers = ordered(trainers, order, is_complete)
        named = [f"{member.hostname} (rank {rank})" for rank, member in enumerate(trainers[:MOST_NAMED])]
        notes.append("ring order as given: " + ", ".join([*named, *(["..."] if len(trainers) > MOST_NAMED else [])]))
    return _laid_out(trainers, servers, evaluators, notes, evaluator_apart)


def ordered(ring: Sequence[Member], order: RingOrder, is_complete: bool = True) -> list[Member]:
    """Return members that train in a given ring order.

    Args:
        ring: the members in the order of their places.
        order: names or addresses of hosts, whose members stay in the order of ``ring``; or ranks, the numbers of
            members in ``ring``.
        is_complete: True if the order must name each host or rank once. Otherwise, in a group whose members change,
            names of absent ones are ignored, and members that are not named follow in the order of ``ring``.

    Raises:
        ArgumentError: the order does not name each host or rank once, although it must.
    """
    if any(isinstance(one, int) for one in order):
        present = [rank for rank in order if isinstance(rank, int) and rank < len(ring)]
        if is_complete and (len(order) != len(ring) or len(present) != len(ring)):
            raise ArgumentError(
                f"ring_order={list(order)} of a group of {len(ring)}: it must hold each rank from 0 to {len(ring) - 1} once"
            )
        return [ring[rank] for rank in (*present, *(rank for rank in range(len(ring)) if rank not in set(present)))]
    places = {host_key(str(host)): place for place, host in enumerate(order)}
    found = [min((places[key] for key in _names_of(one) if key in places), default=len(order)) for one in ring]
    if is_complete and (len(order) in found or set(range(len(order))) - set(found)):
        present_hosts = sorted({one.hostname for one in ring}, key=host_key)
        raise ArgumentError(
            f"ring_order={list(order)}: it must name each host of the group once, which are {', '.join(present_hosts)}"
        )
    return [one for _, one in sorted(zip(found, ring, strict=True), key=lambda pair: pair[0])]


def reorder(ring: Sequence[Member], newcomers: Sequence[Member], order: RingOrder) -> list[Member]:
    """Return the ring with newcomers in a given ring order; the leader remains the same.

    Newcomers to an order of ranks come last.
    """
    if not order:
        return insert(ring, newcomers)
    if any(isinstance(one, int) for one in order):
        return [*ring, *newcomers]
    leader, *others = insert(ring, newcomers)
    return [leader, *ordered(others, order, is_complete=False)]


def _names_of(member: Member) -> set[tuple[Any, ...]]:
    """Return the keys of the names under which a member's host may be given."""
    return {host_key(member.host), host_key(member.hostname)}


def arrange(ring: Sequence[Member]) -> Layout:
    """Return the layout of members that all train, in the given order; the first one is the chief.

    Errors as of ``form``.
    """
    _check_members(ring)
    _check_devices(ring)
    return _laid_out(ring)


def insert(ring: Sequence[Member], newcomers: Sequence[Member]) -> list[Member]:
    """Return the ring with newcomers, each after the last member of its host, or at the end.

    The leader remains the same.
    """
    grown = list(ring)
    for newcomer in newcomers:
        beside = [place for place, member in enumerate(grown) if host_key(member.host) == host_key(newcomer.host)]
        grown.insert(beside[-1] + 1 if beside else len(grown), newcomer)
    return grown


def _laid_out(
    trainers: Sequence[Member],
    servers: Sequence[Member] = (),
    evaluators: Sequence[Member] = (),
    notes: Sequence[str] = (),
    evaluator_apart: bool = False,
) -> Layout:
    """Assign ranks, roles and variables to members in the given order."""
    assignments: list[_Assignment] = [
        (trainers[0], CHIEF, 0),
        *((m, WORKER, i) for m, i in zip(trainers[1:], ring_task_indices(len(trainers) - 1), strict=True)),
        *((m, PS, i) for i, m in enumerate(servers)),
        *((m, EVALUATOR, i) for i, m in enumerate(evaluators)),
    ]
    cluster, placements = _cluster(assignments), _placements(assignments, len(trainers))
    if evaluator_apart and EVALUATOR in cluster:
        own = json.dumps({EVALUATOR: cluster.pop(EVALUATOR)}, separators=(",", ":"))
        variables = group_variables(own, trainers[0].address, len(trainers), EVALUATOR, 0)
        placements = (*placements[:-1], replace(placements[-1], env=placements[-1].env | variables))
    return Layout(
        placements=placements,
        cluster=cluster,
        leader=trainers[0].address,
        collective=tuple(member.collective_address for member in trainers),
        notes=tuple(notes),
        guarded=all(member.guards for member in (*trainers, *servers, *evaluators)),
    )


def ring_task_indices(count: int) -> tuple[int, ...]:
    """Return the task indices of ``count`` workers in ring order, ascending when read as text (0, 1, 10, 11, 2)."""
    return tuple(sorted(range(count), key=str))


# -- validation


def _check_members(members: Sequence[Member]) -> None:
    """Raise ArgumentError for members without an address, with inconsistent GPUs, or with equal addresses or ids."""
    if not members:
        raise ArgumentError("a layout needs at least one member; none was given")
    for member in members:
        if not member.host or not 1 <= member.port <= 65535:
            raise ArgumentError(
                f"agent {member.agent_id} has the address {member.address!r}: a host and a port from 1 to "
                "65535 are needed"
            )
        if member.gpu_bus_ids and len(member.gpu_bus_ids) != len(member.gpu_indices):
            raise ArgumentError(
                f"agent {member.agent_id} has {len(member.gpu_indices)} GPU indices and {len(member.gpu_bus_ids)} "
                "bus ids; it needs one bus id for each index, or none"
            )
        if len(set(member.gpu_indices)) != len(member.gpu_indices):
            raise ArgumentError(f"agent {member.agent_id} lists a GPU twice: {list(member.gpu_indices)}")
    _check_distinct("agent id", [(member.agent_id, member.agent_id) for member in members], members)
    _check_distinct("address", [((host_key(m.host), m.port), m.address) for m in members], members)


def _check_distinct(what: str, keys: Sequence[tuple[object, str]], members: Sequence[Member]) -> None:
    """Raise ArgumentError if two members have the same key."""
    first: dict[object, Member] = {}
    for (key, text), member in zip(keys, members, strict=True):
        other = first.setdefault(key, member)
        if other is not member:
            raise ArgumentError(
                f"two members have the {what} {text}, {other.agent_id} on {other.hostname} and {member.agent_id} on "
                f"{member.hostname}; each member needs its own"
            )


def _check_roles(count: int, roles: Roles) -> None:
    """Raise ArgumentError for roles that ``count`` members cannot fill."""
    servers = roles.parameter_servers
    if servers < 0 or servers >= count:
        raise ArgumentError(
            f"parameter_servers={servers} with {count} member(s): at least one member must train; use 0 to "
            f"{count - 1} parameter servers"
        )
    if roles.evaluator and count - servers < EVALUATOR_MIN_WORKERS:
        raise ArgumentError(
            f"evaluator=True with {count - servers} worker(s): the evaluator is the last of at least "
            f"{EVALUATOR_MIN_WORKERS} workers; request more workers, or omit the evaluator"
        )


def _check_devices(trainers: Sequence[Member]) -> None:
    """Raise ArgumentError if trainers hold different numbers of GPUs."""
    counts = Counter(len(member.gpu_indices) for member in trainers)
    if len(counts) > 1:
        held = [f"{m.agent_id} on {m.hostname}: {len(m.gpu_indices)}" for m in trainers]
        shown = ", ".join([*held[:20], *(["..."] if len(held) > 20 else [])])
        raise ArgumentError(
            f"the workers hold different numbers of GPUs ({shown}), but all need the same number; set the same "
            "spark.executor.resource.gpu.amount for all"
        )


# -- ring order


def _hosts_in_ring_order(members: Sequence[Member]) -> list[list[Member]]:
    """Return the members of each host, with hosts of one rack together."""
    hosts: dict[tuple[Any, ...], list[Member]] = {}
    for member in members:
        hosts.setdefault(host_key(member.host), []).append(member)

    def place(host: tuple[Any, ...]) -> tuple[Any, ...]:
        rack = min(natural_key(member.rack) for member in hosts[host])  # one rack, should members disagree
        return (rack, host)

    return [hosts[host] for host in sorted(hosts, key=place)]


def _host_in_ring_order(host: Sequence[Member], notes: list[str]) -> list[Member]:
    """Return the members of one host in ring order, with the GPUs of each in ring order too.

    The order follows the links between GPUs if their topology is known, else bus, index, slot and port.
    """
    topology = _topology(host, notes)
    if topology is None:
        return sorted((_by_bus(member) for member in host), key=_plain_key)
    with_gpus = [replace(m, gpu_indices=topology.ring(m.gpu_indices)) for m in host if m.gpu_indices]
    with_gpus.sort(key=_plain_key)
    nearness = [[_nearness(topology, a, b) if a is not b else 0 for b in with_gpus] for a in with_gpus]
    without = sorted((m for m in host if not m.gpu_indices), key=_plain_key)
    return [*(with_gpus[i] for i in best_ring(nearness)), *without]


def _nearness(topology: Topology, first: Member, second: Member) -> int:
    """Return the strength of the best link from any GPU of one member to any of the other."""
    return max(topology.strength(a, b) for a in first.gpu_indices for b in second.gpu_indices)


def _topology(host: Sequence[Member], notes: list[str]) -> Topology | None:
    """Return the links of this host, if some member's text contains all GPUs that the members hold.

    Repeated indices are those of containers that each see their own GPU 0: then indices identify nothing.
    """
    held = [index for member in host for index in member.gpu_indices]
    if len(held) < 2 or len(set(held)) < len(held):
        return None
    for text in sorted({member.topology for member in host if member.topology}):
        try:
            topology = parse_topology(text)
        except ArgumentError as error:
            notes.append(f"the GPU topology of {host[0].hostname} is ignored: {error}")
            continue
        if topology is not None and set(held) <= set(topology.gpus):
            return topology
    return None


def _by_bus(member: Member) -> Member:
    """Return a member with its GPUs in bus order."""
    if not member.gpu_bus_ids:
        return replace(member, gpu_indices=tuple(sorted(member.gpu_indices)))
    pairs = sorted(zip(map(bus_key, member.gpu_bus_ids), member.gpu_indices, member.gpu_bus_ids, strict=True))
    return replace(member, gpu_indices=tuple(p[1] for p in pairs), gpu_bus_ids=tuple(p[2] for p in pairs))


def _plain_key(member: Member) -> tuple[Any, ...]:
    """Return the sort key of a member by bus, index, slot and port; members without GPUs come last."""
    return (
        not member.gpu_indices,
        min(map(bus_key, member.gpu_bus_ids), default=((), "")),
        min(member.gpu_indices, default=0),
        member.slot,
        member.port,
    )


# -- roles and variables


def _spare(ring: Sequence[Member], count: int) -> tuple[list[Member], list[Member]]:
    """Split off the ``count`` members with the fewest GPUs, among equals the last in the ring.

    Returns the others and these.
    """
    order = sorted(range(len(ring)), key=lambda i: (len(ring[i].gpu_indices), -i))
    spared = set(order[:count])
    kept = [member for i, member in enumerate(ring) if i not in spared]
    return kept, [member for i, member in enumerate(ring) if i in spared]


def _cluster(assignments: Sequence[_Assignment]) -> dict[str, list[str]]:
    """Return TF_CONFIG's cluster: addresses by role and task index."""
    cluster: dict[str, list[str]] = {}
    for role, tasks in groupby(assignments, key=lambda assignment: assignment[1]):
        cluster[role] = [member.address for member, _, _ in sorted(tasks, key=lambda assignment: assignment[2])]
    return cluster


def _placements(assignments: Sequence[_Assignment], world_size: int) -> tuple[Placement, ...]:
    """Return the placement of each member, in rank order."""
    hosts = [host_key(member.host) for member, _, _ in assignments]
    trainers_on = Counter(hosts[:world_size])
    node_ranks = {host: node for node, host in enumerate(dict.fromkeys(hosts))}
    seen: Counter[tuple[Any, ...]] = Counter()
    placements = []
    for rank, ((member, role, task_index), host) in enumerate(zip(assignments, hosts, strict=True)):
        gpu_indices = () if role == PS else member.gpu_indices  # a parameter server would only occupy their memory
        env = environment_for(gpu_indices) | {ADDRESS: member.address}
        if role in TRAINING_ROLES:
            env |= {
                "RANK": str(rank),
                "LOCAL_RANK": str(seen[host]),
                "LOCAL_WORLD_SIZE": str(trainers_on[host]),
                "NODE_RANK": str(node_ranks[host]),
            }
        # CUDA_VISIBLE_DEVICES is in ring order already, so the worker's own numbers ascend along the ring, and one
        # string serves workers whose hosts are wired differently.
        ring_order = ",".join(map(str, range(len(gpu_indices)))) if len(gpu_indices) > 1 else ""
        placements.append(
            Placement(member.agent_id, rank, seen[host], world_size, role, task_index, gpu_indices, ring_order, env)
        )
        seen[host] += 1
    return tuple(placements)


# -- the user's own environment


def check_environment(environ: Mapping[str, str], honour: bool = False) -> None:
    """Check that hopsml overwrites no TF_CONFIG, CUDA_VISIBLE_DEVICES or variable of torch.distributed (RANK ...).

    Args:
        environ: the environment.
        honour: True to accept these variables: the user's values then take precedence over the layout's.

    Raises:
        EnvironmentConflict: for a variable that is set, or for a TF_CONFIG to be honoured that is no JSON object.
    """
    tf_config = environ.get("TF_CONFIG", "").strip()
    if not honour:
        ours = Settings(environ).group_variables
        found = {"CUDA_VISIBLE_DEVICES": environ.get("CUDA_VISIBLE_DEVICES")}
        found |= {"TF_CONFIG": tf_config or None} if "TF_CONFIG" not in ours else {}
        found |= {name: environ.get(name) for name in GROUP_NAMES if name not in ours}
        for name, value in found.items():
            if value is not None:
                raise EnvironmentConflict(
                    f"{name} is already set ({_shortened(value)!r}), but hopsml must set it for every worker; unset "
                    "it, or pass honour_environment=True to use its value"
                )
    if tf_config and not _is_json_object(tf_config):
        raise EnvironmentConflict(f"TF_CONFIG is not a JSON object: {_shortened(tf_config)!r}; correct it, or unset it")


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _shortened(value: str) -> str:
    return value if len(value) <= 60 else value[:57] + "..."
