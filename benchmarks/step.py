"""How long a training step takes under hopsml, beside TensorFlow processes with TF_CONFIG started by hand.

All groups are up at once and take turns of some steps each, in another order every round: other load on the machine
meets all of them. The same model; ``hopsml.tensorflow.strategy()`` with its own merge settings, and TensorFlow's own
strategy under hopsml, against TensorFlow's own strategy by hand.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.figures import Report, measured, ratio_of
from benchmarks.launched import Command, Launched, temporary_folder
from benchmarks.options import Options
from benchmarks.pairing import alternate
from benchmarks.peers import bare
from benchmarks.peers.base import SCRIPTS
from benchmarks.turn_server import TurnServer, take_turns

SIZES = (2, 4)
STEPS = 40  # of a turn
WARM_UP = 30
OURS = ("hopsml", "hopsml-plain")
START_TIMEOUT_S = 150.0


def run(options: Options) -> Report:
    """Two workers and four."""
    report = Report()
    for workers in SIZES:
        times = measure(workers, options)
        beside = "TensorFlow by hand"
        report.figures += [
            ratio_of(f"step.ratio_n{workers}", times["hopsml"], times["bare"], beside),
            ratio_of(f"step.plain_ratio_n{workers}", times["hopsml-plain"], times["bare"], beside),
            measured(f"step.hopsml_n{workers}_ms", times["hopsml"], "ms", beside, times["bare"]),
            measured(f"step.bare_n{workers}_ms", times["bare"], "ms"),
        ]
    report.notes.append(
        f"step: three dense layers, 235 146 weights, 128 examples over all workers; a round is {STEPS} steps of each group, "
        "the value of a round their median; plain: TensorFlow's own strategy under hopsml"
    )
    return report


def measure(workers: int, options: Options) -> dict[str, list[float]]:
    """Milliseconds of a step by way, one median a round."""
    with temporary_folder() as name, TurnServer(Path(name) / "turns") as server:
        folder = Path(name)
        with Launched(commands(folder, server.path, workers), folder) as launched:
            wanted = workers * (1 + len(OURS))
            launched.wait_until(lambda: server.accept() == wanted, START_TIMEOUT_S, f"{wanted} workers ready")
            turns = take_turns(server, ("bare", *OURS), STEPS)
            for way in turns:
                server.steps(way, WARM_UP)
            rounds = alternate(options.rounds_of(40, 12), {way: _median_ms(turns[way]) for way in turns})
            for way in turns:
                server.steps(way, 0)
    for way, values in rounds.items():
        options.say(f"{workers} workers, {way}: {statistics.median(values):.2f} ms")
    return rounds


def _median_ms(turn: Callable[[], list[float]]) -> Callable[[], float]:
    return lambda: statistics.median(turn()) * 1000


def commands(folder: Path, socket: Path, workers: int) -> list[Command]:
    """Both launchers: the workers by hand, and one driver of ours with a run for each of our ways."""
    conf = folder / "conf"
    conf.mkdir()
    (conf / "local.yaml").write_text(f"master: none\nlocal_slots: {workers * len(OURS)}\n")
    variables = {"HOPSML_CONF_DIR": str(conf), "HOPSML_PROJECT_URL": f"file://{folder}/project"}
    script = [sys.executable, str(SCRIPTS / "hopsml_steps.py"), str(socket), str(workers), *OURS]
    by_hand = bare.start(Path(sys.executable), [str(SCRIPTS / "bare_steps.py"), str(socket)], workers)
    return [*by_hand, Command(script, variables)]
