"""Limits of the requests that one replica accepts."""

from __future__ import annotations

import msgspec


class ServingLimits(msgspec.Struct, frozen=True):
    """Limits of a request, of a call of the model, and of the request queue.

    Attributes:
        body_bytes: Maximum size of a request's body, in bytes.
        batch_rows: Maximum rows of one call of the model; a request with more rows is a separate call.
        queue_requests: Maximum number of waiting requests per version; further ones are refused with 429.
        deadline_s: Time from the head of a request to its answer, in seconds.
    """

    body_bytes: int = 64 << 20
    batch_rows: int = 256
    queue_requests: int = 1000
    deadline_s: float = 30.0
