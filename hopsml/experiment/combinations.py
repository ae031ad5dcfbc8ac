"""The runs of one launch: one experiment's folder, in it a run for each combination of arguments.

<project>/Experiments/<application>_<n>/run.json, .summary.json, status.json
<project>/Experiments/<application>_<n>/a=1&b=5/run.json, .hparams.json, .outputs.json, events/, logs/, status.json ...
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hopsml import settings, states
from hopsml.cluster.shared.plain import as_json
from hopsml.errors import WorkerFailed
from hopsml.experiment import applications, plan, takeover
from hopsml.experiment.predecessor import combination
from hopsml.experiment.result import Result
from hopsml.experiment.run import Run
from hopsml.experiment.standing import Part
from hopsml.states import Lifecycle
from hopsml.storage import filesystem, job_record, privacy, urls
from hopsml.storage.run_dir import RunDir, claim
from hopsml.tracking.recording import Recording

SUMMARY = ".summary.json"


def carry_out(plans: Sequence[plan.Plan], table: Mapping[str, Any]) -> Result:
    """Run them all, as many at a time as there are slots, in order; the first that fails ends the others.

    ``table``: the arguments of them all, as the user gave them.
    """
    application = applications.current(plans[0].profile, plans[0].spec.keep_warm_s)
    whole, earlier = _claimed(plans, table, application)
    recording = Recording(whole, None).start()
    began, error, results = time.time(), None, list[Result]()
    try:
        results = _all([_placed(single, *place, whole, earlier) for single, place in _places(plans)], application)
        summary = [
            {"parameters": as_json(single.arguments), "outputs": as_json(result.metrics)}
            for single, result in zip(plans, results, strict=True)
        ]
        whole.write_json(urls.join(whole.url, SUMMARY), {"combinations": summary})
    except BaseException as problem:
        error = problem
        raise
    finally:
        recording.join()
        whole.end(_status(whole, began, error, results))
    return Result(
        whole.url, None, runs=results, state=Lifecycle.FINISHED, value=None, run_dir=whole.url, run_id=whole.run_id
    )


def _claimed(
    plans: Sequence[plan.Plan], table: Mapping[str, Any], application: applications.Application
) -> tuple[RunDir, str]:
    """The new directory of the whole; and the URL of an earlier attempt's directory, "" if there is none."""
    store = settings.project_url()
    record = plan.record_of_several(plans[0], application, len(plans), table)
    earlier = application.earlier_runs.take(store, record)
    record |= {"continues": earlier, "combinations": [name for _, (name, _) in _places(plans)]}
    whole = claim(store, application.id, record, share=plans[0].spec.environment.get(privacy.VARIABLE))
    job_record.announce(whole, application.id)
    if earlier:
        takeover.end(earlier, whole)
    return whole, earlier


def _places(plans: Sequence[plan.Plan]) -> list[tuple[plan.Plan, tuple[str, int]]]:
    """Each plan with the name of its folder and its number."""
    seen: Counter[str] = Counter()
    places = []
    for number, single in enumerate(plans):
        plain = combination(single.arguments, number, 0)
        places.append((single, (combination(single.arguments, number, seen[plain]), number)))
        seen[plain] += 1
    return places


def _placed(single: plan.Plan, name: str, number: int, whole: RunDir, earlier: str) -> plan.Plan:
    """The plan of one combination in its folder; it continues what an earlier attempt has of it."""
    directory = RunDir(urls.join(whole.url, name))
    before = urls.join(earlier, name) if earlier else ""
    part = Part("", directory, f"{whole.run_id}-{number}", single.arguments, of=whole.run_id, recorded=True)
    if before and not filesystem.exists(RunDir(before).run_json):
        before = ""
    return dataclasses.replace(single, standing=part, continues=before)


def _all(plans: Sequence[plan.Plan], application: applications.Application) -> list[Result]:
    capacity = application.backend.capacity()
    width = capacity.limit or capacity.preferred
    running: list[Run] = []
    results: list[Result] = []
    try:
        for index, single in enumerate(plans):
            if index >= width:
                results.append(running[index - width].result())
            running.append(_begin(single))
        return results + [run.result() for run in running[len(results) :]]
    except BaseException:
        for run in running:
            run.cancel("another combination of the same launch failed or was interrupted")
        for run in running:
            run.exception()
        raise


def _begin(single: plan.Plan) -> Run:
    assert isinstance(single.standing, Part)
    directory = single.standing.place
    directory.write_json(directory.hparams_json, as_json(single.arguments))
    return plan.start(single)


def _status(whole: RunDir, began: float, error: BaseException | None, results: Sequence[Result]) -> dict[str, Any]:
    return {
        "run_id": whole.run_id,
        "state": states.end(error),
        "ended": time.time(),
        "seconds": round(time.time() - began, 3),
        "error": "" if error is None else as_json(str(error) or type(error).__name__),
        "raised": isinstance(error, WorkerFailed) and bool(error.remote_traceback),  # by the user's own code
        "workers": as_json([worker for result in results for worker in result.workers]),
        "not_on_shared_storage": {},
    }
