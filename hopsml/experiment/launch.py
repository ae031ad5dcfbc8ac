"""Verb ``launch``: one run on one worker for each combination of arguments.

<project>/Experiments/<application>_<n>/run.json, .summary.json, status.json
<project>/Experiments/<application>_<n>/a=1&b=5/run.json, .hparams.json, .outputs.json, events/, logs/, status.json ...
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import msgspec

from hopsml.cluster.shared.plain import argument_as_json, as_json
from hopsml.core import settings, states
from hopsml.core.states import Lifecycle
from hopsml.errors import ArgumentError, ArgumentTypeError, ResultsNotStored, WorkerFailed
from hopsml.experiment import applications, collective, plan, takeover
from hopsml.experiment.ending import RecordWriter, status_record
from hopsml.experiment.options import LaunchOptions, RunOptions, convert_options
from hopsml.experiment.predecessor import combination_name
from hopsml.experiment.result import Result
from hopsml.experiment.run import Run
from hopsml.experiment.run_role import NestedRun
from hopsml.experiment.verbs import Verb
from hopsml.storage import filesystem, mailbox, privacy, run_dir, urls
from hopsml.storage.run_dir import RunDir, create_run_dir
from hopsml.tracking import inputs
from hopsml.tracking.mlflow.order import RunGroup
from hopsml.tracking.record import RunRecordWriter

SUMMARY = ".summary.json"
# Names of positional arguments after the function, in the predecessor's newer and older releases.
_ORDERS = (
    ("args_dict", "name", "local_logdir", "description", "metric_key"),
    ("args_dict", "name", "local_logdir", "versioned_resources", "description"),
)
_ONE_WORKER = "each combination runs on one worker; use collective_all_reduce() to train on several"
_OF_GROUPS = {one.name for one in fields(RunOptions)} - {one.name for one in fields(LaunchOptions)}
_ABSENT = {**dict.fromkeys(_OF_GROUPS, _ONE_WORKER), "args": "args_dict contains the values of each parameter"}


_verb = Verb(LaunchOptions, "launch", orders=_ORDERS, absent=_ABSENT)


@_verb
def launch(options: LaunchOptions) -> Result:
    """Run ``train_fn`` on one executor for each combination in ``args_dict``; blocks until all have ended.

    The lists of ``args_dict`` are zipped: ``{"a": [1, 2], "b": [5, 3]}`` runs (1, 5) and (2, 3). Without it the
    function runs once, without arguments.

    Returns ``(logdir, metrics)`` of the run; for several combinations ``(directory of them all, None)``, in which each
    has a folder such as ``a=1&b=5``, with the single results in ``.runs``.

    Raises:
        ArgumentError: (ValueError) for lists of unequal length; otherwise as ``collective_all_reduce``.
    """
    plans = build(options)
    if len(plans) == 1:
        return plan.start(plans[0]).result()
    return _carry_out(plans, dict(options.args_dict or {}))


def build(options: LaunchOptions) -> list[plan.Plan]:
    """Check a call completely and return the plan of each combination's run; nothing is started."""
    plans = [_plan(options, arguments) for arguments in combinations(options.args_dict)]
    group = RunGroup(uuid.uuid4().hex, plans[0].spec.name, len(plans)) if len(plans) > 1 else None
    return [replace(single, siblings=group) for single in plans]


def _plan(options: LaunchOptions, arguments: dict[str, Any]) -> plan.Plan:
    single = collective.build(convert_options(options, RunOptions, args=arguments, num_workers=1), "launch")
    return replace(single, spec=msgspec.structs.replace(single.spec, framework="none"))


def combinations(table: Any) -> list[dict[str, Any]]:
    """Return the combinations of an ``args_dict``: the n-th values of all lists; for None, one without arguments."""
    if table is None:
        return [{}]
    if not isinstance(table, dict):
        raise ArgumentTypeError(f"args_dict={table!r:.80} is a {type(table).__name__}; it must be a dict of lists")
    for name, values in table.items():
        if not isinstance(values, (list, tuple)):
            raise ArgumentTypeError(
                f"args_dict['{name}']={values!r:.80} must be a list: one value for each combination"
            )
    lengths = {name: len(values) for name, values in table.items()}
    if len(set(lengths.values())) > 1:
        raise ArgumentError(
            f"the lists of args_dict have different lengths, {lengths}; their values are combined by position, so "
            "the lengths must be equal"
        )
    count = next(iter(lengths.values()), 1)
    if count == 0:
        raise ArgumentError("the lists of args_dict are empty; each needs a value for each combination")
    return [{name: values[index] for name, values in table.items()} for index in range(count)]


def _carry_out(plans: Sequence[plan.Plan], table: Mapping[str, Any]) -> Result:
    """Run all plans in order, as many at a time as there are slots; the first that fails ends the others.

    Args:
        plans: one plan for each combination.
        table: the arguments of all combinations, as the user gave them.
    """
    application = applications.get_or_start(plans[0].profile, plans[0].spec.keep_warm_s)
    launch_dir, earlier = _create_or_take_over(plans, table, application)
    recording = RunRecordWriter(launch_dir, None).start()
    started_s, error, results, summary = time.time(), None, list[Result](), None
    try:
        placed = [_placed(single, *place, launch_dir, earlier) for single, place in _places(plans)]
        with CancelRequests(launch_dir) as requests:
            results = _all(placed, application, requests)
        summary = [
            {"parameters": argument_as_json(single.arguments), "outputs": as_json(result[1])}
            for single, result in zip(plans, results, strict=True)
        ]
    except BaseException as problem:
        error = problem
        raise
    finally:
        recording.join()
        unrecorded, final = _record(launch_dir, started_s, error, results, summary)
    facts = {"name": plans[0].spec.name, "run_dir": launch_dir.url, "run_id": launch_dir.run_id}
    whole_result = Result(launch_dir.url, None, runs=results, state=Lifecycle.FINISHED, value=None, **facts)
    whole_result.unrecorded = unrecorded
    if isinstance(final, ResultsNotStored):
        whole_result.state, final.result = Lifecycle.FAILED, whole_result
        raise final
    return whole_result


def _record(
    launch_dir: RunDir,
    started_s: float,
    error: BaseException | None,
    results: Sequence[Result],
    summary: Sequence[Mapping[str, Any]] | None,
) -> tuple[dict[str, str], BaseException | None]:
    """Write the launch's last files; return those that could not be written, with reasons, and its error.

    Raises nothing.
    """
    records: dict[str, Callable[[], object]] = {}
    if summary is not None:
        records[SUMMARY] = lambda: launch_dir.write_json(urls.join(launch_dir.url, SUMMARY), {"combinations": summary})
    writer = RecordWriter(launch_dir, lambda text: print(f"hopsml: {text}", flush=True))
    return writer.close(records, lambda final, storing: _status(launch_dir, started_s, final, results), error)


def _create_or_take_over(
    plans: Sequence[plan.Plan], table: Mapping[str, Any], application: applications.Application
) -> tuple[RunDir, str]:
    """Create the launch's directory; return it and the URL of an earlier attempt's directory, "" if there is none."""
    store, resources = settings.project_url(), inputs.resource_urls(plans[0].resources)
    record = plan.launch_record(plans[0], application, len(plans), table)
    earlier = application.earlier_runs.reserve_run_to_continue(store, record)
    record |= {"continues": earlier, "combinations": [name for _, (name, _) in _places(plans)]}
    record |= {"resources": resources} if resources else {}
    launch_dir = create_run_dir(store, application.id, record, share=plans[0].spec.environment.get(privacy.VARIABLE))
    run_dir.announce_run(launch_dir, application.id)
    if earlier:
        takeover.hand_over_run(earlier, launch_dir)
    inputs.copy_resources(resources, launch_dir.url)
    return launch_dir, earlier


def _places(plans: Sequence[plan.Plan]) -> list[tuple[plan.Plan, tuple[str, int]]]:
    """Return each plan with the name of its folder and its number."""
    seen: Counter[str] = Counter()
    places = []
    for number, single in enumerate(plans):
        plain = combination_name(single.arguments, number, 0)
        places.append((single, (combination_name(single.arguments, number, seen[plain]), number)))
        seen[plain] += 1
    return places


def _placed(single: plan.Plan, name: str, number: int, launch_dir: RunDir, earlier: str) -> plan.Plan:
    """Return the plan of one combination in its folder, as continuation of an earlier attempt's, if any."""
    directory = RunDir(urls.join(launch_dir.url, name))
    before = urls.join(earlier, name) if earlier else ""
    name_of_run = f"{launch_dir.run_id}-{number}"
    part = NestedRun(
        "", directory, name_of_run, single.arguments, of=launch_dir.run_id, recorded=True, heeds_requests=True
    )
    if before and not filesystem.exists(RunDir(before).run_json):
        before = ""
    return replace(single, standing=part, continues=before, resources=())  # the whole launch has them


class CancelRequests:
    """Poller of cancellation requests in a launch's directory, on a thread; a request ends all runs under way."""

    def __init__(self, launch_dir: RunDir) -> None:
        self._launch_dir, self._polling = launch_dir, mailbox.Polling.for_url(launch_dir.url)
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._runs: list[Run] = []
        self._reason = ""
        self._thread = threading.Thread(
            target=self._poll_requests, name=f"hopsml-requests-of-{launch_dir.run_id}", daemon=True
        )

    def __enter__(self) -> CancelRequests:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._over.set()
        self._thread.join()

    def add(self, run: Run) -> None:
        """Add a run that has been started; cancel it at once if a request was found already."""
        with self._lock:
            self._runs.append(run)
            reason = self._reason
        if reason:
            run.cancel(reason)

    def _poll_requests(self) -> None:
        while not self._over.wait(self._polling.pause_s):
            if reason := self._polling.poll(lambda: mailbox.read_cancel_request(self._launch_dir)):
                with self._lock:
                    self._reason, runs = reason, list(self._runs)
                for run in runs:
                    run.cancel(reason)
                return


def _all(plans: Sequence[plan.Plan], application: applications.Application, requests: CancelRequests) -> list[Result]:
    capacity = application.backend.capacity()
    width = capacity.limit or capacity.preferred
    running: list[Run] = []
    results: list[Result] = []
    try:
        for index, single in enumerate(plans):
            if index >= width:
                results.append(running[index - width].result())
            running.append(_begin(single))
            requests.add(running[-1])
        return results + [run.result() for run in running[len(results) :]]
    except BaseException:
        for run in running:
            run.cancel("another combination of the same launch failed or was interrupted")
        for run in running:
            run.exception()
        raise


def _begin(single: plan.Plan) -> Run:
    assert isinstance(single.standing, NestedRun)
    directory = single.standing.place
    directory.write_json(directory.hparams_json, argument_as_json(single.arguments))
    return plan.start(single)


def _status(
    launch_dir: RunDir, started_s: float, error: BaseException | None, results: Sequence[Result]
) -> dict[str, Any]:
    return status_record(
        launch_dir.run_id,
        states.final_state(error),
        started_s,
        "" if error is None else str(error) or type(error).__name__,
        raised=isinstance(error, WorkerFailed) and bool(error.remote_traceback),  # by the user's own code
        workers=as_json([worker for result in results for worker in result.workers]),
    )
