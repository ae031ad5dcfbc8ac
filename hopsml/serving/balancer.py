"""Choice of the replica of a serving that receives the next request: a decision without sockets or clocks.

Apart from the front, whose coroutine ``__call__`` mutation tests cannot wrap: uvicorn would take it for a factory.
"""

from __future__ import annotations

from collections.abc import Collection

SENDINGS = 2  # a request is sent once more if its replica is lost


class Balancer:
    """Available replicas, with the number of requests in each."""

    def __init__(self) -> None:
        self._addresses: dict[int, tuple[str, int]] = {}
        self._in_flight: dict[int, int] = {}
        self._last_turn: dict[int, int] = {}
        self._turn = 0

    @property
    def available_count(self) -> int:
        """Number of available replicas."""
        return len(self._addresses)

    def add_replica(self, replica: int, address: tuple[str, int]) -> None:
        """Add a replica that answers at this address."""
        self._addresses[replica] = address

    def remove_replica(self, replica: int) -> None:
        """Remove a replica that does not answer any more."""
        self._addresses.pop(replica, None)

    def choose_replica(self, tried: Collection[int] = ()) -> tuple[int, tuple[str, int]] | None:
        """Return the replica with the fewest requests and its address; of equal ones, the least recently chosen.

        Args:
            tried: Replicas to avoid if there are others.

        Returns:
            None if no replica is available.
        """
        fresh = [one for one in self._addresses if one not in tried] or list(self._addresses)
        if not fresh:
            return None
        self._turn += 1
        chosen = min(fresh, key=lambda one: (self._in_flight.get(one, 0), self._last_turn.get(one, 0), one))
        self._last_turn[chosen] = self._turn
        return chosen, self._addresses[chosen]

    def begin_request(self, replica: int) -> None:
        """Count a request that was sent to a replica."""
        self._in_flight[replica] = self._in_flight.get(replica, 0) + 1

    def end_request(self, replica: int) -> None:
        """Count a request that was answered or lost."""
        self._in_flight[replica] -= 1


def may_send_again(sendings: int) -> bool:
    """Return True if a request that was lost for the ``sendings``-th time, counted from 1, is sent again."""
    return sendings < SENDINGS
