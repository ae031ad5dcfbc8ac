"""Quality of tuning's choice: chosen by some rounds, compared with the best in other rounds of the same run."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import gradient_sets
from benchmarks.figures import Figure, Report, ratio_of
from benchmarks.launched import Command, Launched, temporary_folder
from benchmarks.options import Options
from benchmarks.peers.base import SCRIPTS
from benchmarks.peers.hopsml import PEER
from hopsml.experiment.tuning import default_candidate
from hopsml.tuning.choice import choose

WORKERS = 2
TIMEOUT_S = 900.0
Rounds = Mapping[str, Sequence[float]]  # milliseconds by round, for each candidate


def run(options: Options) -> Report:
    """Measure tuning with two workers; the figure is the worst of the sets."""
    report, figures = Report(), []
    for name, (default, rounds) in measure(options).items():
        figure, words = chosen_over_best(f"tuning.{name}_ratio", default_candidate(default).name, rounds)
        figures.append(figure)
        options.say(f"{name}: {words}")
        report.notes.append(f"tuning, {name}: {words}")
    worst = max(figures, key=lambda one: one.value)
    report.figures = [Figure(**{**vars(worst), "name": "collective.auto_ratio"}), *figures]
    report.notes.append(
        "tuning: every other round is what tuning chooses by, the rest is what its choice is judged by; over the candidate "
        "with the smallest median of those, which is the best of several noisy ones"
    )
    return report


def chosen_over_best(name: str, default: str, rounds: Rounds) -> tuple[Figure, str]:
    """Return the even rounds' choice over the best candidate of the odd rounds, and both as text."""
    choice = choose({way: values[::2] for way, values in rounds.items()}, default)
    judged = {way: values[1::2] for way, values in rounds.items()}
    best = min(judged, key=lambda way: statistics.median(judged[way]))
    shown = ", ".join(f"{way} {statistics.median(values):.1f}" for way, values in judged.items())
    return ratio_of(name, judged[choice.chosen], judged[best], best), f"chosen: {choice.chosen}; {shown} ms"


def measure(options: Options) -> dict[str, tuple[str, Rounds]]:
    """Return for each set of gradients the name of the default collectives, and the rounds."""
    sets = options.choose(tuple(gradient_sets.SETS), ("inception-v1", "160x4kB"))
    rounds = 2 * options.rounds_of(10, 4)
    with temporary_folder() as name:
        folder = Path(name)
        conf, result = folder / "conf", folder / "result.json"
        conf.mkdir()
        (conf / "local.yaml").write_text(f"master: none\nlocal_slots: {WORKERS}\n")
        variables = {"HOPSML_CONF_DIR": str(conf), "HOPSML_PROJECT_URL": f"file://{folder}/project"}
        script = [str(PEER.python(options.say)), str(SCRIPTS / "tuning_rounds.py"), str(result)]
        command = Command([*script, str(WORKERS), str(rounds), ",".join(sets)], variables)
        with Launched([command], folder) as launched:
            launched.wait_until(result.exists, TIMEOUT_S, "the rounds of all sets")
            launched.processes[0].wait()
        return dict(json.loads(result.read_text()))
