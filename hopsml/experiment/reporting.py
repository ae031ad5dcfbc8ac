"""Reports of runs to other systems, by the driver, without delaying runs: MLflow, and traces of a run's launch."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from hopsml.cluster.driver.run_state import Change
from hopsml.cluster.gang.events import Phase
from hopsml.cluster.shared.spec import FIRST_EVALUATION, RunSpec
from hopsml.core import settings, tracing
from hopsml.core.callbacks import mark_immediate, nonblocking_logger
from hopsml.core.states import Lifecycle
from hopsml.experiment.run import Run
from hopsml.search.metric import name_of
from hopsml.storage import filesystem
from hopsml.storage.run_dir import RunDir
from hopsml.tracking.mlflow import entries
from hopsml.tracking.mlflow.link import LINK, TrackedRun
from hopsml.tracking.mlflow.order import Order, RunGroup, run_key
from hopsml.training import prepare

EXECUTORS, RENDEZVOUS, FIRST_STEP = "executors", "rendezvous", "first step"


class LaunchPart(NamedTuple):
    """Part of a launch, in seconds since 1970; ``problem``: why it was not completed."""

    name: str
    begin_s: float
    end_s: float
    problem: str = ""


def launch_parts(began_s: float, reached: dict[str, float], ended_s: float, problem: str = "") -> Iterator[LaunchPart]:
    """Yield the parts of a launch.

    Args:
        began_s: start of the launch, in seconds since 1970, as all times here.
        reached: end of each completed part, by name.
        ended_s: end of the run: it ends the first part that was not completed.
        problem: error that ended the run; without it, only completed parts are returned.
    """
    begin_s = began_s
    for name in (EXECUTORS, RENDEZVOUS, FIRST_STEP):
        if name not in reached:
            if problem:
                yield LaunchPart(name, begin_s, ended_s, problem)
            return
        yield LaunchPart(name, begin_s, reached[name])
        begin_s = reached[name]


def begin_trace(run_id: str, workers: int) -> LaunchTrace | None:
    """Return the trace of a run that is about to be launched; None if tracing is off."""
    return LaunchTrace(run_id, workers) if tracing.is_on() else None


class LaunchTrace:
    """Observer that traces the launch of one run; its ``context`` is the parent of the workers' spans."""

    def __init__(self, run_id: str, workers: int) -> None:
        self._run_id, self._workers, self._parent = run_id, workers, tracing.inherited_context()
        self.context = tracing.child_context(self._parent)
        self._began_s, self._reached = time.time(), dict[str, float]()

    def spec_with_trace(self, spec: RunSpec) -> RunSpec:
        """Return the specification for workers, with this trace as parent of their spans, and a hook that ends it."""
        variables = {**spec.environment, **tracing.variables(self.context)}
        return msgspec.structs.replace(spec, environment=variables, hooks=(*spec.hooks, prepare.TRACE_HOOK))

    @mark_immediate
    def on_change(self, change: Change) -> None:
        """Record the end of a part; at the run's end, send all spans. Called on the coordinator's thread."""
        if change.kind == "phase":
            part = {Phase.FORMING.value: EXECUTORS, Phase.RUNNING.value: RENDEZVOUS}.get(change.text)
            if part is not None:
                self._reached.setdefault(part, time.time())
        elif change.kind in ("report", "progress"):
            self._reached.setdefault(FIRST_STEP, time.time())
        elif change.kind == "closed":
            self._send("" if change.error is None else f"{type(change.error).__name__}: {change.error}")

    def _send(self, problem: str) -> None:
        ended_s = time.time()
        for stage in launch_parts(self._began_s, self._reached, ended_s, problem):
            tracing.record_span(
                stage.name, tracing.child_context(self.context), self.context, *stage[1:], run=self._run_id
            )
        facts: dict[str, str | int] = {"run": self._run_id, "workers": self._workers}
        tracing.record_span("run", self.context, self._parent, self._began_s, ended_s, problem, **facts)


logger = nonblocking_logger(__name__)


def track_in_mlflow(
    run: Run,
    record: Mapping[str, Any],
    profile_environment: Mapping[str, str],
    *,
    register_as: str | None,
    group: RunGroup | None,
) -> None:
    """Track the run in MLflow from now on; called on the user's thread, as MLflow's active run is per thread."""
    uri = settings.mlflow_tracking_uri(profile_environment)
    if not uri:
        if register_as:
            _note(run, f"register_as={register_as!r} has no effect, since MLflow is not used; set MLFLOW_TRACKING_URI")
        return
    try:
        order = _order_of(uri, run.run_id, record, register_as=register_as, group=group)
        followed = LINK.track_run(order, run.directory, record, lambda text: _note(run, text))
        run.observe(mark_immediate(lambda change: _pass_on(followed, change)))
        # Workers may have reported before the run was observed. An evaluator's few reports are read from its folder in
        # any case: the last one can be missed if the evaluator ends right after it.
        followed.lost = bool(run.state.members) or bool((record.get("spec") or {}).get("evaluation"))
        run.add_done_callback(lambda future: followed.report_directory_complete())
    except Exception as error:  # noqa: BLE001 a record of a run must not fail it
        _note(run, f"this run is not sent to MLflow: {type(error).__name__}: {error}")


class TrialTracker:
    """Trials of a search, each tracked as an MLflow run below the search's."""

    def __init__(self, search: RunDir, order: Order, record: Mapping[str, Any], metric: str) -> None:
        self._search, self._order, self._record, self._metric = search, order, record, name_of(metric)

    @classmethod
    def of_search(
        cls, search: RunDir, profile_environment: Mapping[str, str], name: str, metric: str
    ) -> TrialTracker | None:
        """Return the tracker of a search's trials, None if MLflow is not used; called on the user's thread."""
        uri = settings.mlflow_tracking_uri(profile_environment)
        if not uri:
            return None
        record, group = search.read_run(), group_of(search.url, name)
        return cls(search, _order_of(uri, search.run_id, record, register_as=None, group=group), record, metric)

    def publish(self, row: Mapping[str, Any], directory: RunDir, curve: Sequence[tuple[int, float]]) -> None:
        """Send a trial that has ended to MLflow, and write its entries into its folder, for sending them later.

        It may wait for storage; raises nothing.

        Args:
            row: the trial's row of the search's table.
            directory: folder of the trial.
            curve: step and value of its reports.
        """
        ended, title = time.time(), f"trial {row['number']}"
        record = {
            **self._record,
            "verb": "trial",
            "name": title,
            "arguments": dict(row["config"]),
            "started": ended - float(row["seconds"]),
            "search": self._search.url,
        }
        state = Lifecycle.FAILED if row["state"] == "failed" else Lifecycle.FINISHED
        status = {"run_id": directory.run_id, "state": state, "ended": ended, "error": row["error"] or ""}
        reports = [{"time": ended, "step": step, self._metric: value} for step, value in curve]
        try:
            directory.write_run(record)
            lines = "".join(json.dumps(report) + "\n" for report in reports)
            filesystem.for_url(directory.metrics).write_bytes(directory.metrics, lines.encode())
            directory.write_status(status)
            order = replace(self._order, run_name=title)
            followed = LINK.track_run(order, directory, record, lambda text: logger.warning("%s: %s", title, text))
            followed.send_rows(entries.report_rows(reports))
            followed.report_directory_complete()
        except Exception:  # a record of a trial must not fail it
            logger.warning("%s is not sent to MLflow", title, exc_info=True)


def group_of(run_url: str, name: str) -> RunGroup:
    """Return the MLflow group of a search's trials: below the search's own run, which has the same key."""
    return RunGroup(run_key(run_url), name, 0, ends_itself=True)


def _order_of(
    uri: str, run_id: str, record: Mapping[str, Any], *, register_as: str | None, group: RunGroup | None
) -> Order:
    """Return experiment and parent of the run in MLflow, from MLflow's variables, else from the project's name."""
    name = str(record.get("name") or "")
    evaluation = (record.get("spec") or {}).get("evaluation") or {}
    evaluated = str(evaluation.get("name") or "")
    experiment_id = os.environ.get("MLFLOW_EXPERIMENT_ID", "")
    named = os.environ.get("MLFLOW_EXPERIMENT_NAME", "")
    return Order(
        tracking_uri=uri,
        experiment=named or settings.project_name(),
        experiment_id="" if named else experiment_id,
        run_name=run_id if name in ("", "no-name") else f"{name} {run_id}",
        parent_run_id=_active_run_id(),
        register_as=register_as or "",
        group=group,
        evaluates=str(evaluation.get("run") or ""),
        evaluates_as="" if evaluated == FIRST_EVALUATION else evaluated,
    )


def _active_run_id() -> str:
    """Return the user's active MLflow run on this thread, "" without one; does not import MLflow."""
    module = sys.modules.get("mlflow")
    active = module.active_run() if module is not None else None
    return str(active.info.run_id) if active is not None else os.environ.get("MLFLOW_RUN_ID", "")


def _pass_on(followed: TrackedRun, change: Change) -> None:
    """Queue the values of a change; called on the coordinator's thread, takes microseconds."""
    if change.kind == "report" and change.rank == 0:
        followed.send_rows(entries.metric_rows(change.metrics, change.time, change.step))
    elif change.kind == "system":
        values = {entries.system_name(change.rank, key): value for key, value in change.metrics.items()}
        followed.send_rows(entries.metric_rows(values, change.time, change.step))


def _note(run: Run, text: str) -> None:
    logger.warning("run %s: %s", run.run_id, text)
    run.state.publish(Change("note", text=text))
