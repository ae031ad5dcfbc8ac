"""Executor of trials that are distributed trainings: each is a run in its own folder of the search."""

from __future__ import annotations

import contextlib
import json
import queue
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from hopsml.cluster.driver.run_state import Change
from hopsml.cluster.gang.events import Phase
from hopsml.cluster.shared.plain import as_json
from hopsml.cluster.shared.spec import AnyGroup, ElasticGroup, FixedGroup
from hopsml.core import redact
from hopsml.core.callbacks import mark_immediate, nonblocking_logger
from hopsml.core.variables import SETTINGS
from hopsml.errors import ArgumentError, HopsmlError, RunCancelled, WorkerFailed
from hopsml.experiment import plan as plans
from hopsml.experiment.run import Run
from hopsml.experiment.run_role import NestedRun
from hopsml.experiment.searches.executors import ExecutorEvent, RunOver
from hopsml.search.dispatch.events import (
    AssignToLane,
    AttemptBegan,
    AttemptEnded,
    Event,
    FormGroup,
    OtherValuesReported,
    RequestTrialEnd,
    ResizeGroup,
    SlotsChanged,
    ValuesReported,
)
from hopsml.search.metric import epoch_metrics, finite_or_none, name_of
from hopsml.storage import filesystem, urls
from hopsml.storage.run_dir import RunDir
from hopsml.training.trials import trial
from hopsml.training.trials.trial_reports import as_number, score_of

log = nonblocking_logger("hopsml.search")


@dataclass
class _Group:
    """One attempt of a trial that is under way."""

    form: FormGroup
    run: Run
    started_s: float  # seconds since 1970
    requested_end: str = ""  # stop | pause
    kill_at: float = float("inf")
    history: list[tuple[int, float]] = field(default_factory=list)


class GroupExecutor:
    """Executor of trials of several workers, each as a separate run; an ``ActionExecutor``."""

    def __init__(
        self,
        run: Run,
        complete: Callable[[Any], None],
        plan: plans.Plan,
        name_of: Callable[[int], str],
        metric: str,
        slots: int | None,
    ) -> None:
        """Create it for a search that has begun.

        Args:
            run: the search's run, which holds no executor.
            complete: ends that run with a value.
            plan: plan of each trial's run, without the trial's own settings.
            name_of: returns the name of a trial's folder, by its number.
            metric: the searched metric.
            slots: number of slots of the cluster; None if it can grow.
        """
        self.run, self._complete, self._plan = run, complete, plan
        assert isinstance(plan.standing, NestedRun)
        self._folder_of_all = plan.standing.folder
        self._name_of, self._metric, self._slots = name_of, metric, slots
        self._groups: dict[int, _Group] = {}
        self._came: queue.SimpleQueue[ExecutorEvent] = queue.SimpleQueue()
        self._reported_slots = -1
        self._allowed: int | None = None  # number of slots granted to the search, however many it requests
        run.observe(self._on_change)
        self.request_slots(slots if slots is not None else 1)

    @mark_immediate
    def _on_change(self, change: Change) -> None:
        if change.kind == "end":
            self._came.put(ExecutorEvent(RunOver(self.run.state.error)))
        elif change.kind == "slots":
            self._allowed = change.total
            self._came.put(
                ExecutorEvent(SlotsChanged(change.total if self._slots is None else min(self._slots, change.total)))
            )

    # ------------------------------------------------------------------------------------------ events

    def post(self, event: Event) -> None:
        """Queue an event for ``get``; for any thread."""
        self._came.put(ExecutorEvent(event))

    def get(self, timeout_s: float | None) -> ExecutorEvent | None:
        """Return the next event, as ``ActionExecutor.get``; until then, cancel trials that have not ended in time."""
        deadline = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        while True:
            until = min([deadline, *(group.kill_at for group in self._groups.values())])
            left = max(0.0, until - time.monotonic())
            try:
                news = (
                    self._came.get(timeout=left if left < float("inf") else None) if left else self._came.get_nowait()
                )
            except queue.Empty:
                if time.monotonic() >= deadline:
                    return None
                self._kill_late()
                continue
            if isinstance(news.event, AttemptEnded) and self._is_current(news.event.number, news.event.attempt):
                del self._groups[news.event.number]
            return news

    def _is_current(self, number: int, attempt: int) -> bool:
        group = self._groups.get(number)
        return group is not None and group.form.attempt == attempt

    def _kill_late(self) -> None:
        for group in self._groups.values():
            if time.monotonic() >= group.kill_at:
                group.kill_at = float("inf")
                group.run.cancel(f"it did not end in time after the request to {group.requested_end}")

    def request_slots(self, count: int) -> None:
        """Report a higher number of slots to the dispatch; the trials' groups request the slots themselves."""
        slots = count if self._slots is None else self._slots
        if self._allowed is None and slots > self._reported_slots:
            self._reported_slots = slots
            self.post(SlotsChanged(slots))

    # ------------------------------------------------------------------------------------------ actions

    def start_trial(self, action: AssignToLane | FormGroup) -> str:
        """Start the group of a trial; an error in doing so is the trial's error."""
        assert isinstance(action, FormGroup)
        try:
            self._begin(action)
        except (HopsmlError, OSError) as error:
            log.warning("trial %d cannot be started", action.number, exc_info=True)
            self.post(
                AttemptEnded(
                    action.number, action.attempt, "failed", error=redact.text(f"{type(error).__name__}: {error}")
                )
            )
        return f"{action.size} workers"

    def _begin(self, form: FormGroup) -> None:
        name = self._name_of(form.number)
        folder = self._folder(form.number)
        write_json(urls.join(folder, ".hparams.json"), form.config)
        run, _ = plans.start_with_application(self._plan_of(form, name, folder))
        group = self._groups[form.number] = _Group(form, run, time.time())
        run.observe(mark_immediate(lambda change: self._on_trial(group, change)))
        run.on_message(lambda rank, value: self._on_message(group, value))
        run.add_done_callback(lambda future: self._over(group))

    def _folder(self, number: int) -> str:
        return urls.join(self.run.run_dir, self._folder_of_all, self._name_of(number))

    def _plan_of(self, form: FormGroup, name: str, folder: str) -> plans.Plan:
        assert self._plan.captured is not None
        spec = self._plan.spec
        run_id = f"{self.run.run_id}-{form.number}-{form.attempt}"
        start_s, drain_s = spec.group.start_timeout_s, SETTINGS.drain_s
        group: AnyGroup = FixedGroup(size=form.size, start_timeout_s=start_s)
        if form.minimum < form.most:
            group = ElasticGroup(
                size=form.most,
                min_size=form.minimum,
                first_target=form.size,  # until the dispatch grants more, other trials have the slots
                start_timeout_s=start_s,
                drain_s=drain_s,
            )
        return replace(
            self._plan,
            spec=msgspec.structs.replace(
                spec,
                group=group,
                preload=spec.preload or plans.modules_of(spec, self._plan.captured.preload),
                resume=None if form.resume_from is None else self._folder(form.resume_from),
            ),
            function=trial.run_group_trial,
            arguments={
                "payload": self._plan.captured.payload_with_secrets,
                "config": form.config,
                "number": form.number,
                "trial_id": name,
                "attempt": form.attempt,
                "metric": self._metric,
                "done_step": form.done_step,
            },
            captured=None,
            standing=NestedRun(self._folder_of_all, RunDir(folder), run_id, form.config),
        )

    def end_trial(self, action: RequestTrialEnd) -> None:
        """Send the request to the chief; the group is cancelled if it has not ended after the action's patience."""
        if not self._is_current(action.number, action.attempt):
            return
        group = self._groups[action.number]
        group.requested_end = "stop" if action.how == "withdraw" else action.how
        if action.how == "withdraw":
            group.run.cancel("it is no longer needed")
            return
        if action.patience_s > 0:
            group.kill_at = time.monotonic() + action.patience_s
        group.run.send(trial.EndAtNextReport(action.how), rank=0)

    def continue_trial(self, news: ExecutorEvent) -> None:
        """Do nothing: reports of distributed trials do not wait."""

    def resize_trial(self, action: ResizeGroup) -> None:
        """Set a trial's number of workers to a larger one, if its group is elastic."""
        group = self._groups.get(action.number)
        if group is not None:
            try:
                group.run.resize(action.size)
            except ArgumentError as error:
                log.info("trial %d keeps its size: %s", action.number, error)

    def close(self, value: Any) -> None:
        """Cancel all trials, and end the search's run as FINISHED with this value."""
        for group in list(self._groups.values()):
            group.run.cancel("the search has ended")
        self._complete(value)

    # ------------------------------------------------------------------------------------------ one trial

    def _on_trial(self, group: _Group, change: Change) -> None:
        """Queue events for changes of a trial's run; called on the coordinator's thread."""
        form = group.form
        if change.kind == "phase" and change.text == Phase.RUNNING.value:
            self._came.put(ExecutorEvent(AttemptBegan(form.number, form.attempt)))
        elif change.kind == "report" and change.rank == 0 and change.step is not None:
            name = name_of(self._metric, epoch_metrics(change.metrics))
            if name in change.metrics and change.step > form.done_step:
                value = as_number(change.metrics[name])
                if value is not None:
                    group.history.append((change.step, value))
                self._came.put(
                    ExecutorEvent(ValuesReported(form.number, form.attempt, change.step, finite_or_none(value)))
                )
            elif name not in change.metrics:
                names = tuple(change.metrics)
                self._came.put(ExecutorEvent(OtherValuesReported(form.number, form.attempt, change.step, names)))

    def _on_message(self, group: _Group, value: Any) -> None:
        if isinstance(value, trial.EndedAsRequested):
            group.requested_end = value.how
            group.run.cancel(f"the search has requested it to {value.how}")

    def _over(self, group: _Group) -> None:
        """Queue the end of a trial whose run has ended; called on that run's thread, with complete files."""
        form, error = group.form, group.run.exception()
        how, text, value, outputs = "finished", "", None, None
        if error is None:
            result = group.run.result()
            outputs = redact.record(as_json(result.value))
            with contextlib.suppress(ArgumentError):  # the dispatch fails the trial, unless it has reported a value
                value = score_of(result.value, self._metric)
        elif group.requested_end and isinstance(error, RunCancelled):
            how = "paused" if group.requested_end == "pause" else "stopped"
        else:
            how = "failed" if isinstance(error, WorkerFailed) and error.remote_traceback else "died"
            text = getattr(error, "cause", "") or str(error).partition("\n")[0]
        text = redact.text(text)
        self._record(group, how, value, text)
        seconds = time.time() - group.started_s
        self._came.put(ExecutorEvent(AttemptEnded(form.number, form.attempt, how, value, outputs, text, seconds)))

    def _record(self, group: _Group, how: str, value: float | None, error: str) -> None:
        """Write the trial's files under the predecessor's and Maggy's names."""
        form, folder, history = group.form, self._folder(group.form.number), group.history
        try:
            if value is not None:
                url = urls.join(folder, ".metric")
                filesystem.for_url(url).write_bytes(url, str(value).encode())
            record = {
                "trial_id": self._name_of(form.number),
                "number": form.number,
                "attempt": form.attempt,
                "params": form.config,
                "status": "FINALIZED" if how == "finished" else how.upper(),
                "early_stop": how == "stopped",
                "final_metric": value if value is not None else history[-1][1] if history else None,
                "metric_history": [one for _, one in history],
                "step_history": [step for step, _ in history],
                "start": group.started_s,
                "duration": round(1000 * (time.time() - group.started_s)),  # ms, as Maggy has it
                "error": error,
            }
            write_json(urls.join(folder, "trial.json"), record)
        except HopsmlError:
            log.warning("the record of trial %d cannot be written", form.number, exc_info=True)


def write_json(url: str, record: dict[str, Any]) -> None:
    """Write a JSON file without secrets, atomically; NaN stays NaN."""
    text = json.dumps(redact.record(as_json(record)), ensure_ascii=False) + "\n"
    filesystem.for_url(url).write_bytes(url, text.encode(errors="replace"))
