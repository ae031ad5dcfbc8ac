"""The job service: waits of a real cluster's jobs under its scheduler, and processor time of the scheduler.

Both controls (``queue_controls.py``) replay the same jobs in the same run. One cost applies to the scheduler only: a
preempted job loses ``RESTART_S`` of its slots' work.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import queue_controls, sampler_cost, service_server
from benchmarks.figures import Figure, Report
from benchmarks.options import Options
from benchmarks.scheduler_replay import ReplayOutcome, read, replay
from benchmarks.spread import spread_of
from hopsml.service.scheduler.resources import GangRequest, GangShape, Policy, Resources, SlotGroup
from hopsml.service.scheduler.scheduler import Scheduler

TRACE = Path(__file__).parent / "traces" / "gpu_cluster_trace.csv.gz"
GPUS, GPUS_A_NODE, RESTART_S = 600, 8, 90.0
FIRST_DAY, LAST_DAY, DAY_S = 28, 42, 86400.0
NODES, QUEUED = 1000, 10_000
MEMORY_MIB = 512 * 1024


def run(options: Options) -> Report:
    """Run all studies of the job service."""
    report = Report()
    for study in STUDIES:
        report.figures += study(options)
    return report


def waits(options: Options) -> list[Figure]:
    """Measure ``service.wait_ratio`` and ``service.longest_ratio`` over two weeks of jobs.

    The jobs run on one pool, and for comparison on nodes of 8 GPUs.
    """
    last = FIRST_DAY + 2 if options.quick else LAST_DAY
    jobs = list(read(TRACE, first_s=FIRST_DAY * DAY_S, last_s=last * DAY_S))
    ours = replay(jobs, {"pool": GPUS}, Policy(), restart_s=RESTART_S)
    on_nodes = replay(jobs, _nodes(), Policy(), restart_s=RESTART_S)
    fifo, attained = queue_controls.first_come(jobs, GPUS), queue_controls.attained_service(jobs, GPUS)
    mean, longest = sum(attained) / len(attained), max(fifo)
    options.say(f"{len(jobs)} jobs: {_told(ours)}; on nodes of {GPUS_A_NODE} {_told(on_nodes)}")
    options.say(f"attained service that costs nothing waits {mean:.0f} s; strict first come {longest:.0f} s at most")
    return [
        _one("service.wait_ratio", ours.mean_s / mean, "attained service that costs nothing"),
        _one("service.longest_ratio", ours.longest_s / longest, "strict first come"),
        _one("service.wait_nodes_ratio", on_nodes.mean_s / mean, "the same, without nodes"),
    ]


def trace(options: Options) -> list[Figure]:
    """Measure ``service.trace_s``: processor time of the scheduler for all 82 247 jobs, and events per second."""
    jobs = list(read(TRACE, last_s=(30 if options.quick else 1000) * DAY_S))
    began = time.process_time()
    outcome = replay(jobs, {"pool": GPUS}, Policy(), restart_s=RESTART_S)
    seconds = time.process_time() - began
    longest = max(queue_controls.first_come(jobs, GPUS))
    options.say(
        f"{len(jobs)} jobs, {outcome.events} events: {_told(outcome)}; strict first come {longest:.0f} s at most"
    )
    return [
        Figure("service.trace_s", seconds, "s", 1, seconds, seconds),
        Figure("service.events_per_s", outcome.events / seconds, "1/s", 1, 0.0, 0.0),
    ]


def passes(options: Options) -> list[Figure]:
    """Measure ``service.pass_ms_10k``: the slowest of three passes.

    They are over an empty cluster, over a full one, and after many jobs fell to a lower level.
    """
    worst = []
    for number in range(options.rounds_of(5, 2)):
        times = _passes(random.Random(number))
        options.say("pass over " + ", ".join(f"{name} {1e3 * seconds:.0f} ms" for name, seconds in times.items()))
        worst.append(1e3 * max(times.values()))
    spread = spread_of(worst)
    return [Figure("service.pass_ms_10k", spread.median, "ms", spread.n, spread.low, spread.high)]


def _passes(dice: random.Random) -> dict[str, float]:
    scheduler = Scheduler(Policy())
    for number in range(QUEUED):  # there are no nodes yet: all wait
        scheduler.submit(_request(f"job-{number}", dice), 0.0)
    for number in range(NODES):
        scheduler.nodes.set_node(f"node-{number}", Resources(GPUS_A_NODE, 64, MEMORY_MIB))
    times = {}
    for name, at in (("an empty cluster", 1.0), ("a full one", 2.0), ("one in which many levels fell", 2000.0)):
        began = time.perf_counter()
        scheduler.tick(at)
        times[name] = time.perf_counter() - began
    return times


def _request(job_id: str, dice: random.Random) -> GangRequest:
    """Return a request of a driver and its workers: mostly one, at most 64."""
    workers = dice.choice([1, 1, 1, 1, 1, 2, 4, 8, 8, 16, 32, 64])
    each = Resources(1, dice.choice([4, 8]), dice.choice([16, 32]) * 1024)
    driver = SlotGroup("driver", 1, Resources(0, 1, 2048), is_driver=True)
    return GangRequest(
        job_id, GangShape((driver, SlotGroup("workers", workers, each))), priority=dice.choice([40, 50, 60])
    )


def _nodes() -> dict[str, int]:
    return {f"node-{number}": GPUS_A_NODE for number in range(GPUS // GPUS_A_NODE)}


def _told(outcome: ReplayOutcome) -> str:
    waits = {
        "mean wait": outcome.mean_s,
        "99 % below": outcome.quantile_s(0.99),
        "at most": outcome.longest_s,
        "from 8 GPUs": outcome.mean_of_large_s(8),
    }
    return ", ".join(f"{name} {value:.0f} s" for name, value in waits.items()) + f"; {outcome.preemptions} preemptions"


def _one(name: str, value: float, peer: str) -> Figure:
    return Figure(name, value, "", 1, value, value, peer, value)


def sampler(options: Options) -> list[Figure]:
    """Measure ``service.sampler_core_share`` and ``service.sampler_step_ratio``: cost of a usage sample every 5 s."""
    shares = spread_of(sampler_cost.core_share())
    ratios = spread_of(sampler_cost.step_ratios(options.rounds_of(9, 3), 4.0))
    return [
        Figure("service.sampler_core_share", shares.median, "", shares.n, shares.low, shares.high),
        Figure(
            "service.sampler_step_ratio",
            ratios.median,
            "",
            ratios.n,
            ratios.low,
            ratios.high,
            "nobody looks",
            ratios.median,
        ),
    ]


STUDIES: Sequence[Callable[[Options], list[Figure]]] = (waits, trace, passes, sampler, *service_server.STUDIES)
