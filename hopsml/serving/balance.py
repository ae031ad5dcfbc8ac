"""Which replica a request goes to, and whether it may be sent once more; pure.

A replica counts as there from the moment when it follows a route, and as lost from a connection that broke until its next
sign of life.
"""

from __future__ import annotations

from collections.abc import Collection

SENDINGS = 2  # a request is sent once more when the replica that has it is lost


class Balancer:
    """The replicas that answer, and how many requests are in each."""

    def __init__(self) -> None:
        self._addresses: dict[int, tuple[str, int]] = {}
        self._in_flight: dict[int, int] = {}
        self._turn = 0

    @property
    def answering(self) -> int:
        """How many there are."""
        return len(self._addresses)

    def there(self, replica: int, address: tuple[str, int]) -> None:
        """A replica answers at this address."""
        self._addresses[replica] = address

    def lost(self, replica: int) -> None:
        """A replica does not answer any more."""
        self._addresses.pop(replica, None)

    def choose(self, tried: Collection[int] = ()) -> tuple[int, tuple[str, int]] | None:
        """The replica with the fewest requests, of equals each in turn; one that was not ``tried`` where there is one.

        None where none answers.
        """
        fresh = [one for one in self._addresses if one not in tried] or list(self._addresses)
        if not fresh:
            return None
        self._turn += 1
        count = max(self._addresses) + 1
        chosen = min(fresh, key=lambda one: (self._in_flight.get(one, 0), (one - self._turn) % count))
        return chosen, self._addresses[chosen]

    def began(self, replica: int) -> None:
        """A request is in it."""
        self._in_flight[replica] = self._in_flight.get(replica, 0) + 1

    def ended(self, replica: int) -> None:
        """A request was answered, or lost."""
        self._in_flight[replica] -= 1


def is_sent_again(sendings: int) -> bool:
    """Whether a request that was lost for the ``sendings``-th time, counted from 1, is sent once more."""
    return sendings < SENDINGS
