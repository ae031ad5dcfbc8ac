"""Start of a search from a checked call: the run with its trial slots (lanes), the event log, the session."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import cloudpickle
import msgspec

from hopsml.cluster.driver import capture, secret_extraction
from hopsml.cluster.driver.backends.base import Capacity
from hopsml.cluster.driver.run_state import Change
from hopsml.cluster.shared.plain import as_json
from hopsml.cluster.shared.spec import AS_MANY_AS_THERE_ARE
from hopsml.core import redact
from hopsml.core.callbacks import mark_immediate
from hopsml.errors import ArgumentError
from hopsml.experiment import frame_feed, progress, reporting
from hopsml.experiment import plan as plans
from hopsml.experiment.applications import Application
from hopsml.experiment.run import Run
from hopsml.experiment.run_role import NestedRun, SearchHost
from hopsml.experiment.searches import recorded
from hopsml.experiment.searches.call import VERSION, SearchCall, TrialNames, maggy_id
from hopsml.experiment.searches.executors import ActionExecutor, LaneExecutor, Lanes
from hopsml.experiment.searches.groups import GroupExecutor
from hopsml.experiment.searches.handle import SUMMARY, SearchRun, SearchSession
from hopsml.experiment.searches.recorded import Learned, SearchWriter
from hopsml.experiment.searches.result import search_summary
from hopsml.experiment.searches.state import SearchState
from hopsml.search.dispatch.dispatch import Dispatch
from hopsml.search.dispatch.spec import SearchSpec
from hopsml.search.space.parameter import Parameter
from hopsml.storage import filesystem, segments, urls
from hopsml.storage.run_dir import RunDir, to_json

log = logging.getLogger("hopsml.search")


@dataclass(frozen=True)
class EarlierSearch:
    """A search of an earlier session: its directory, the lines of its event log, and further trials and deadline."""

    directory: RunDir
    lines: Sequence[str]
    extra_trials: int = 0
    deadline_s: float | None = None


def start_search(call: SearchCall, known: Sequence[Learned] = (), earlier: EarlierSearch | None = None) -> SearchRun:
    """Start a search, or continue an earlier one, and return its handle; raises before anything is started.

    Args:
        call: the checked call.
        known: trials of other searches, from which the searcher learns first.
        earlier: the search to continue, if any.
    """
    shipped = _recordable(call)
    watch = progress.search_observer_adder() if call.progress else None
    plan = _plan(call, shipped, earlier)
    run, application = plans.start_with_application(plan)
    try:
        return _begin_on(call, plan, run, application, shipped, known, earlier, watch)
    except BaseException as error:  # no caller will have the handle
        run.fail(error)
        run.cancel(f"the search could not be started: {error}")
        raise


def _recordable(call: SearchCall) -> bytes:
    """Return the pickled call for the record, without function and arguments, which are recorded separately.

    Raises:
        ArgumentError: The search space, searcher or stopper contains a secret.
    """
    run = msgspec.structs.replace(call.run, environment={}, description=redact.text(call.run.description))
    bare = replace(call, run=run, function=None, args={}, warm_start=None, captured=None, frames={})
    shipped = bytes(cloudpickle.dumps(bare))
    held = [one.name for one in capture.capture(_nothing, {"call": bare}).secrets]
    held += [name for name, one in call.space.parameters.items() if redact.names_a_secret(name) and _has_text(one)]
    if held or (held := secret_extraction.secrets_left_in(shipped, redact.known_secrets())):
        raise ArgumentError(
            f"the space, the searcher or the stopper contains a secret ({', '.join(held)}), and these are recorded; "
            "pass the secret in args=, which are recorded without secrets"
        )
    return shipped


def _nothing(call: SearchCall) -> None:
    """Stand in for a function, in whose arguments ``capture`` searches for secrets."""


def _has_text(parameter: Parameter) -> bool:
    return any(isinstance(value, str) for value in getattr(parameter, "values", ()))


def _begin_on(
    call: SearchCall,
    plan: plans.Plan,
    run: Run,
    application: Application,
    shipped: bytes,
    known: Sequence[Learned],
    earlier: EarlierSearch | None,
    watch: Callable[[SearchState], None] | None,
) -> SearchRun:
    directory = run.directory
    if earlier is None:
        url = urls.join(directory.code, recorded.PICKLE)
        filesystem.for_url(url).write_bytes(url, shipped)
    else:
        filesystem.for_url(directory.status_json).delete(directory.status_json)
    state = SearchState(run.run_id, call.run.name, run.run_dir, call.direction, call.metric)
    run.observe(mark_immediate(lambda change: _on_change(state, change, call.size_of is None)))
    spec = _spec(call, application.backend.capacity(), earlier)
    dispatch, names = _dispatch(call, spec, known, earlier)
    journal, _ = segments.register_writer(
        urls.join(directory.url, recorded.JOURNAL), recorded.opening_lines(known, call.space)
    )
    if earlier is not None:
        recorded.complete_finished_trials(dispatch, names, urls.join(directory.url, call.folder))
        if earlier.extra_trials:
            dispatch.ask_tell.extend(earlier.extra_trials)
    executor = _executor(call, run, application, names, plan, spec.max_lanes)
    session = SearchSession(dispatch, executor, SearchWriter(journal, state.note), state, names, files={})
    session.files |= _files(session, directory, call)
    state.best = session.best()
    finish = (lambda rows: None) if call.finish is None else partial(call.finish, directory)
    search = SearchRun(session, directory, call.space, folder=call.folder, finish=finish)
    if call.size_of is None:
        _follow_trials(call, session, directory, application)
    application.runs.add(search)
    if spec.deadline_s is not None:
        state.deadline_at = state.began + spec.deadline_s
    if watch is not None:
        watch(state)
    for text in [*call.notes, *_nothing_left(dispatch), *run.state.notes]:
        state.note(text)
    return search.open()


def _nothing_left(dispatch: Dispatch) -> list[str]:
    """Return a note for a continued search that is complete already."""
    if not dispatch.is_complete:
        return []
    return [f"all {len(dispatch.ledger)} trials have ended, so there is nothing to do; pass a larger num_trials="]


def _dispatch(
    call: SearchCall, spec: SearchSpec, known: Sequence[Learned], earlier: EarlierSearch | None
) -> tuple[Dispatch, TrialNames]:
    """Return the state of the search and the trials' names, from its event log for an earlier search."""
    if earlier is not None:
        return recorded.replay(call, spec, list(earlier.lines))
    for config, outcome in known:
        call.searcher.learn(config, outcome)
    dispatch = Dispatch(spec, call.searcher, call.stopper)
    return dispatch, TrialNames(lambda number: dispatch.ledger.trials[number].config, call.name_of or maggy_id)


def _executor(
    call: SearchCall, run: Run, application: Application, names: TrialNames, plan: plans.Plan, slots: int | None
) -> ActionExecutor:
    if call.size_of is not None:
        captured = call.captured or capture.capture(cast("Callable[..., Any]", call.function), call.args)
        for text in _other_frameworks(call, captured.preload):
            run.state.publish(Change("note", text=text))
        member = replace(
            plan,
            spec=msgspec.structs.replace(plan.spec, framework=call.framework),
            standing=NestedRun(call.folder),
            captured=captured,
            siblings=reporting.group_of(run.run_dir, call.run.name),
        )
        complete = partial(application.coordinator.complete, run.run_id, "complete")
        return GroupExecutor(
            run,
            lambda value: complete(bytes(cloudpickle.dumps(value))),
            member,
            names.assigned_name,
            call.metric,
            slots,
        )
    lanes = Lanes(run, application.coordinator, keeps=bool(call.frames))
    return LaneExecutor(lanes, names.assigned_name, call.metric, judged=call.stopper is not None)


def _other_frameworks(call: SearchCall, imported: Sequence[str]) -> list[str]:
    """Return notes about a function that imports only frameworks for which its trials form no group."""
    if call.framework != "tensorflow" or "tensorflow" in imported:
        return []
    return [
        f"the function imports {name}, for which workers of a trial form no group: each worker trains separately "
        f'unless the function forms a group; pass framework="{name}" to form it'
        for name in ("torch", "jax")
        if name in imported
    ]


def _follow_trials(call: SearchCall, session: SearchSession, directory: RunDir, application: Application) -> None:
    """Track each trial as an MLflow run below the search's; distributed trials are runs, and tracked anyway."""
    trials = reporting.TrialTracker.of_search(directory, application.environment, call.run.name, call.metric)
    if trials is None:
        return
    publish = trials.publish

    @mark_immediate
    def settled(kind: str, row: dict[str, Any]) -> None:
        if kind == "settled":
            curve = list(session.state.curves.get(row["number"], ()))
            folder = RunDir(urls.join(directory.url, call.folder, row["trial_id"]))
            session.writer.queue_task(partial(publish, row, folder, curve))

    session.state.observe(settled)


def _spec(call: SearchCall, capacity: Capacity, earlier: EarlierSearch | None) -> SearchSpec:
    beside = frame_feed.max_workers(capacity) if call.frames else None
    limits = [limit for limit in (call.max_executors, capacity.limit, beside) if limit is not None]
    return SearchSpec(
        num_trials=call.num_trials,
        direction=call.direction,
        metric=call.metric,
        size_of=call.size_of,
        isolated=call.isolated,
        retries=call.retries,
        deadline_s=call.deadline_s if earlier is None else earlier.deadline_s,
        budget_executor_s=call.budget_executor_s,
        patience_s=call.patience_s,
        max_lanes=min(limits, default=None),
        promoted_workers=call.promoted_workers,
    )


def _plan(call: SearchCall, shipped: bytes, earlier: EarlierSearch | None) -> plans.Plan:
    """Return the plan of the run that holds the executors."""
    directory = None if earlier is None else earlier.directory
    wishes = [count for count in (call.max_executors, call.num_trials) if count is not None]
    size = min(wishes) if call.max_executors is not None else AS_MANY_AS_THERE_ARE
    group = msgspec.structs.replace(call.run.group, size=size if call.size_of is None else 0)
    facts = {"search": _facts(call, shipped)}
    return plans.Plan(
        spec=msgspec.structs.replace(call.run, group=group),
        function=call.function,
        arguments=call.args,
        profile=call.profile,
        progress=False,
        captured=call.captured,
        frames=call.frames,
        resources=call.resources,
        rerun_of=directory,
        standing=SearchHost(log_to_lane=call.echo, trials=call.folder, continued=directory, about=facts),
    )


def _facts(call: SearchCall, shipped: bytes) -> dict[str, Any]:
    """Return the description of the search in ``run.json``; objects are in ``code/search.pickle``."""
    return {
        "version": VERSION,
        "space": as_json(call.space.to_dict()),
        "searcher": call.searcher_name,
        "stopper": call.stopper_name,
        "num_trials": call.num_trials,
        "total": min((count for count in (call.num_trials, call.searcher.total) if count is not None), default=None),
        "folder": call.folder,
        "direction": call.direction,
        "metric": call.metric,
        "distributed": call.size_of is not None,
        "framework": call.framework if call.size_of is not None else "none",
        "deadline_s": call.deadline_s,
        "budget_executor_s": call.budget_executor_s,
        "retries": call.retries,
        "isolated": call.isolated,
        "pickle_sha256": hashlib.sha256(shipped).hexdigest(),
        **call.facts,
    }


def _files(session: SearchSession, directory: RunDir, call: SearchCall) -> dict[str, Callable[[], bytes]]:
    """Return the files that show the progress of the search: functions of their content, by URL."""
    files: dict[str, Callable[[], bytes]] = {directory.best_json: lambda: to_json(as_json(session.state.best or {}))}
    if call.with_summary:
        files[urls.join(directory.url, SUMMARY)] = lambda: to_json(search_summary(session.rows(), call.metric))
    return files


def _on_change(state: SearchState, change: Change, has_lanes: bool) -> None:
    """Pass the coordinator's changes on executors to the search's state."""
    if change.kind == "phase" and has_lanes:
        state.phase(change.text)
    elif change.kind == "note":
        state.note(change.text)
