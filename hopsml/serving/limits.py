"""What one replica takes on."""

from __future__ import annotations

import msgspec


class ServingLimits(msgspec.Struct, frozen=True):
    """Bounds of a request, of a call of the model, and of the queue in front of it."""

    body_bytes: int = 64 << 20  # of a request
    batch_rows: int = 256  # of one call of the model; a request with more is a call of its own
    queue_requests: int = 1000  # that wait, for each version; the next one gets 429
    deadline_s: float = 30.0  # from a request's head to its answer
