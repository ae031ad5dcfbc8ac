"""Records which collectives and optimizers this process was seen to use; the driver is told at its end.

``group``: what formed it, ``size``: its workers; of the longest list of gradients that was reduced in one step: how many
there were (``gradients``), in how many collectives (``collectives``), at most how many in one (``merge_scope``, 0 for all)
and by which ``path``. ``operations``: those that torch.distributed has asked
the group for. ``settings``: what hopsml's collective does with gradients, in words. ``why``: the reason why a
strategy takes these collectives. ``trained``: the framework whose optimizer was given gradients in this process, in a group
or not; updates of variables that no optimizer makes are not seen.
"""

from __future__ import annotations

PARAMETER_SERVERS = "parameter servers"  # as what forms a group

_seen: dict[str, int | str] = {}


def formed(by: str, size: int) -> None:
    """Note that this process is one of ``size`` that train together; of several groups the largest counts."""
    if size > int(_seen.get("size", 0)):
        _seen.update(group=by, size=size)


def reduced(gradients: int, collectives: int, merge_scope: int, path: str) -> None:
    """Note that ``gradients`` gradients were reduced over the group in ``collectives`` collectives."""
    if gradients >= int(_seen.get("gradients", 0)):
        _seen.update(gradients=gradients, collectives=collectives, merge_scope=merge_scope, path=path)


def operated() -> None:
    """Note that the group has carried out an operation that a framework asked for by itself."""
    _seen["operations"] = int(_seen.get("operations", 0)) + 1


def settings(words: str) -> None:
    """Note what is done with gradients before and after they travel."""
    _seen["settings"] = words


def chosen(why: str) -> None:
    """Note why a strategy takes the collectives that it does."""
    if why:
        _seen["why"] = why


def trained(by: str) -> None:
    """Note that an optimizer of this process was given gradients; ``by``: its framework."""
    _seen["trained"] = by


def seen() -> dict[str, int | str]:
    """Everything noted so far; empty if this process neither trained nor formed a group."""
    return dict(_seen)


def forget() -> None:
    """Forget everything noted; called in a process that begins another function."""
    _seen.clear()
