"""Texts about the nodes for which a job waits."""

from __future__ import annotations


def nodes(count: int, more: str = "") -> str:
    """Return a number of nodes as text, such as ``1 node`` or ``2 more nodes``."""
    return f"{count} {more}node{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """Return a duration as text, such as ``40 s`` or ``3 min``."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def booting(group: str, count: int, since_s: float, usual_s: float, is_known: bool) -> str:
    """Return the text about nodes that are booting."""
    usually = f"usually {duration(usual_s)}" if is_known else f"at most {duration(usual_s)}"
    return f"{nodes(count)} of {group!r} {'is' if count == 1 else 'are'} booting (since {duration(since_s)}, {usually})"


def added(group: str, count: int, boot_s: float) -> str:
    """Return the text about nodes that are about to be launched."""
    return f"waits for {nodes(count, 'more ')} of group {group!r}, about {duration(boot_s)}"


def resting(group: str, failures: int, pause_s: float) -> str:
    """Return the text about a group that is paused after failed launches."""
    often = "" if failures == 1 else f", {failures} times in a row"
    return f"nodes of {group!r} did not come{often}; they are asked for again in {duration(pause_s)}"
