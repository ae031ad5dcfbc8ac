"""How many calls somebody may make: a bucket that fills at a steady rate, from which each call takes one; pure."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Rate:
    """So many a second in the long run, and so many at once; 0 a second: as many as come."""

    per_s: float
    at_once: float


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """What is ``left`` of it at a time. ``refused``: how many calls in a row found it empty."""

    left: float
    at_s: float
    refused: int = 0


def taken(bucket: TokenBucket | None, rate: Rate, now: float) -> tuple[TokenBucket, float]:
    """One call: the bucket after it, and for how many seconds the caller is to wait; 0 where it may go on.

    None is the bucket of somebody who comes for the first time. A clock that goes back fills nothing.
    """
    if bucket is None:
        bucket = TokenBucket(rate.at_once, now)
    passed = max(0.0, now - bucket.at_s)
    filled = replace(bucket, left=min(rate.at_once, bucket.left + passed * rate.per_s), at_s=max(now, bucket.at_s))
    if rate.per_s <= 0 or filled.left >= 1:
        return replace(filled, left=max(0.0, filled.left - 1), refused=0), 0.0
    return replace(filled, refused=filled.refused + 1), (1 - filled.left) / rate.per_s
