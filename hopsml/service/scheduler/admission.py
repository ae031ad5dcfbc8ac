"""Admission check: decide before queueing if a job could ever run, and else find the largest shape that could."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hopsml.service.scheduler.nodes import Nodes
from hopsml.service.scheduler.policy import GangRequest, Queue
from hopsml.service.scheduler.resources import UNLIMITED, GangShape, Resources, SlotGroup


@dataclass(frozen=True, slots=True)
class NodeKind:
    """Nodes of one group that an autoscaler could add.

    Attributes:
        capacity: Resources of one node.
        count: Maximum number of nodes to add.
        label: Label of the nodes.
        group: Name of the group.
        price: Relative price of a node.
        boot_s: Usual time until a node is in the cluster, in seconds.
    """

    capacity: Resources
    count: int
    label: str = ""
    group: str = ""
    price: float = 1.0
    boot_s: float = 0.0


def refusal(request: GangRequest, nodes: Nodes, queue: Queue, addable: tuple[NodeKind, ...] = ()) -> str:
    """Return the reason for which a job can never run, with the largest shape that could.

    Args:
        request: Request of the job.
        nodes: Nodes of the cluster; all of them count as empty.
        queue: Queue of the job.
        addable: Nodes that could be added.

    Returns:
        "" if the job can run.
    """
    gang = request.gang
    empty = nodes.emptied()
    for kind_number, kind in enumerate(addable):
        for number in range(kind.count):
            empty.set_node(f"+{kind_number}-{number}", kind.capacity, kind.label)
    if queue.limit is not None and not gang.least.within(queue.limit):
        most = f"queue {queue.name!r} has at most {amount(queue.limit)}"
        return f"needs {amount(gang.least)}, {most}; ask for less, or another queue"
    if queue.driver_limit_mib is not None and request.driver_mib > queue.driver_limit_mib:
        return (
            f"its driver needs {request.driver_mib} MiB, drivers in queue {queue.name!r} have at most"
            f" {queue.driver_limit_mib} MiB together; ask for a smaller driver, or another queue"
        )
    if empty.place(gang, least=True) is not None:
        return ""
    culprit = next((part for part in gang.parts if empty.place(GangShape((part,)), least=True) is None), None)
    if culprit is None:
        there = f"there are {amount(empty.capacity())}, on nodes that each of them would fit"
        return f"its parts do not fit together: they need {amount(gang.least)}; {there}; ask for less"
    return f"part {culprit.name!r} needs {culprit.at_least} x {amount(culprit.each)}; {_largest(culprit, empty)}"


def _largest(part: SlotGroup, empty: Nodes) -> str:
    """Return the text that names the largest part of this kind that would fit."""
    where = (
        f"nodes with label {part.label!r}" if part.label else "nodes without a label" if empty.has_labels() else "nodes"
    )
    if empty.place(GangShape((replace(part, count=1, least=1),))) is None:
        largest = empty.largest_node(part.label)
        if largest == Resources():
            return f"there are no {where}"
        return f"the largest of the {where} has {amount(largest)}, and a slot is on one node; ask for smaller slots"
    fits = empty.place(GangShape((replace(part, least=1),)))
    count = sum(fits[0].values()) if fits else 1
    return f"the {where} have room for {count} such slots at most; ask for {count}"


def amount(resources: Resources) -> str:
    """Return resources as text, such as ``2 GPUs, 8 cores, 16 GiB``; zero and unlimited amounts are omitted."""
    resources = Resources(
        *(0 if each >= UNLIMITED else each for each in (resources.gpus, resources.cores, resources.memory_mib))
    )
    memory = resources.memory_mib
    said = [
        f"{resources.gpus} GPU{'' if resources.gpus == 1 else 's'}" if resources.gpus else "",
        f"{resources.cores} core{'' if resources.cores == 1 else 's'}" if resources.cores else "",
        (
            f"{memory // 1024} GiB"
            if memory % 1024 == 0
            else f"{memory / 1024:.1f} GiB"
            if memory > 1024
            else f"{memory} MiB"
        )
        if memory
        else "",
    ]
    return ", ".join(one for one in said if one) or "nothing"
