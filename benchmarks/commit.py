"""How long a commit holds the training up, against the size of the state; one worker on this machine, no Spark.

A commit reads the variables without copying them: TensorFlow copies each one when it is written to next, in the update
behind the commit. So a commit costs the call and what that update takes longer than the one before the commit.
"""

from __future__ import annotations

from benchmarks.figures import Report, measured
from benchmarks.launched import temporary_folder
from benchmarks.options import Options
from benchmarks.spread import spread_of

SIZES_MB = (1, 10, 100, 1000, 2000)
COMMITS = 12
STEP_S = 0.3  # between two commits, as in a training: the one before is complete by then


def measure(size_mb: int, commits: int) -> dict[str, list[float]]:
    """In a worker: milliseconds of each call, of the updates before and behind it, and until the commit was complete."""
    import time

    import tensorflow as tf

    import hopsml

    variable = tf.Variable(tf.ones([size_mb * 250_000]))
    change = tf.ones_like(variable)
    state = hopsml.elastic.State(variable=variable)
    data = hopsml.elastic.Sampler(commits, 1)
    found: dict[str, list[float]] = {"call": [], "complete": [], "step": [], "step without": []}
    variable.assign_sub(change)  # traced and warm
    for _ in state.resume(data):
        began = time.perf_counter()
        variable.assign_sub(change)
        found["step without"].append(time.perf_counter() - began)
        began = time.perf_counter()
        state.commit(every=1)
        found["call"].append(time.perf_counter() - began)
        stepped = time.perf_counter()
        variable.assign_sub(change)
        found["step"].append(time.perf_counter() - stepped)
        assert state._writer is not None
        state._writer.wait()
        found["complete"].append(time.perf_counter() - began)
        time.sleep(min(STEP_S, 10 * found["complete"][-1]))
    # The first one has the memory made that the later ones use again.
    return {name: [1000 * second for second in seconds[1:]] for name, seconds in found.items()}


def run(options: Options) -> Report:
    """Two figures for each size: all that a commit costs, which has a goal at 100 MB, and the call alone."""
    import os

    from hopsml import experiment

    figures, notes = [], []
    with temporary_folder() as folder:
        os.environ["HOPSML_PROJECT_URL"] = f"file://{folder}"
        try:
            for size in SIZES_MB if not options.quick else SIZES_MB[:3]:
                args = {"size_mb": size, "commits": options.choose(COMMITS, 6)}
                found = experiment.submit(
                    measure,
                    args=args,
                    min_workers=1,
                    max_workers=1,
                    profile="local",
                    keep_warm=60,
                    progress=False,
                ).result(300)
                values = found.value
                figures += [
                    measured(f"commit.hold_{size}mb_ms", held_up(values), "ms"),
                    measured(f"commit.call_{size}mb_ms", values["call"], "ms"),
                ]
                notes.append(_note(size, values))
        finally:
            del os.environ["HOPSML_PROJECT_URL"]
            experiment.shutdown()
    return Report(figures, notes)


def held_up(values: dict[str, list[float]]) -> list[float]:
    """Milliseconds of each commit: the call, and the copy that the update behind it makes."""
    rounds = zip(values["call"], values["step"], values["step without"], strict=True)
    return [call + behind - without for call, behind, without in rounds]


def _note(size: int, values: dict[str, list[float]]) -> str:
    step, without = spread_of(values["step"]).median, spread_of(values["step without"]).median
    complete = spread_of(values["complete"]).median
    return (
        f"commit of {size} MB: complete after {complete:.1f} ms beside the training; the update of all variables behind it "
        f"takes {step:.1f} ms instead of {without:.1f}, because they are copied when they are written to; hold is the call "
        "and that difference, commit by commit"
    )
