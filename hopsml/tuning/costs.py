"""Cost of collectives by the alpha-beta model; no side effects.

A message of n bytes takes ``alpha + n * beta`` seconds, and a member sends and receives one at a time (Hockney, 1994).
With p members and n bytes to reduce:

ring              2 (p-1) alpha + 2 (p-1)/p n beta        reduce-scatter, then all-gather, to the neighbour each time; the
                                                          fewest bytes that any all-reduce can send (Patarasuk and Yuan,
                                                          "Bandwidth optimal all-reduce algorithms for clusters of
                                                          workstations", 2009)
halving-doubling  2 ceil(log2 p) alpha + 2 (p-1)/p n beta the same bytes, partners at distances 1, 2, 4 ... (Rabenseifner;
                                                          Thakur, Rabenseifner and Gropp, "Optimization of collective
                                                          communication operations in MPICH", 2005); members beyond the
                                                          largest power of two send theirs before, and receive it after
doubling          ceil(log2 p) (alpha + n beta)           everything to the partner each time (Thakur et al.): for few bytes
direct            2 alpha + 2 (p-1)/p n beta              each member receives its part from all others at once, sends
                  + 2 (p-2) per_message                   the sum to all: two steps, with p-1 messages in each
hierarchical      within each host, then between one member of each, then within: bytes cross the network once a host

The time of adding is part of beta: measurements of an all-reduce cannot separate the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from hopsml.errors import ArgumentError

Algorithm = Literal["ring", "halving-doubling", "doubling", "direct"]


@dataclass(frozen=True)
class LinkCosts:
    """Cost of a message between two members: ``alpha_s`` seconds, and ``beta_s`` for each of its bytes.

    ``per_message_s`` is the cost of each further message that is sent in the same step.
    """

    alpha_s: float
    beta_s: float
    per_message_s: float = 0.0


@dataclass(frozen=True)
class Cluster:
    """Cluster of machines of one kind.

    Attributes:
        memory: link between two workers of one machine.
        network: link between two workers of different machines.
        workers_per_host: number of workers on each machine but the last.
        cores_per_host: number of cores; more workers than that share cores, and all take longer. 0: each has the cores
            that it needs.
    """

    memory: LinkCosts
    network: LinkCosts
    workers_per_host: int = 1
    cores_per_host: int = 0

    def hosts(self, workers: int) -> int:
        """Return the number of machines on which so many workers run."""
        return -(-workers // self.workers_per_host)

    def load(self, workers: int) -> float:
        """Return the number of workers per core on the fullest machine; at least 1."""
        here = min(workers, self.workers_per_host)
        return max(1.0, here / self.cores_per_host) if self.cores_per_host else 1.0


def ring(link: LinkCosts, members: int, size: float) -> float:
    """Return the seconds of a ring all-reduce of ``size`` bytes."""
    if members < 2:
        return 0.0
    return 2 * (members - 1) * (link.alpha_s + size / members * link.beta_s)


def halving_doubling(link: LinkCosts, members: int, size: float) -> float:
    """Return the seconds of an all-reduce of ``size`` bytes by recursive halving and doubling."""
    if members < 2:
        return 0.0
    power = 1 << (members.bit_length() - 1)
    inner = 2 * math.log2(power) * link.alpha_s + 2 * (power - 1) / power * size * link.beta_s
    outside = 0.0 if power == members else 2 * (link.alpha_s + size * link.beta_s)
    return inner + outside


def doubling(link: LinkCosts, members: int, size: float) -> float:
    """Return the seconds of an all-reduce of ``size`` bytes by recursive doubling."""
    return math.ceil(math.log2(members)) * (link.alpha_s + size * link.beta_s) if members > 1 else 0.0


def direct(link: LinkCosts, members: int, size: float) -> float:
    """Return the seconds of an all-reduce of ``size`` bytes by direct exchange between all members."""
    if members < 2:
        return 0.0
    further = 2 * (members - 2) * link.per_message_s
    return 2 * link.alpha_s + further + 2 * (members - 1) / members * size * link.beta_s


ALGORITHMS: Final[dict[Algorithm, Callable[[LinkCosts, int, float], float]]] = {
    "ring": ring,
    "halving-doubling": halving_doubling,
    "doubling": doubling,
    "direct": direct,
}


def flat(cluster: Cluster, workers: int, size: float, algorithm: Algorithm) -> float:
    """Return the seconds of one all-reduce in which all workers take part alike.

    A step is as slow as its slowest link.
    """
    link = cluster.memory if cluster.hosts(workers) == 1 else cluster.network
    return ALGORITHMS[algorithm](link, workers, size) * cluster.load(workers)


def hierarchical(cluster: Cluster, workers: int, size: float, algorithm: Algorithm) -> float:
    """Return the seconds of a hierarchical all-reduce.

    It sums within each machine's memory, then between machines, and distributes the result in memory.
    """
    hosts = cluster.hosts(workers)
    here = direct(cluster.memory, min(workers, cluster.workers_per_host), size) * cluster.load(workers)
    return here + ALGORITHMS[algorithm](cluster.network, hosts, size)


@dataclass(frozen=True)
class Measured:
    """Measurement of one all-reduce of ``size`` bytes between ``members`` workers."""

    members: int
    size: int
    seconds: float


def fitted(measured: Sequence[Measured], per_message_s: float = 0.0) -> LinkCosts:
    """Return the link costs that fit measurements of the ``direct`` all-reduce best.

    The fit is by least squares of relative differences.

    Args:
        measured: the measurements, of at least two sizes.
        per_message_s: cost of each further message of a step, which is not fitted.

    Raises:
        ArgumentError: measurements of fewer than two sizes, through which no line can be fitted.
    """
    if len({one.size for one in measured}) < 2:
        raise ArgumentError(
            "the cost of a message and that of a byte are told apart by all-reduces of two sizes or more"
        )
    # Each row is (2, 2 (p-1)/p n) . (alpha, beta) = seconds, divided by the seconds.
    rows = [(2 / one.seconds, 2 * (one.members - 1) / one.members * one.size / one.seconds) for one in measured]
    aa, ab, bb = (sum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    a1, b1 = sum(row[0] for row in rows), sum(row[1] for row in rows)
    determinant = aa * bb - ab * ab
    alpha, beta = (bb * a1 - ab * b1) / determinant, (aa * b1 - ab * a1) / determinant
    if alpha < 0:
        alpha, beta = 0.0, b1 / bb
    if beta < 0:
        alpha, beta = a1 / aa, 0.0
    return LinkCosts(alpha, beta, per_message_s)
