"""Keras ``fit`` over hopsml's collective, TensorFlow's strategy by hand, and a worker that reduces nothing.

All groups run at once and alternate; scripts/fits.py and scripts/hopsml_fits.py describe each of them.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.figures import Figure, ratio_of
from benchmarks.launched import Command, Launched, temporary_folder
from benchmarks.options import Options
from benchmarks.pairing import alternate
from benchmarks.peers import bare
from benchmarks.peers.base import SCRIPTS
from benchmarks.scripts.fits import MODELS
from benchmarks.turn_server import TurnServer, take_turns

LEGACY = {"TF_USE_LEGACY_KERAS": "1"}
BY_HAND = {"bare": LEGACY, "bare-keras3": {}, "alone": {}}
STEPS = 40  # per turn
WARM_UP = 40
START_TIMEOUT_S = 300.0
NOTE = (
    "fit: digits, 64 examples over all workers, Keras 3; an MLP of 301 066 weights, a CNN of 29 066; TensorFlow by hand "
    "with what hopsml repairs in Keras 3, which fails under it otherwise; legacy: both by tf_keras, nothing of hopsml in "
    "the one by hand; shared: without cores of their own; efficiency: a step of one worker with its share of the batch, "
    "on one core and without a strategy, over a step of two, each on its core"
)
Times = dict[str, list[float]]


def figures(options: Options) -> list[Figure]:
    """Measure ``fit`` with two workers and with four."""
    two = measure(2, options, ("bare-keras3", "alone", "hopsml"))
    four = measure(4, options, ("bare-keras3", "hopsml"))
    tf_keras = measure(2, options, ("bare", "hopsml-legacy"))
    shared = measure(2, options, ("hopsml", "hopsml-shared"))
    by_hand, legacy = "TensorFlow by hand, Keras 3 repaired", "TensorFlow by hand"
    efficiency = [
        ratio_of("collective.efficiency_n2", two[f"alone-{name}"], two[f"hopsml-{name}"], f"{name}, one worker alone")
        for name in MODELS
    ]
    return [
        ratio_of("collective.step_ratio_n2", two["hopsml-mlp"], two["bare-keras3-mlp"], by_hand),
        ratio_of("collective.step_ratio_n4", four["hopsml-mlp"], four["bare-keras3-mlp"], by_hand),
        ratio_of("collective.cnn_ratio_n2", two["hopsml-cnn"], two["bare-keras3-cnn"], by_hand),
        min(efficiency, key=lambda one: one.value),
        ratio_of("collective.legacy_step_ratio_n2", tf_keras["hopsml-legacy-mlp"], tf_keras["bare-mlp"], legacy),
        ratio_of("collective.legacy_cnn_ratio_n2", tf_keras["hopsml-legacy-cnn"], tf_keras["bare-cnn"], legacy),
        ratio_of("collective.cnn_ratio_n4", four["hopsml-cnn"], four["bare-keras3-cnn"], by_hand),
        *(
            ratio_of(
                f"collective.cores_{name}_ratio_n2", shared[f"hopsml-{name}"], shared[f"hopsml-shared-{name}"], "shared"
            )
            for name in MODELS
        ),
    ]


def measure(workers: int, options: Options, ways: Sequence[str]) -> Times:
    """Return milliseconds of a step by method and model (``hopsml-mlp``), one median per round."""
    python = Path(sys.executable)  # the project's own environment has tf_keras and the digits, for all methods alike
    names = [f"{way}-{name}" for way in ways for name in MODELS]
    with temporary_folder() as name, TurnServer(Path(name) / "turns") as server:
        folder = Path(name)
        with Launched(commands(python, folder, server.path, workers, ways), folder) as launched:
            wanted = sum(1 if way == "alone" else workers for way in ways) * len(MODELS)
            launched.wait_until(lambda: server.accept() == wanted, START_TIMEOUT_S, f"{wanted} workers ready")
            turns = take_turns(server, names, STEPS)
            for way in names:
                server.steps(way, WARM_UP)
            rounds = alternate(options.rounds_of(10, 5), {way: _median_ms(turns[way]) for way in names})
            for way in names:
                server.steps(way, 0)
    shown = ", ".join(f"{way} {statistics.median(values):.2f}" for way, values in rounds.items())
    options.say(f"{workers} workers, fit: {shown} ms")
    return rounds


def _median_ms(turn: Callable[[], list[float]]) -> Callable[[], float]:
    return lambda: statistics.median(turn()) * 1000


def commands(python: Path, folder: Path, socket: Path, workers: int, ways: Sequence[str]) -> list[Command]:
    """Return the commands: the workers of each method by hand, and a driver for each of hopsml's.

    At most one of hopsml's drivers may reserve cores.
    """
    conf = folder / "conf"
    conf.mkdir()
    (conf / "local.yaml").write_text(f"master: none\nlocal_slots: {workers}\n")
    script = [str(SCRIPTS / "fits.py"), str(socket)]
    found = []
    for way in ways:
        if way in BY_HAND:
            started = bare.start(python, [*script, way], 1 if way == "alone" else workers)
            found += [Command(one.arguments, {**one.variables, **BY_HAND[way]}) for one in started]
        else:
            variables = {"HOPSML_CONF_DIR": str(conf), "HOPSML_PROJECT_URL": f"file://{folder}/{way}"}
            found.append(
                Command([str(python), str(SCRIPTS / "hopsml_fits.py"), str(socket), str(workers), way], variables)
            )
    return found
