"""Time until all workers have finished their first step: cold, warm, and from spark-submit.

Every training script writes the time of its first step itself, by the machine's monotonic clock, so all launchers are
measured alike: from the start of the (first) process, or from the call in a running session.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks import first_step, peers
from benchmarks.figures import Report, measured, ratio_of
from benchmarks.launched import Launched, temporary_folder
from benchmarks.options import Options
from benchmarks.pairing import alternate, forgiving
from benchmarks.session import Session
from benchmarks.touched_memory import touch_memory

WORKERS = 2
WARM_CALLS = 3
REFERENCE = "spark-tensorflow-distributor"
OTHERS = ("torch-distributor", "tensorflowonspark", "ray-train")
APART = "hopsml-apart"  # hopsml without the import that executors of one machine share
OUR_JVM = "spark-tensorflow-distributor-our-jvm"  # the reference with hopsml's JVM options and class-data archives


def run(options: Options) -> Report:
    """Measure launches in a running session and from spark-submit."""
    report = Report()
    if options.wants("bare"):
        report.add(in_session(options))
    if options.wants("hopsml"):
        report.add(from_submit(options))
    return report


# ------------------------------------------------------------------------------------------ in a running session


def in_session(options: Options) -> Report:
    """Measure a call in a running Spark session against bare TensorFlow from process start, alternating."""
    warm: list[float] = []
    again: list[float] = []
    candidates: dict[str, Callable[[], float]] = {
        "bare": partial(from_nothing, "bare", options),
        "cold": _first_of_all,
        "after a job": partial(_calls, warm, again),
    }
    times = alternate(options.rounds_of(4, 2), candidates, options.say)
    beside = "TensorFlow by hand"
    report = Report(
        [
            ratio_of("launch.cold_ratio", times["cold"], times["bare"], beside),
            ratio_of("launch.warm_ratio", warm, times["bare"], beside),
            ratio_of("launch.after_job_ratio", times["after a job"], times["bare"], beside),
            ratio_of("launch.cold_again_ratio", again, times["bare"], beside),
            measured("launch.cold_s", times["cold"], "s", beside, times["bare"]),
            measured("launch.after_job_s", times["after a job"], "s", beside, times["bare"]),
            measured("launch.warm_s", warm, "s", beside, times["bare"]),
            measured("launch.bare_s", times["bare"], "s"),
        ],
        [
            "launch.cold: the first call of hopsml in a session of Spark's default settings that has run nothing at all, "
            "so it pays for the start of Spark's own Python and first job, too; after a job: the first call of hopsml in "
            f"a session that has run one Python job; warm: the median of the {WARM_CALLS} calls after that; cold again: "
            "after all agents were given back. Before each of these, and before TensorFlow by hand, 2 GB of memory are "
            "touched: see touched_memory.py"
        ],
    )
    return report


def _calls(warm: list[float], again: list[float]) -> float:
    """Return seconds of a session's first call after a job; append later calls to ``warm`` and ``again``."""
    with temporary_folder() as name, Session(Path(name), WORKERS) as session:
        session.ask("job", workers=WORKERS)
        session.ask("import")
        touch_memory()
        first = _call(session, "first")
        later = sorted(_call(session, f"warm{number}") for number in range(WARM_CALLS))
        warm.append(later[WARM_CALLS // 2])
        session.ask("give back")
        touch_memory()
        again.append(_call(session, "again"))
    return first


def _first_of_all() -> float:
    """Return seconds of a call that is the first action of a session."""
    with temporary_folder() as name, Session(Path(name), WORKERS) as session:
        session.ask("import")
        touch_memory()
        return _call(session, "first")


def _call(session: Session, name: str) -> float:
    folder = session.folder / name
    folder.mkdir()
    answer = session.ask("call", folder=str(folder), workers=WORKERS)
    return max(first_step.times(folder).values()) - float(answer["called"])


# ------------------------------------------------------------------------------------------ from a shell


def from_nothing(name: str, options: Options) -> float:
    """Return seconds from the start of a peer's first process to the first step on both workers."""
    peer = peers.find(name)
    with temporary_folder() as folder:
        job = peer.job(Path(folder), WORKERS, 1, options.say)
        touch_memory()
        with Launched(job, Path(folder)) as launched:
            return first_step.wait(launched, Path(folder), WORKERS) - launched.began


def from_submit(options: Options) -> Report:
    """Measure spark-submit of hopsml and of the peers; Ray without Spark, from the start of its script."""
    others = [name for name in OTHERS if options.wants(name)]
    for name in (REFERENCE, *others):
        peers.find(name).python(options.say)  # created in advance: a peer's turn must not wait for its packages
    report = Report()
    candidates: dict[str, Callable[[], float | None]] = {
        name: partial(from_nothing, name, options) for name in ("hopsml", APART, REFERENCE)
    }
    for name in (OUR_JVM, *others):
        candidates[name] = forgiving(partial(from_nothing, name, options), report.note_of(peers.find(name).title))
    times = alternate(options.rounds_of(3, 1), candidates, options.say)
    ours = numbers(times["hopsml"])
    report.add(_submitted(ours, numbers(times[APART]), numbers(times[REFERENCE]), numbers(times[OUR_JVM])))
    for name in (REFERENCE, OUR_JVM, *others):
        pairs = [(theirs, mine) for theirs, mine in zip(times[name], ours, strict=True) if theirs is not None]
        if pairs:
            theirs, mine = zip(*pairs, strict=True)
            report.figures.append(measured(f"launch.submit_{name.replace('-', '_')}_s", theirs, "s", "hopsml", mine))
    return report


def _submitted(ours: list[float], apart: list[float], reference: list[float], our_jvm: list[float]) -> Report:
    """Report hopsml as it is, without the shared import, and against a peer with hopsml's JVM options."""
    beside, tuned = peers.find(REFERENCE).title, peers.find(OUR_JVM).title
    report = Report(
        [
            ratio_of("launch.submit_ratio", ours, reference, beside),
            ratio_of("launch.submit_apart_ratio", apart, reference, beside),
            measured("launch.submit_s", ours, "s", beside, reference),
            measured("launch.submit_apart_s", apart, "s", beside, reference),
        ],
        [
            "launch.submit: ours with class-data archives, lean JVM options and one import of TensorFlow for both "
            "executors, the peers as they come; apart: each executor of ours imports by itself, as on several hosts, but "
            "here the two share this machine's cores; our JVM: the peer is given the same JVM options and archives of its "
            "own classes"
        ],
    )
    if len(our_jvm) == len(ours):
        report.figures += [
            ratio_of("launch.submit_our_jvm_ratio", ours, our_jvm, tuned),
            ratio_of("launch.submit_apart_our_jvm_ratio", apart, our_jvm, tuned),
        ]
    return report


def numbers(values: Sequence[float | None]) -> list[float]:
    """Return the values that were measured."""
    return [value for value in values if value is not None]
