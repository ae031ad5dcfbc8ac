"""Delay of a training by a commit, against the size of the state; one worker on this machine, no Spark.

An asynchronous commit reads the variables without copying them: TensorFlow copies each variable that an update changes
before it is written, and all of them share one memory. So a commit costs the call, and the time by which all updates
until it is complete are slower than an update before it. Here an update follows at once, unlike in a training that
computes gradients: the worst case.
"""

from __future__ import annotations

from benchmarks.figures import Report, measured
from benchmarks.launched import temporary_folder
from benchmarks.options import Options
from benchmarks.spread import spread_of

SIZES_MB = (1, 10, 100, 1000, 2000)
COMMITS = 20
WARM = 8  # commits before those that are counted: they allocate the memory, and try both methods of writing
PAUSE_S = 0.3  # between two commits of 100 MB and more, as in a training


def measure(size_mb: int, commits: int) -> dict[str, list[float]]:
    """Return times in milliseconds of each commit; runs in a worker.

    The lists are ``call`` (the call of ``commit``), ``complete`` (until the commit was complete), ``steps`` (all
    updates until then) and ``steps without`` (as many updates at the speed before the commit).
    """
    import time

    import tensorflow as tf

    import hopsml

    variable = tf.Variable(tf.ones([size_mb * 250_000]))
    change = tf.ones_like(variable)
    state = hopsml.elastic.State(variable=variable)
    data = hopsml.elastic.Sampler(commits, 1)
    found: dict[str, list[float]] = {"call": [], "complete": [], "steps": [], "steps without": []}
    assert state._writer is not None

    def update() -> float:
        began = time.perf_counter()
        variable.assign_sub(change)
        return time.perf_counter() - began

    update()  # traced and warm
    for _ in state.resume(data):
        without, began = update(), time.perf_counter()
        state.commit(every=1)
        found["call"].append(time.perf_counter() - began)
        behind = [update()]
        while state._writer.is_busy:
            behind.append(update())
        found["complete"].append(time.perf_counter() - began)
        found["steps"].append(sum(behind))
        found["steps without"].append(len(behind) * without)
        time.sleep(PAUSE_S * min(1.0, size_mb / 100))
    return {name: [1000 * second for second in seconds[WARM:]] for name, seconds in found.items()}


def run(options: Options) -> Report:
    """Measure two figures per size: the whole cost of a commit, which has a goal at 100 MB, and the call alone."""
    import os

    from hopsml import experiment

    figures, notes = [], []
    with temporary_folder() as folder:
        os.environ["HOPSML_PROJECT_URL"] = f"file://{folder}"
        try:
            for size in SIZES_MB if not options.quick else SIZES_MB[:3]:
                args = {"size_mb": size, "commits": options.choose(COMMITS, WARM + 5)}
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
    """Return milliseconds that each commit cost: the call, and the slowdown of the updates until it was complete."""
    rounds = zip(values["call"], values["steps"], values["steps without"], strict=True)
    return [call + behind - without for call, behind, without in rounds]


def _note(size: int, values: dict[str, list[float]]) -> str:
    behind, without = spread_of(values["steps"]).median, spread_of(values["steps without"]).median
    call, complete = spread_of(values["call"]).median, spread_of(values["complete"]).median
    return (
        f"commit of {size} MB: the call takes {call:.1f} ms, in which it is written or only begun; it "
        f"is complete, and an update behind it done, after {complete:.1f} ms; all updates until then take {behind:.1f} ms "
        f"instead of {without:.1f}; hold is the call and that difference, commit by commit"
    )
