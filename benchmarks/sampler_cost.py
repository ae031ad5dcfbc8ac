"""Cost of sampling a worker's usage in the agent: processor time of a sample, and slowdown of a worker's steps.

The worker computes steps of about 10 ms on the one core on which the agent's sampler runs, too. A sample every five
seconds changes too little to be visible in the machine's noise, so samples are ``TIMES`` as frequent, and the excess is
divided.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from hopsml.cluster.agent.usage import UsageSampler
from hopsml.core.variables import Settings

TIMES = 50
EVERY_S = float(Settings.system_metrics_s.default)
LOOKS = 200
WORKER = """
import sys, time
import numpy as np
a = np.random.default_rng(1).random((700, 700), np.float32)
children = [__import__("subprocess").Popen(["sleep", "3600"]) for _ in range(3)]
try:
    for line in sys.stdin:
        ends, steps = time.perf_counter() + float(line), 0
        began = time.perf_counter()
        while time.perf_counter() < ends:
            a @ a
            steps += 1
        print((time.perf_counter() - began) / steps, flush=True)
finally:
    for child in children:
        child.kill()
        child.wait()
"""


def core_share() -> list[float]:
    """Return the share of a core that sampling a worker takes, one value per twentieth of the samples.

    The worker has three child processes.
    """
    with _worker() as worker:
        _step_s(worker, 0.1)
        sampler, shares = UsageSampler(worker.pid), []
        for _ in range(20):
            began = time.process_time()
            for _ in range(LOOKS // 20):
                sampler.sample()
            shares.append((time.process_time() - began) / (LOOKS // 20) / EVERY_S)
        return shares


def step_ratios(rounds: int, seconds: float) -> list[float]:
    """Return the ratio of a step's time with samples to one without, for pairs of blocks of ``seconds`` each."""
    ratios = []
    with _worker() as worker:
        _step_s(worker, 0.5)
        for number in range(rounds):
            found = {}
            for looks in ((True, False), (False, True))[number % 2]:
                found[looks] = _step_s(worker, seconds, looks=looks)
            ratios.append(1 + (found[True] / found[False] - 1) / TIMES)
    return ratios


def _step_s(worker: subprocess.Popen[str], seconds: float, *, looks: bool = False) -> float:
    assert worker.stdin is not None and worker.stdout is not None
    worker.stdin.write(f"{seconds}\n")
    worker.stdin.flush()
    ends = time.monotonic() + seconds
    sampler = UsageSampler(worker.pid)
    while looks and (left := ends - time.monotonic()) > 0:
        time.sleep(min(left, EVERY_S / TIMES))
        sampler.sample()
    return float(worker.stdout.readline())


@contextmanager
def _worker() -> Iterator[subprocess.Popen[str]]:
    """Start the worker on one core with this process, whose affinity is restored afterwards."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        command = [sys.executable, "-c", WORKER]
        variables = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables
        ) as worker:
            yield worker
    finally:
        os.sched_setaffinity(0, before)
