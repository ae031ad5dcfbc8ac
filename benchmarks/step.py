"""Time of a training step under hopsml, against TensorFlow processes with TF_CONFIG started by hand.

All groups run at once and alternate, some steps each, in a different order each round: other load on the machine
affects all of them. They train the same model; two neighbours in this list differ in one thing, so that a difference
has one cause:

bare            TensorFlow's own strategy in processes started by hand: the reference of all others
bare-variables  the same with the environment variables of a hopsml worker
bare-merged     as bare, with hopsml's reduction of gradients installed in the strategy
hopsml          ``hopsml.tensorflow.strategy()`` in hopsml workers
hopsml-plain    TensorFlow's own strategy in hopsml workers, as a user writes it; hopsml's reduction is installed there, too
hopsml-own      as hopsml-plain, with TensorFlow's own reduction restored: a hopsml worker is forked, its start is hooked
hopsml-collective  as hopsml, over hopsml's own collective; measured by the figures of ``collective``
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.figures import Report, measured, ratio_of
from benchmarks.launched import Command, Launched, temporary_folder
from benchmarks.options import Options
from benchmarks.pairing import alternate
from benchmarks.peers import bare
from benchmarks.peers.base import SCRIPTS
from benchmarks.peers.hopsml import PEER
from benchmarks.turn_server import TurnServer, take_turns
from hopsml.cluster.forking import fork_server
from hopsml.experiment import applications

SIZES = (2, 4)
STEPS = 40  # per turn
WARM_UP = 30
BY_HAND = ("bare", "bare-variables", "bare-merged")
OURS = ("hopsml", "hopsml-plain", "hopsml-own")
WAYS = (*BY_HAND, *OURS)
COLLECTIVE = "hopsml-collective"
START_TIMEOUT_S = 300.0


def run(options: Options) -> Report:
    """Measure a step with two workers and with four."""
    report = Report()
    for workers in SIZES:
        times = measure(workers, options)
        beside = "TensorFlow by hand"
        report.figures += [
            *(
                ratio_of(f"step.{name}_n{workers}", times[way], times["bare"], beside)
                for name, way in (
                    ("ratio", "hopsml"),
                    ("plain_ratio", "hopsml-plain"),
                    ("own_reduction_ratio", "hopsml-own"),
                    ("bare_variables_ratio", "bare-variables"),
                    ("bare_merged_ratio", "bare-merged"),
                )
            ),
            measured(f"step.hopsml_n{workers}_ms", times["hopsml"], "ms", beside, times["bare"]),
            measured(f"step.bare_n{workers}_ms", times["bare"], "ms"),
        ]
    report.notes.append(
        f"step: three dense layers, 235 146 weights, 128 examples over all workers; a round is {STEPS} steps of each group, "
        "the value of a round their median; plain: TensorFlow's own strategy in our workers, where hopsml's reduction is in "
        "force; own reduction: the same with TensorFlow's put back, so only how the worker is started differs from by hand; "
        "bare variables: by hand with our workers' environment variables; bare merged: by hand with hopsml's reduction"
    )
    return report


def measure(workers: int, options: Options, ways: Sequence[str] = WAYS) -> dict[str, list[float]]:
    """Return milliseconds of a step by method, one median per round; at least one of ``ways`` must be hopsml's."""
    python = PEER.python(options.say)
    with temporary_folder() as name, TurnServer(Path(name) / "turns") as server:
        folder = Path(name)
        with Launched(commands(python, folder, server.path, workers, ways), folder) as launched:
            wanted = workers * len(ways)
            launched.wait_until(lambda: server.accept() == wanted, START_TIMEOUT_S, f"{wanted} workers ready")
            turns = take_turns(server, ways, STEPS)
            for way in turns:
                server.steps(way, WARM_UP)
            rounds = alternate(options.rounds_of(20, 8), {way: _median_ms(turns[way]) for way in turns})
            for way in turns:
                server.steps(way, 0)
    for way, values in rounds.items():
        options.say(f"{workers} workers, {way}: {statistics.median(values):.2f} ms")
    return rounds


def _median_ms(turn: Callable[[], list[float]]) -> Callable[[], float]:
    return lambda: statistics.median(turn()) * 1000


def commands(python: Path, folder: Path, socket: Path, workers: int, ways: Sequence[str] = WAYS) -> list[Command]:
    """Return the commands: workers by hand for each such method, and one driver with a run for each of hopsml's."""
    ours = [way for way in (*OURS, COLLECTIVE) if way in ways]
    conf = folder / "conf"
    conf.mkdir()
    (conf / "local.yaml").write_text(f"master: none\nlocal_slots: {workers * len(ours)}\n")
    variables = {"HOPSML_CONF_DIR": str(conf), "HOPSML_PROJECT_URL": f"file://{folder}/project"}
    script = [str(python), str(SCRIPTS / "hopsml_steps.py"), str(socket), str(workers), *ours]
    by_hand = [
        Command(command.arguments, {**command.variables, **(worker_variables() if way == "bare-variables" else {})})
        for way in BY_HAND
        if way in ways
        for command in bare.start(python, [str(SCRIPTS / "bare_steps.py"), str(socket), way], workers)
    ]
    return [*by_hand, Command(script, variables)]


def worker_variables() -> dict[str, str]:
    """Return the environment variables of a hopsml worker that libraries may read, without those of the user."""
    own = fork_server.environment_of({}, fork_server.new_mark())
    for name in ("PYTHONPATH", fork_server.MARK):
        del own[name]
    return {**own, **(applications.agents_variables("none", {}) or {})}
