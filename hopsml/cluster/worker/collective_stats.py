"""Effective settings of a worker: collectives and optimizers that this process used, for the report at its end.

``group``: what formed it, ``size``: its workers. Of the longest list of gradients that was reduced in one step: their
number (``gradients``), the number of collectives (``collectives``), the largest number in one of these
(``merge_scope``, 0 for all) and the ``path``. ``operations``: those that torch.distributed has requested of the group.
``settings``: what hopsml's collective does with gradients, as text. ``why``: the reason why a strategy uses these
collectives. ``nccl``: the variables by which NCCL's algorithms are set, if there are any. ``trained``: the framework
whose optimizer was given gradients in this process, in a group or not; updates of variables without an optimizer are
not recorded. ``exchanged``: the function has called ``hopsml.all_reduce``. ``command``: this process runs a command.
"""

from __future__ import annotations

import os

# Variables of NCCL that choose algorithm and protocol, and files with rings or trees and with the topology.
NCCL_VARIABLES = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_GRAPH_FILE", "NCCL_TOPO_FILE")
NCCL_FILES = ("NCCL_GRAPH_FILE", "NCCL_TOPO_FILE")
PARAMETER_SERVERS = "parameter servers"  # value of ``group``

_seen: dict[str, int | str] = {}


def record_group(by: str, size: int) -> None:
    """Record that this process is one of ``size`` that train together; of several groups the largest counts.

    Args:
        by: What formed the group.
        size: Number of its workers.
    """
    if size > int(_seen.get("size", 0)):
        _seen.update(group=by, size=size)
    found = [f"{name}={os.environ[name]}" for name in NCCL_VARIABLES if name in os.environ]
    if found:
        _seen["nccl"] = " ".join(found)


def record_reduction(gradients: int, collectives: int, merge_scope: int, path: str) -> None:
    """Record that ``gradients`` gradients were reduced over the group in ``collectives`` collectives.

    Args:
        gradients: Number of gradients; the largest number counts.
        collectives: Number of collectives.
        merge_scope: Largest number of gradients in one collective; 0 for all.
        path: Implementation that reduced them.
    """
    if gradients >= int(_seen.get("gradients", 0)):
        _seen.update(gradients=gradients, collectives=collectives, merge_scope=merge_scope, path=path)


def record_framework_operation() -> None:
    """Record that the group has carried out an operation that a framework requested by itself."""
    _seen["operations"] = int(_seen.get("operations", 0)) + 1


def record_exchange() -> None:
    """Record that the training function, or hopsml for it, has reduced an array over the group."""
    _seen["exchanged"] = 1


def record_settings(words: str) -> None:
    """Record what is done with gradients before and after their transfer."""
    _seen["settings"] = words


def record_choice_reason(why: str) -> None:
    """Record why a strategy uses its collectives."""
    if why:
        _seen["why"] = why


def record_trained(by: str) -> None:
    """Record that an optimizer of this process was given gradients; ``by``: its framework."""
    _seen["trained"] = by


def record_command() -> None:
    """Record that this process runs a command, whose collectives and optimizers are not observed."""
    _seen["command"] = 1


def recorded_values() -> dict[str, int | str]:
    """Return all recorded values; empty if this process neither trained nor formed a group."""
    return dict(_seen)


def reset() -> None:
    """Remove all recorded values; called in a process that begins another function."""
    _seen.clear()
