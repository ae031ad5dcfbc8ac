"""Transfer of the chief's training state to joining workers, by broadcasts of the whole group that survive losses.

The state is encoded as in a commit and sent in parts of a few megabytes. Only joining workers store the received
data.
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
    """Return allocated memory for a state of about ``size`` bytes, aligned for the arrays in it.

    The memory is filled once, because the system allocates pages slowly on first use.
    """
    import numpy as np

    content = np.full(size + PART + ALIGNMENT, 0, np.uint8)
    return content[-content.ctypes.data % ALIGNMENT :]


def send(group: Group, snapshot: Snapshot) -> None:
    """Send the chief's state to all other members; call it on the chief. Large arrays are not copied."""
    import numpy as np

    pieces = [np.frombuffer(piece, np.uint8) for piece in commit_format.encode(snapshot)]
    total = sum(piece.size for piece in pieces)
    group.broadcast(np.array([total], np.int64), name=LABEL)
    sent = np.empty(min(PART, total), np.uint8)
    for part in _parts(pieces):
        group.broadcast(part, name=LABEL, out=sent[: part.size])


def _parts(pieces: Sequence[NDArray[np.uint8]]) -> list[NDArray[np.uint8]]:
    """Return the same bytes in parts of ``PART`` (the last may be smaller), as views where possible."""
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
    """Take part in the broadcast of the chief's state; call it on every member but the chief.

    Args:
        group: the group of all members.
        into: on a joining worker, memory for the state, which is used if it is large enough; None on others.

    Returns:
        The chief's state on a joining worker, else None.

    Raises:
        ValueError: the chief runs another version of the format.
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
