"""Rate limit of requests by a token bucket, which fills at a steady rate; pure."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Rate:
    """A limit of requests per second in the long run, and of requests at once.

    0 per second is no limit.
    """

    per_s: float
    at_once: float


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """State of a token bucket at a time.

    Attributes:
        left: Requests that the bucket allows.
        at_s: The time of this state, in seconds.
        refused: Number of consecutive requests that were refused.
    """

    left: float
    at_s: float
    refused: int = 0


def taken(bucket: TokenBucket | None, rate: Rate, now: float) -> tuple[TokenBucket, float]:
    """Take one token for a request; return the new bucket, and for how many seconds the client must wait.

    The client does not wait (0 s) if the bucket has a token. A clock that goes backwards adds none.

    Args:
        bucket: The bucket; None for a client's first request.
        rate: The limit.
        now: The time, in seconds.
    """
    if bucket is None:
        bucket = TokenBucket(rate.at_once, now)
    passed = max(0.0, now - bucket.at_s)
    filled = replace(bucket, left=min(rate.at_once, bucket.left + passed * rate.per_s), at_s=max(now, bucket.at_s))
    if rate.per_s <= 0 or filled.left >= 1:
        return replace(filled, left=max(0.0, filled.left - 1), refused=0), 0.0
    return replace(filled, refused=filled.refused + 1), (1 - filled.left) / rate.per_s
