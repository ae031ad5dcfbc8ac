"""PyTorch and JAX under hopsml against the same by hand, and against torchrun; figures of ``frameworks``."""

from __future__ import annotations

import json
import math
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks import recovery, steps_read
from benchmarks.figures import Report, measured, ratio_of
from benchmarks.launched import Command, Launched, temporary_folder
from benchmarks.options import Options
from benchmarks.pairing import alternate
from benchmarks.peers import bare, torchft, torchrun
from benchmarks.peers.base import SCRIPTS
from benchmarks.spread import spread_of
from benchmarks.turn_server import TurnServer, take_turns

WORKERS = 2
STEPS = 60  # per turn
WARM_UP = 40
START_TIMEOUT_S = 300.0
PYTHON = Path(sys.executable)  # the project's own: both sides have the same packages
BY_HAND = {"torch": "torch.distributed by hand, DDP over gloo", "jax": "jax.distributed by hand"}


def run(options: Options) -> Report:
    """Measure steps, a repeated call, and the recovery from a kill."""
    times = _steps(options)
    starts = alternate(options.rounds_of(3, 1), {"hopsml": _warm_s, "torchrun": _torchrun_first_s}, options.say)
    recovering: dict[str, Callable[[], float]] = {
        "hopsml": _recovery_s,
        "torchrun": partial(recovery._of_peer, torchrun.PEER.name, options),
        "torchft": recovery.once_only(partial(_recovery_of_torchft_s, torchft.PEER.python(options.say), options)),
    }
    kills = alternate(options.rounds_of(3, 1), recovering, options.say)
    report = Report(
        [
            ratio_of("torch.step_ratio", times["hopsml"], times["by-hand"], BY_HAND["torch"]),
            ratio_of("torch.ddp_step_ratio", times["hopsml-ddp"], times["by-hand"], BY_HAND["torch"]),
            ratio_of("jax.step_ratio", times["jax-hopsml"], times["jax-by-hand"], BY_HAND["jax"]),
            ratio_of("torch.warm_ratio", starts["hopsml"], starts["torchrun"], "torchrun from its start"),
            ratio_of("torch.recovery_ratio", kills["hopsml"], kills["torchrun"], torchrun.PEER.title),
            measured("torch.recovery_s", kills["hopsml"], "s"),
        ],
        [
            "torch and JAX: two workers, three dense layers, 128 examples a step over both; a round is "
            f"{STEPS} steps of each group in turn, its value their median; warm: the second and later calls of a driver, "
            "from the call to the first step of both; recovery: kill -9 of one of two to the next step of both"
        ],
    )
    title = torchft.PEER.title
    if math.isinf(max(kills["torchft"])):
        report.notes.append(f"recovery: {title} made no step of both within {recovery.TIMEOUT_S:g} s after a kill")
    else:
        report.figures += [
            ratio_of("torch.recovery_torchft_ratio", kills["hopsml"], kills["torchft"], title),
            measured("torch.recovery_torchft_s", kills["torchft"], "s", "hopsml", kills["hopsml"]),
        ]
    return report


def _steps(options: Options) -> dict[str, list[float]]:
    ways = ("hopsml", "hopsml-ddp", "by-hand", "jax-hopsml", "jax-by-hand")
    with temporary_folder() as name, TurnServer(Path(name) / "turns") as server:
        folder = Path(name)
        commands = [_ours(folder, 3 * WORKERS, "steps", server.path), *_by_hand(server.path)]
        with Launched(commands, folder) as launched:
            wanted = WORKERS * len(ways)
            launched.wait_until(lambda: server.accept() == wanted, START_TIMEOUT_S, f"{wanted} workers ready")
            turns = take_turns(server, ways, STEPS)
            for way in ways:
                server.steps(way, WARM_UP)
            found = alternate(options.rounds_of(15, 8), {way: _median_ms(turns[way]) for way in ways})
            for way in ways:
                server.steps(way, 0)
    for way, values in found.items():
        options.say(f"{way}: {statistics.median(values):.2f} ms")
    return found


def _median_ms(turn: Callable[[], list[float]]) -> Callable[[], float]:
    return lambda: statistics.median(turn()) * 1000


def _ours(folder: Path, slots: int, do: str, place: Path) -> Command:
    conf = folder / "conf"
    conf.mkdir(exist_ok=True)
    (conf / "local.yaml").write_text(f"master: none\nlocal_slots: {slots}\n")
    variables = {
        "HOPSML_CONF_DIR": str(conf),
        "HOPSML_PROJECT_URL": f"file://{folder}/project",
        "HOPSML_PROFILE": "local",
    }
    return Command([str(PYTHON), str(SCRIPTS / "hopsml_torch.py"), do, str(place), str(WORKERS)], variables)


def _by_hand(socket: Path) -> list[Command]:
    commands = []
    for way, port in zip(("by-hand", "jax-by-hand"), bare.free_ports(2), strict=True):
        for rank in range(WORKERS):
            variables = {
                "RANK": str(rank), "WORLD_SIZE": str(WORKERS), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu",
            }  # fmt: skip
            commands.append(Command([str(PYTHON), str(SCRIPTS / "torch_steps.py"), str(socket), way], variables))
    return commands


def _warm_s() -> float:
    """Return the median time of the calls after a driver's first."""
    with temporary_folder() as name:
        folder = Path(name)
        with Launched([_ours(folder, WORKERS, "warm", folder)], folder) as launched:

            def said() -> list[float]:
                return [json.loads(line) for line in launched.log.read_text().splitlines() if line[:1].isdecimal()]

            launched.wait_until(lambda: len(said()) == 4, START_TIMEOUT_S, "four calls")
            return spread_of(said()[1:]).median


def _torchrun_first_s() -> float:
    """Return seconds from the start of torchrun to the first step of both workers."""
    with temporary_folder() as name:
        folder = Path(name)
        job = torchrun.PEER.job(folder, WORKERS, 0, lambda _: None)
        began = time.monotonic()
        with Launched(job, folder) as launched:
            launched.wait_until(lambda: recovery._at_work(folder, WORKERS), START_TIMEOUT_S, "a step of both")
            return max(min(log.steps.values()) for log in recovery._newest(folder)) - began


def _recovery_s() -> float:
    """Return the recovery time of hopsml, with one free slot."""
    with temporary_folder() as name:
        return _after_kills_s([_ours(Path(name), WORKERS + 1, "elastic", Path(name))], Path(name))


def _recovery_of_torchft_s(python: Path, options: Options) -> float:
    """Return the recovery time of torchft; infinite if it does not recover."""
    with temporary_folder() as name:
        script = [str(SCRIPTS / torchft.PEER.script), name, str(WORKERS)]
        try:
            return _after_kills_s(torchft.PEER.start(python, script, WORKERS), Path(name))
        except RuntimeError as error:
            options.say(f"{torchft.PEER.title}: {str(error).splitlines()[0]}")
            return math.inf


def _after_kills_s(commands: Sequence[Command], folder: Path) -> float:
    """Return the median over some kills of workers in one run, the chief among them."""
    with Launched(commands, folder) as launched:
        launched.wait_until(lambda: recovery._at_work(folder, WORKERS), START_TIMEOUT_S, "two workers at work")
        seconds = []
        for number in range(recovery.KILLS):
            recovery._settle(launched, folder, WORKERS)
            victim = recovery._newest(folder)[-1 - number % 2]
            seconds.append(_kill_and_wait(launched, folder, victim.pid))
        return spread_of(seconds).median


def _kill_and_wait(launched: Launched, folder: Path, pid: int) -> float:
    """Return seconds to the first step of a generation that contains all workers.

    Steps that a newcomer makes alone do not count.
    """
    killed = time.monotonic()
    os.kill(pid, signal.SIGKILL)

    def together() -> list[float]:
        firsts: dict[int, list[float]] = {}
        for log in steps_read.read(folder):
            if (first := min(log.steps.values())) > killed:
                firsts.setdefault(log.generation, []).append(first)
        return [max(times) for times in firsts.values() if len(times) == WORKERS]

    launched.wait_until(lambda: bool(together()), recovery.TIMEOUT_S, "a step of both after a kill")
    return min(together()) - killed
