"""Clock of a NameNode, in whose time tokens have their dates, compared with that of this process. Pure.

Nobody reports the difference, but each new token bounds it: it was issued before it was seen here, and after the token
that it replaces was seen last, or after this process asked for it. Without such evidence the clocks count as equal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hopsml.core.delegation_tokens import TokenFacts

MOST_S = (
    3600.0  # of a difference: rather than believe in a larger one, a token counts as one that was stored for a while
)


@dataclass(frozen=True)
class ServerClock:
    """Bounds of a server's clock minus this one, in seconds, and the last token that was seen."""

    at_least_s: float = -math.inf
    at_most_s: float = math.inf
    issued_s: float = 0.0  # of the last token, by the server's clock; 0 before the first
    seen_s: float = 0.0  # when it was seen last

    @property
    def ahead_s(self) -> float:
        """Seconds by which the server's clock is ahead: the difference closest to none that the bounds permit."""
        return min(max(0.0, self.at_least_s), self.at_most_s)

    def saw(self, token: TokenFacts, now_s: float, after_s: float = -math.inf) -> ServerClock:
        """Return the clock after a token was seen.

        Args:
            token: the token.
            now_s: when, in seconds since the epoch.
            after_s: it was issued after this time; known for one that this process has requested.
        """
        if token.issued_s == self.issued_s:
            return ServerClock(self.at_least_s, self.at_most_s, self.issued_s, now_s)
        since_s = max(after_s, self.seen_s if self.issued_s else -math.inf)
        least_s, most_s = token.issued_s - now_s, token.issued_s - since_s
        if most_s < -MOST_S:
            most_s = math.inf
        both = max(least_s, self.at_least_s), min(most_s, self.at_most_s)
        if both[0] > both[1]:  # one of the clocks was corrected since
            both = least_s, most_s
        return ServerClock(*both, token.issued_s, now_s)


def longest_s(tokens: list[tuple[TokenFacts, ServerClock]], now_s: float) -> float:
    """Return the seconds until the first of the tokens ends for good; 0 if there is none."""
    ends = [facts.last_s - clock.ahead_s for facts, clock in tokens]
    return max(0.0, min(ends) - now_s) if ends else 0.0


def left_s(tokens: list[tuple[TokenFacts, ServerClock]], life_s: float, now_s: float) -> float:
    """Return the seconds until the first of the tokens is ``life_s`` seconds old; 0 if that is unknown or over."""
    issued = [facts.issued_s - clock.ahead_s for facts, clock in tokens]
    return max(0.0, min(life_s, min(issued) + life_s - now_s)) if issued else 0.0
