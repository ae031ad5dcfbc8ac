"""Training with parameter servers against the same by hand; one function per figure."""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.figures import Figure, Report, measured, ratio_of
from benchmarks.launched import Command, Launched, temporary_folder
from benchmarks.options import Options
from benchmarks.pairing import alternate
from benchmarks.peers.bare import free_ports
from benchmarks.peers.base import SCRIPTS
from benchmarks.spread import spread_of
from benchmarks.turn_server import TurnServer, take_turns

START_TIMEOUT_S = 300.0
SERVER_STEPS = 200  # per turn
WAYS = ("hopsml-saved", "by-hand-saved", "hopsml", "by-hand")
KILLS = 2  # per session: a member that dies three times within moments is given up
_LOG_OF_SERVER = re.compile(r"/logs/g(\d+)-rank2\.log$")


def run(options: Options) -> Report:
    """Measure steps with parameter servers, and the recovery of a server."""
    return Report(
        [*step_ratios(options), server_recovery(options)],
        [
            "parameter servers: a chief, a worker and a server, an MLP of 0.3 million weights of Keras 3, 64 examples a "
            f"step; by hand: three processes and TensorFlow's coordinator; a round is {SERVER_STEPS} steps of each in turn",
            "ps.step_ratio: at the end of each turn both wait until a checkpoint is on disk; ps.early_ratio: hopsml does "
            "not wait for what its agent writes, and the one by hand makes none",
            "recovery: kill -9 of the server to the tenth step after the checkpoint that all is restored from",
        ],
    )


def step_ratios(options: Options) -> list[Figure]:
    """Measure a step of hopsml's loop over one by hand, with checkpoints and without, alternating."""
    with temporary_folder() as name, TurnServer(Path(name) / "turns") as server:
        folder = Path(name)
        commands = [*_servers_by_hand(server.path), _servers_of_hopsml(folder, server.path, "steps")]
        with Launched(commands, folder) as launched:
            launched.wait_until(lambda: server.accept() == len(WAYS), START_TIMEOUT_S, "both chiefs ready")
            for way in WAYS:
                server.steps(way, SERVER_STEPS)
            turns = take_turns(server, WAYS, SERVER_STEPS)
            rounds = alternate(options.rounds_of(20, 5), {way: _mean_ms(turns[way]) for way in WAYS}, options.say)
            for way in WAYS:
                server.steps(way, 0)
    for way, values in rounds.items():
        options.say(f"{way}: {statistics.median(values):.2f} ms")
    saved, unsaved = "TensorFlow by hand, three processes", "TensorFlow by hand without checkpoints"
    return [
        ratio_of("ps.step_ratio", rounds["hopsml-saved"], rounds["by-hand-saved"], saved),
        ratio_of("ps.early_ratio", rounds["hopsml"], rounds["by-hand"], unsaved),
        measured("ps.step_ms", rounds["hopsml"], "ms", unsaved, rounds["by-hand"]),
    ]


def server_recovery(options: Options) -> Figure:
    """Measure the seconds from the kill of a parameter server until the training continues."""
    seconds = alternate(options.rounds_of(5, 1), {"hopsml": _server_recovery_s}, options.say)["hopsml"]
    return measured("ps.recovery_s", seconds, "s")


def _server_recovery_s() -> float:
    """Return the median recovery over some kills in one session."""
    with temporary_folder() as name:
        folder = Path(name)
        lines = folder / "lines"
        lines.touch()
        with Launched([_servers_of_hopsml(folder, lines, "recovery")], folder) as launched:
            return spread_of([_kill_server(launched, lines) for _ in range(KILLS)]).median


def _kill_server(launched: Launched, lines: Path) -> float:
    """Return seconds from the kill to the first report after it; the recovery may need more than one attempt."""
    least = len(_lines(lines)) + 10
    launched.wait_until(lambda: len(_lines(lines)) >= least, START_TIMEOUT_S, "steps")
    killed, before = time.time(), _lines(lines)[-1][2]
    os.kill(_process_of_server(launched), signal.SIGKILL)
    launched.wait_until(lambda: _lines(lines)[-1][2] > before, START_TIMEOUT_S, "steps after a kill")
    return next(when for when, _, recoveries in _lines(lines) if recoveries > before) - killed


def _lines(file: Path) -> list[tuple[float, int, int]]:
    """Return time, step and recoveries of each complete report."""
    whole = file.read_text().rpartition("\n")[0].splitlines()
    return [(float(when), int(step), int(count)) for when, step, count in (line.split() for line in whole)]


def _process_of_server(launched: Launched) -> int:
    """Return the newest process that writes the log of the parameter server, which is rank 2."""
    found = []
    for pid in launched.alive():
        try:
            log = os.readlink(f"/proc/{pid}/fd/1")
        except OSError:
            continue
        if match := _LOG_OF_SERVER.search(log):
            found.append((int(match[1]), pid))
    return max(found)[1]


def _servers_by_hand(socket: Path) -> list[Command]:
    chief, worker, server = (f"127.0.0.1:{port}" for port in free_ports(3))
    cluster = json.dumps({"chief": [chief], "worker": [worker], "ps": [server]})
    script = [sys.executable, str(SCRIPTS / "server_steps.py")]
    variables = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    return [Command([*script, job, "0", str(socket), cluster], variables) for job in ("worker", "ps", "chief")]


def _servers_of_hopsml(folder: Path, socket: Path, mode: str) -> Command:
    conf = folder / "conf"
    conf.mkdir()
    (conf / "local.yaml").write_text("master: none\nlocal_slots: 3\n")
    variables = {"HOPSML_CONF_DIR": str(conf), "HOPSML_PROJECT_URL": f"file://{folder}/project"}
    return Command([sys.executable, str(SCRIPTS / "hopsml_servers.py"), str(socket), mode], variables)


def _mean_ms(turn: Callable[[], list[float]]) -> Callable[[], float]:
    return lambda: 1000 * turn()[0]
