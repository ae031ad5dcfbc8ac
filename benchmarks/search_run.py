"""Searches on two executors: utilisation, short trials per second, ASHA; Ray Tune and optuna in the same rounds.

The trials sleep (scripts/search_workload.py), so a wall time is the trials' own minimum plus the overhead of the
launcher. A running session has started Spark, and its agents remain from an earlier search. "From nothing" is measured
from the start of the first process until the result is available.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import environments
from benchmarks.figures import Report, measured, ratio_of
from benchmarks.launch import numbers
from benchmarks.launched import Command, Launched, temporary_folder
from benchmarks.options import Options
from benchmarks.pairing import alternate, forgiving
from benchmarks.peers import hopsml as ours
from benchmarks.peers.base import SCRIPTS
from benchmarks.scripts import search_workload as work
from benchmarks.session import Session

EXECUTORS = 2
RAY, OPTUNA = "Ray Tune 2.60.0", "optuna 5.0.0, processes"
TIMEOUT_S = 180.0


def run(options: Options) -> Report:
    """Measure searches in a running session, then from nothing."""
    report = Report()
    if options.wants("hopsml"):
        report.add(in_session(options))
        report.add(from_nothing(options))
    return report


# ------------------------------------------------------------------------------------------ in a running session


def in_session(options: Options) -> Report:
    """Measure hopsml's searches, one after another, in rounds; each round has a separate session."""
    trials = options.choose(1000, 200)
    found: dict[str, list[float]] = {name: [] for name in ("sixteen", "short", "forked", "asha", "nested")}
    cold: list[float] = []
    for _ in range(options.rounds_of(3, 1)):
        with temporary_folder() as name, Session(Path(name), EXECUTORS, options.say) as session:
            session.ask("job", workers=EXECUTORS)
            session.ask("import")
            cold.append(_ask(session, "short", 2))
            for case, count in (("sixteen", 0), ("short", trials), ("forked", trials), ("asha", 0)):
                found[case].append(_ask(session, case, count))
                options.say(f"search: {case} in {found[case][-1]:.2f} s")
        found["nested"].append(_nested(options))
    ideal = work.least_s(work.SIXTEEN, EXECUTORS)
    rate = [trials / seconds / EXECUTORS for seconds in found["short"]]
    forked = [trials / seconds / EXECUTORS for seconds in found["forked"]]
    return Report(
        [
            measured("search.utilisation_16", [ideal / seconds for seconds in found["sixteen"]], "ratio"),
            measured("search.short_trials_per_s", rate, "/s"),
            measured("search.forked_trials_per_s", forked, "/s"),
            measured("search.sixteen_s", found["sixteen"], "s"),
            measured("search.asha_s", found["asha"], "s"),
            measured("search.nested_8x2_s", found["nested"], "s"),
            measured("search.first_in_session_s", cold, "s"),
        ],
        [
            f"search: {EXECUTORS} executors; 16 trials of {min(work.SIXTEEN)} to {max(work.SIXTEEN)} s take {ideal:g} s "
            f"at least; {trials} short trials of {work.SHORT_S} s; first: two of them, the first search of the session; "
            "nested: 8 trials of a second on 2 workers each, 4 slots, so 4 s at least",
        ],
    )


def _ask(session: Session, case: str, trials: int) -> float:
    answer = session.ask("search", case=case, executors=EXECUTORS, trials=trials)
    return float(answer["seconds"])


def _nested(options: Options) -> float:
    """Measure 8 trials of 2 workers each on 4 slots."""
    with temporary_folder() as name, Session(Path(name), 2 * EXECUTORS, options.say) as session:
        session.ask("job", workers=2 * EXECUTORS)
        session.ask("search", case="nested", executors=2 * EXECUTORS, trials=2)
        answer = session.ask("search", case="nested", executors=2 * EXECUTORS, trials=8)
        options.say(f"search: nested in {answer['seconds']:.2f} s")
        return float(answer["seconds"])


# ------------------------------------------------------------------------------------------ from nothing


def from_nothing(options: Options) -> Report:
    """Measure the sixteen trials by hopsml, Ray and optuna, and ASHA by hopsml and Ray; rounds alternate."""
    report = Report()
    for name in ("hopsml", *[peer for peer in ("ray-tune", "optuna") if options.wants(peer)]):
        environments.ensure(name, options.say)  # a turn must not wait for packages
    asha: dict[str, list[dict[str, Any]]] = {"ours": [], "ray": []}
    candidates: dict[str, Callable[[], float | None]] = {"hopsml": partial(_hopsml, options, "sixteen", [])}
    if options.wants("ray-tune"):
        note = report.note_of(RAY)
        candidates["local"] = partial(_hopsml_without_spark, options)
        candidates["ray"] = forgiving(partial(_peer, options, "ray-tune", "sixteen", ("1",)), note)
        candidates["hopsml_asha"] = partial(_hopsml, options, "asha", asha["ours"])
        candidates["ray_asha"] = forgiving(partial(_peer, options, "ray-tune", "asha", ("1",), asha["ray"]), note)
    if options.wants("optuna"):
        candidates["optuna"] = forgiving(partial(_peer, options, "optuna", "sixteen"), report.note_of(OPTUNA))
    times = alternate(options.rounds_of(3, 1), candidates, options.say)
    mine = numbers(times["hopsml"])
    report.figures.append(measured("search.from_nothing_s", mine, "s"))
    report.add(_beside_ray_without_spark(numbers(times.get("local", ())), numbers(times.get("ray", ()))))
    for name, figure, title in (("ray", "search.ray_ratio", RAY), ("optuna", "search.optuna_ratio", OPTUNA)):
        theirs = numbers(times.get(name, ()))
        if theirs and len(theirs) == len(mine):
            report.figures += [
                ratio_of(figure, mine, theirs, title),
                measured(f"search.{name}_from_nothing_s", theirs, "s"),
            ]
    if asha["ray"] and len(asha["ray"]) == len(asha["ours"]):
        report.add(_asha_beside_ray(asha["ours"], asha["ray"]))
    return report


def _asha_beside_ray(ours: list[dict[str, Any]], rays: list[dict[str, Any]]) -> Report:
    """Compare seconds and trained steps of searches of the same rounds."""
    seconds, ray_seconds = [float(facts["seconds"]) for facts in ours], [float(facts["seconds"]) for facts in rays]
    steps, ray_steps = [float(facts["steps"]) for facts in ours], [float(facts["steps"]) for facts in rays]
    return Report(
        [
            ratio_of("search.asha_ratio", seconds, ray_seconds, f"{RAY} ASHA"),
            ratio_of("search.asha_steps_ratio", steps, ray_steps, f"{RAY} ASHA"),
            measured("search.ray_asha_s", ray_seconds, "s"),
            measured("search.asha_steps", steps, "steps"),
            measured("search.ray_asha_steps", ray_steps, "steps"),
        ],
        [
            f"search.asha_ratio: {work.ASHA_TRIALS} trials of {work.MAX_STEP} steps at most, rungs 1, 3, 9, 27, the same "
            "rule on both sides, Ray's: below the percentile of what others had recorded at a rung before, a trial is "
            "over; from the call to its result, the second search of a session that runs already, on both sides. Trained "
            f"steps, in the order of the rounds: ours {_listed(steps)}, Ray's {_listed(ray_steps)}"
        ],
    )


def _listed(values: list[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _hopsml(options: Options, case: str, running: list[dict[str, Any]]) -> float:
    """Return seconds from the start of spark-submit; append the facts of a second search to ``running``."""
    with temporary_folder() as name:
        python = ours.PEER.python(options.say)
        script = [str(SCRIPTS / "hopsml_search_job.py"), name, str(EXECUTORS), case]
        return _result(ours.start(python, script, EXECUTORS), Path(name), running)


def _hopsml_without_spark(options: Options) -> float:
    """Run the same job with the local profile: agents are processes of this machine, as Ray's workers are."""
    with temporary_folder() as name:
        python = ours.PEER.python(options.say)
        words = [str(python), str(SCRIPTS / "hopsml_search_job.py"), name, str(EXECUTORS), "sixteen"]
        variables = {**ours.variables_of(python, Path(name)), "HOPSML_PROFILE": "local"}
        return _result([Command(words, variables)], Path(name), None)


def _beside_ray_without_spark(mine: list[float], theirs: list[float]) -> Report:
    """Compare both without Spark, with the ratio of a launcher without any overhead."""
    if not theirs or len(mine) != len(theirs):
        return Report()
    least = work.least_s(work.SIXTEEN, EXECUTORS)
    floor = [least / seconds for seconds in theirs]
    return Report(
        [
            measured("search.local_from_nothing_s", mine, "s"),
            ratio_of("search.local_ray_ratio", mine, theirs, RAY),
            measured("search.ray_ratio_of_no_overhead", floor, "ratio"),
        ],
        [
            "search.local_ray_ratio: our agents are processes of this machine, as Ray's workers are; search.ray_ratio: "
            "ours start Spark, too; search.ray_ratio_of_no_overhead: the trials' own time alone over Ray's; nothing can "
            "come below"
        ],
    )


def _peer(
    options: Options, name: str, case: str, more: tuple[str, ...] = (), running: list[dict[str, Any]] | None = None
) -> float:
    script = {"ray-tune": "ray_tune_job.py", "optuna": "optuna_job.py"}[name]
    with temporary_folder() as folder:
        python = environments.ensure(name, options.say)
        command = Command([str(python), str(SCRIPTS / script), folder, str(EXECUTORS), case, *more])
        return _result([command], Path(folder), running)


def _result(commands: list[Command], folder: Path, running: list[dict[str, Any]] | None) -> float:
    with Launched(commands, folder) as launched:
        path = folder / "result.json"
        launched.wait_until(path.exists, TIMEOUT_S, "the result of the search")
        facts: dict[str, Any] = json.loads(path.read_text())
        if running is not None:
            running.append(facts)
        return float(facts["ended"]) - launched.began
