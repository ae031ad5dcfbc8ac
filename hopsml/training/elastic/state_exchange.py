"""Gives a training's state, as the chief has it, to newcomers: over the group, by all members, in calls that outlast losses.

As a commit has it, in parts of a few megabytes. Only a newcomer keeps what comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hopsml.training.elastic import commit_format
from hopsml.training.elastic.commit_format import ALIGNMENT, Snapshot

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hopsml.collective.group import Group

LABEL = "the state for a newcomer"
PART = 8 << 20  # bytes


def room(size: int) -> NDArray[np.uint8]:
    """Memory for a state of about ``size`` bytes, which the system has given already: it does so slowly.

    It begins where the arrays of a state in it are aligned.
    """
    import numpy as np

    content = np.full(size + PART + ALIGNMENT, 0, np.uint8)
    return content[-content.ctypes.data % ALIGNMENT :]


def send(group: Group, snapshot: Snapshot) -> None:
    """As the chief: give the state to all others. Large arrays are not copied."""
    import numpy as np

    pieces = [np.frombuffer(piece, np.uint8) for piece in commit_format.encode(snapshot)]
    total = sum(piece.size for piece in pieces)
    group.broadcast(np.array([total], np.int64), name=LABEL)
    sent = np.empty(min(PART, total), np.uint8)
    for part in _parts(pieces):
        group.broadcast(part, name=LABEL, out=sent[: part.size])


def _parts(pieces: Sequence[NDArray[np.uint8]]) -> list[NDArray[np.uint8]]:
    """The same bytes in parts of ``PART``, but for the last one: views, where a part lies within a piece."""
    import numpy as np

    parts, waiting, size = list[Any](), list[Any](), 0
    for piece in pieces:
        begin = 0
        while begin < piece.size:
            taken = piece[begin : begin + PART - size]
            waiting, size, begin = [*waiting, taken], size + taken.size, begin + taken.size
            if size == PART:
                parts.append(waiting[0] if len(waiting) == 1 else np.concatenate(waiting))
                waiting, size = [], 0
    return [*parts, np.concatenate(waiting)] if waiting else parts


def receive(group: Group, into: NDArray[np.uint8] | None) -> Snapshot | None:
    """As any other member; a newcomer has room for it, ``into`` which it goes where it is large enough.

    Raises ValueError where the chief is of another version.
    """
    import numpy as np

    total = int(group.broadcast(np.zeros(1, np.int64), name=LABEL)[0])
    if into is None:
        passing = np.empty(min(PART, total), np.uint8)
    elif into.size < total:
        into = room(total)
    for begin in range(0, total, PART):
        size = min(PART, total - begin)
        part = passing[:size] if into is None else into[begin : begin + size]
        group.broadcast(part, name=LABEL, out=part)
    return commit_format.decode(into[:total].data) if into is not None else None
