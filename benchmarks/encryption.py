"""Cost of encryption: one all-reduce over sockets with and without it, alternating.

Two workers on loopback, where the network takes almost no time: processor time is compared. Then two hosts at two
rates, where network namespaces can be created: on a network that is slower than the encryption the ratio is nearer to
one.
"""

from __future__ import annotations

from benchmarks.collective import all_reduces, label
from benchmarks.figures import Figure, Report, measured, ratio_of
from benchmarks.network import LARGEST, RATES_MBIT, groups, shown, take
from benchmarks.options import Options
from tools.shaped_network import Cable, hindrance

SIZES = (250, 250_000, 2_500_000, 25_000_000)  # float32: 1 kB, 1 MB, 10 MB, 100 MB
PLAIN, ENCRYPTED = WAYS = ("hopsml-sockets", "hopsml-encrypted")


def run(options: Options) -> Report:
    """Measure the times, their ratios, and the largest ratio of 1 MB and more."""
    times = all_reduces(2, options, WAYS, SIZES)
    report, ratios = Report(), list[Figure]()
    for size in SIZES:
        peer = f"the same in plain, {label(size)}, 2 workers"
        found = ratio_of("collective.encryption_ratio", times[ENCRYPTED, size], times[PLAIN, size], peer)
        ratios += [found] if size > SIZES[0] else []
        name = f"collective.encryption_{label(size)}"
        report.figures.append(ratio_of(f"{name}_ratio", times[ENCRYPTED, size], times[PLAIN, size], peer))
        report.figures += [
            measured(f"{name}_{way}_ms", times[f"hopsml-{way}", size], "ms") for way in ("sockets", "encrypted")
        ]
    report.figures.insert(0, max(ratios, key=lambda one: one.value))
    report.figures += [] if hindrance() else between_hosts(options)
    report.notes.append(
        "encryption: float32 zeros over loopback, two workers that share two cores; "
        "encryption_ratio: the worst of 1, 10 and 100 MB"
    )
    return report


def between_hosts(options: Options) -> list[Figure]:
    """Return the ratio of encrypted to plain all-reduces for each rate of the network."""
    found, ways = [], ("sockets", "encrypted")
    for rate in RATES_MBIT:
        with groups(2, Cable(rate_mbit=rate), ways, (LARGEST,), options) as (_, server):
            times = take(server, ways, LARGEST, 1, options.rounds_of(8, 3))
        options.say(f"{rate} Mbit/s: {shown(times)}")
        peer = f"the same in plain, {rate // 1000} Gbit/s, 100 MB, 2 hosts"
        name = f"network.encryption_ratio_{rate // 1000}gbit"
        found.append(ratio_of(name, times["encrypted"], times["sockets"], peer))
    return found
