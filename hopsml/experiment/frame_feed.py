"""Feed of Spark DataFrames, ``data={"clicks": df}``, to the agents of a run, on a thread of the driver.

``training/data/frame_log.py`` makes all decisions; this module applies them. Spark computes the partitions on the
agents' executors, and its tasks send the rows to the agents' stages: no row passes through the driver.
"""

from __future__ import annotations

import concurrent.futures
import functools
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from hopsml.cluster.driver.active_run import RunRequest, SidecarReport
from hopsml.cluster.driver.backends.base import Capacity
from hopsml.cluster.driver.run_state import Change, RunState
from hopsml.cluster.gang.events import Phase
from hopsml.cluster.shared.spec import IndependentGroup
from hopsml.core.callbacks import nonblocking_logger
from hopsml.errors import ArgumentError, ArgumentTypeError, NotEnoughSlots
from hopsml.experiment.applications import Application
from hopsml.submission import spark_connect
from hopsml.training.data import push
from hopsml.training.data.dataset import Dataset
from hopsml.training.data.frame_log import (
    Action,
    EndRun,
    FrameTable,
    FrameTransfer,
    PublishTable,
    StageAddress,
    StagedPartition,
    StartPushJob,
    decode_address,
    describe_table,
    transfer_error_message,
)
from hopsml.training.data.push import JvmPush, PythonPush
from hopsml.training.data.staged_rows import StageClient, StagedRows

log = nonblocking_logger("hopsml.data")

SIDECAR = "hopsml.training.data.stage:serve"
_TICK_S = 0.25
_NO_TASK_S = 30.0  # without a task of the feed: no slot is free in addition to the agents'
_HEARTBEATS = 3  # of executors, in that time at least: Spark's status may be as old as one of them
_TOLD_AT_ONCE = 16
_STUCK_S = 60.0  # after the loss of a stage, for tasks that may wait for it


def datasets(data: Mapping[str, Any] | None, verb: str) -> dict[str, Dataset]:
    """Return the datasets that the function receives for its DataFrames, by argument.

    Raises:
        ArgumentTypeError: A value is not a DataFrame.
        ArgumentError: A DataFrame cannot be converted to batches.
    """
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise ArgumentTypeError(
            f"{verb}(): data={data!r:.80} is a {type(data).__name__}; it must be a dict of DataFrames by the names of the "
            "function's arguments: data={'clicks': df}"
        )
    for name, frame in data.items():
        spark_connect.check_frame(frame, f"data={{{name!r}: ...}}")
        if not hasattr(frame, "mapInArrow"):
            is_pandas = type(frame).__module__.partition(".")[0] == "pandas"
            kind = f"pandas {type(frame).__name__}" if is_pandas else type(frame).__name__
            convert = (
                "Convert it by spark.createDataFrame(...), or pass it in args= if it is small. " if is_pandas else ""
            )
            raise ArgumentTypeError(
                f"{verb}(): data={{{name!r}: ...}} is a {kind}; it must be a Spark DataFrame. {convert}Read "
                "files without Spark by hopsml.data.parquet(url) in the function, and pass small data in args="
            )
        if problem := push.unsupported_rows_reason(frame.schema.jsonValue()["fields"], frame.isStreaming):
            raise ArgumentError(f"{verb}(): the DataFrame of data={{{name!r}: ...}} {problem}")
    return {name: Dataset(StagedRows(name)) for name in data}


def with_rows(args: Mapping[str, Any] | None, rows: Mapping[str, Any], verb: str) -> Mapping[str, Any] | None:
    """Return the function's arguments with the datasets; raises ArgumentTypeError for a name that is in both."""
    if not rows or (args is not None and not isinstance(args, Mapping)):
        return args
    if both := sorted(set(rows) & set(args or {})):
        raise ArgumentTypeError(f"{verb}(): {', '.join(both)} is in args= and in data=; remove it from one of them")
    return {**(args or {}), **rows}


def max_workers(capacity: Capacity) -> int | None:
    """Return the number of workers that leaves Spark one slot to compute the rows; None if the cluster can grow."""
    slots = capacity.limit if capacity.together is None else capacity.together
    return None if slots is None else slots - 1


def check_feed(names: Collection[str], frames: Mapping[str, Any], application: Application, size: int) -> None:
    """Check that this application can feed this number of workers with these DataFrames; starts nothing.

    Args:
        names: names of the arguments to feed.
        frames: DataFrames by the names of arguments.
        application: application on which the workers will run.
        size: number of workers.

    Raises:
        ArgumentError: A DataFrame is missing, or belongs to another application.
        NotEnoughSlots: The agents would take all slots.
    """
    if missing := sorted(set(names) - set(frames)):
        raise ArgumentError(
            f"the function was given DataFrames, data={{{', '.join(map(repr, missing))}}}, which are not stored with "
            "the run; start it again by its verb, with data= (and resume= to continue from its checkpoint, or "
            "warm_start= for a search)"
        )
    if not frames:
        return
    context = getattr(application.backend, "context", None)
    for name, frame in frames.items():
        own = getattr(getattr(frame, "sparkSession", None), "_sc", None)
        if own is None or own is not context:
            raise ArgumentError(_of_other_session(name, own))
    capacity = application.backend.capacity()
    most = max_workers(capacity)
    if most is not None and size > most:
        raise NotEnoughSlots(
            f"data= with {size} workers: they use all {most + 1} slots of this cluster ({capacity.setting}), but "
            "Spark needs at least one more to compute the DataFrame; request fewer workers (for a search "
            "max_executors=), or give executors another core"
        )


def _of_other_session(name: str, context: Any) -> str:
    """Return the message about a DataFrame whose SparkContext is not that of the workers."""
    if context is not None and context._jsc is None:
        return (
            f"data={name!r} is a DataFrame of a Spark session that has been stopped; create a session, by "
            "experiment.spark() or SparkSession.builder.getOrCreate(), and the DataFrame in it, and start the run again"
        )
    return (
        f"data={name!r} is not a DataFrame of the Spark session that the workers run on; start the run in the same "
        "application, by SparkSession.builder.getOrCreate()"
    )


def start_run(
    application: Application, request: RunRequest, observe: Callable[[RunState], object], frames: Mapping[str, Any]
) -> RunState:
    """Start a run by ``Coordinator.start_run``, with a feed of these DataFrames if there are any."""
    if not frames:
        return application.coordinator.start_run(request, observe)
    feed = FrameFeed(frames, application, request.run_id, divides=not isinstance(request.spec.group, IndependentGroup))

    def follow(state: RunState) -> None:
        observe(state)
        feed.follow(state)

    try:
        return application.coordinator.start_run(replace(request, on_sidecar=feed.on_sidecar), follow)
    except BaseException:  # the run, whose end closes the feed, has not begun
        feed.close()
        raise


class FrameFeed:
    """Feed of one run's DataFrames, from the start of its first stage until its end."""

    def __init__(self, frames: Mapping[str, Any], application: Application, run_id: str, divides: bool = True) -> None:
        """Create it without starting anything; ``divides``: False if each worker reads all rows, as trials do."""
        self._divides = divides
        self._fail = functools.partial(application.coordinator.fail, run_id)
        self._grows, self._run_id = application.backend.grows, run_id
        backend: Any = application.backend  # Spark's
        self._spark = _SparkJobs(backend.context, f"hopsml-data-{run_id}", backend.job_ids)
        self._frames = dict(frames)
        self._events: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._logs: dict[str, FrameTransfer] = {}
        self._stages: dict[str, StageAddress] = {}  # by agent
        self._clients: dict[str, StageClient] = {}  # by URL
        self._unsent_tables: dict[
            tuple[str, str], FrameTable
        ] = {}  # by stage's URL and DataFrame: tables that are still to be sent
        self._started_at = 0.0  # monotonic seconds: the first job
        self._noted_complete: set[str] = set()  # DataFrames whose completion a note has reported
        self._stuck_at: float | None = None  # monotonic seconds: when a job's tasks count as waiting for a lost stage
        self._idle_since: float | None = None  # monotonic seconds: no task has run since
        self._no_task_s = max(_NO_TASK_S, _HEARTBEATS * self._spark.heartbeat_s())
        self._waits_for_others = False  # True once a note has reported it
        self._state: RunState

    # ------------------------------------------------------------------------------------------ from other threads

    def on_sidecar(self, message: SidecarReport) -> None:
        """Queue a sidecar's message for the feed's thread; passed to the coordinator as ``RunRequest.on_sidecar``."""
        self._events.put(functools.partial(self._ended if message.ended else self._opened, message))

    def follow(self, state: RunState) -> None:
        """Start the feed's thread, which ends with the run."""
        self._state = state
        state.observe(self._on_change)
        threading.Thread(target=self._run, name=f"hopsml-data-{self._run_id}", daemon=True).start()

    def close(self) -> None:
        """End the feed before the run's end."""
        self._events.put(None)

    def _on_change(self, change: Change) -> None:
        if change.kind == "end":
            self.close()

    # ------------------------------------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            for name, frame in self._frames.items():
                self._spark.plan(name, frame, functools.partial(self._later, self._planned, name))
            while True:
                try:
                    event = self._events.get(timeout=_TICK_S)
                except queue.Empty:
                    event = self._tick
                if event is None or self._is_ending():
                    return
                event()
        except Exception as error:
            log.exception("the rows of run %s cannot be sent", self._run_id)
            self._fail(f"its rows cannot be sent to the workers: {type(error).__name__}: {error}")
        finally:
            self._spark.cancel()
            for client in self._clients.values():
                client.close()

    def _later(self, function: Callable[..., None], *arguments: Any) -> None:
        """Queue a call for the feed's thread."""
        self._events.put(functools.partial(function, *arguments))

    def _is_ending(self) -> bool:
        """Return True if no worker will read rows any more: agents exit, and their rows are not sent again."""
        return self._state.phase is Phase.STOPPING or self._state.phase.is_final

    @property
    def _wanted(self) -> int:
        return len(self._state.members)

    def _planned(self, name: str, partitions: int, problem: str) -> None:
        if problem:
            self._fail(transfer_error_message(name, problem))
            return
        frame_log = self._logs[name] = FrameTransfer(name, partitions)
        for agent_id, address in self._stages.items():
            self._do(frame_log, frame_log.stage_opened(agent_id, address, self._wanted, time.monotonic()))

    def _opened(self, message: SidecarReport) -> None:
        address = decode_address(message.data)
        self._stages[message.agent_id], self._clients[address.url] = address, StageClient(address)
        for frame_log in self._logs.values():
            self._do(frame_log, frame_log.stage_opened(message.agent_id, address, self._wanted, time.monotonic()))

    def _ended(self, message: SidecarReport) -> None:
        before = self._stages.pop(message.agent_id, None)
        if message.is_final:
            self._fail(f"the process that stores its rows ends again and again: {message.ended}")
        elif before is not None:
            self._clients.pop(before.url).close()
            self._stuck_at = time.monotonic() + _STUCK_S
            if any(one.stage == before.url for frame_log in self._logs.values() for one in frame_log.placed.values()):
                self._note(
                    f"the rows that were stored by {before.url} are computed and sent again by Spark: {message.ended}"
                )
        for frame_log in self._logs.values():
            self._do(frame_log, frame_log.stage_ended(message.agent_id, self._wanted, time.monotonic()))

    def _arrived(self, frame_log: FrameTransfer, placed: list[StagedPartition]) -> None:
        self._do(frame_log, frame_log.partitions_stored(placed, self._wanted, time.monotonic()))

    def _pushed(self, frame_log: FrameTransfer, problem: str) -> None:
        self._do(
            frame_log,
            frame_log.push_job_failed(problem) if problem else frame_log.push_job_ended(self._wanted, time.monotonic()),
        )

    def _tick(self) -> None:
        for frame_log in self._logs.values():
            self._do(frame_log, frame_log.due_actions(self._wanted, time.monotonic()))
        self._publish()
        if not any(frame_log.is_pushing for frame_log in self._logs.values()):
            self._stuck_at = self._idle_since = None
            return
        now = time.monotonic()
        if self._stuck_at is not None and now > self._stuck_at:
            self._stuck_at = None
            self._spark.cancel()  # missing partitions are pushed again then
        if self._grows or self._spark.is_at_work():
            self._idle_since = None
            return
        self._idle_since = now if self._idle_since is None else self._idle_since
        if now - self._idle_since <= self._no_task_s:
            return
        if not self._spark.others_work():
            self._fail(_NO_SLOT.format(seconds=self._no_task_s))
        elif not self._waits_for_others:
            self._waits_for_others = True
            self._note(_OTHERS_WORK)

    def _do(self, frame_log: FrameTransfer, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case StartPushJob():
                    self._started_at = self._started_at or time.monotonic()
                    arrived, done = (
                        functools.partial(self._later, one, frame_log) for one in (self._arrived, self._pushed)
                    )
                    self._spark.push(frame_log.name, action, arrived, done)
                case PublishTable():
                    self._unsent_tables |= {(stage.url, frame_log.name): action.table for stage in action.stages}
                    self._publish()
                    if action.table.is_whole and frame_log.name not in self._noted_complete:
                        self._noted_complete.add(frame_log.name)
                        took_s = (
                            time.monotonic() - self._started_at if self._started_at else 0.0
                        )  # without partitions there is no job
                        text = describe_table(action.table, self._wanted if self._divides else 1)
                        self._note(f"{text}, sent by {self._spark.sender(frame_log.name)} in {took_s:.1f} s")
                case EndRun():
                    self._fail(action.reason)

    def _publish(self) -> None:
        """Send tables to the stages; those that do not respond get them again later, while they exist."""
        sendable = {key: table for key, table in self._unsent_tables.items() if key[0] in self._clients}
        if sendable:
            with concurrent.futures.ThreadPoolExecutor(_TOLD_AT_ONCE, "hopsml-data-tell") as threads:
                was_sent = threads.map(lambda key: _send_table(self._clients[key[0]], sendable[key]), sendable)
                sendable = {key: sendable[key] for key, done in zip(list(sendable), was_sent, strict=True) if not done}
        self._unsent_tables = sendable

    def _note(self, text: str) -> None:
        self._state.publish(Change("note", text=text))


def _send_table(client: StageClient, table: FrameTable) -> bool:
    try:
        client.publish(table)
    except Exception as error:  # noqa: BLE001 the loss of a stage is reported separately
        log.debug("the stage at %s does not take the table of its rows: %s", client.address.url, error)
        return False
    return True


class _SparkJobs:
    """Spark jobs of one feed, each on its own thread, on which ``done`` is called."""

    def __init__(self, context: Any, group: str, agents: Callable[[], list[int]]) -> None:
        """Create it without starting a job; ``agents`` returns the ids of the Spark jobs that run the agents."""
        self._context, self._group, self._agents = context, group, agents
        self._plans: dict[str, JvmPush | PythonPush] = {}  # by DataFrame
        self._cancelled = 0  # number of cancellations

    def plan(self, name: str, frame: Any, done: Callable[[int, str], None]) -> None:
        """Plan all jobs of a DataFrame, and count its partitions; what needs a shuffle is computed up to it."""

        def make() -> None:
            try:
                self._plans[name] = _plan_of(name, frame)
                done(self._plans[name].partition_count, "")
            except Exception as error:  # noqa: BLE001 py4j and Spark raise many kinds: the run fails with the cause
                done(0, _cause(str(error)))

        self._start(name, make)

    def sender(self, name: str) -> str:
        """Return what sends the rows of a planned DataFrame, for notes."""
        return self._plans[name].sender

    def push(
        self,
        name: str,
        action: StartPushJob,
        arrived: Callable[[list[StagedPartition]], None],
        done: Callable[[str], None],
    ) -> None:
        """Push these partitions to these stages; a cancelled job counts as done, with the rows that have arrived."""
        cancelled = self._cancelled

        def carry_out() -> None:
            try:
                self._plans[name].push(name, action.stages, action.partitions, arrived)
                done("")
            except Exception as error:  # noqa: BLE001 see above
                done("" if self._cancelled > cancelled else _cause(str(error)))

        self._start(name, carry_out)

    def _start(self, name: str, work: Callable[[], None]) -> None:
        from pyspark import InheritableThread

        def run() -> None:
            # No interrupt: if Spark interrupts a task that waits for its Python worker to start, it assumes that the
            # process that forks workers has failed, and starts another one. All Python workers of the executor end with
            # it, among them agents.
            self._context.setJobGroup(self._group, f"hopsml: rows of {name}", interruptOnCancel=False)
            work()

        job = InheritableThread(target=run)
        job.daemon = True
        job.name = f"{self._group}-{name}"
        job.start()

    def cancel(self) -> None:
        """Cancel all jobs that are under way."""
        self._cancelled += 1
        try:
            self._context.cancelJobGroup(self._group)
        except Exception as error:  # noqa: BLE001 Spark is stopping: its jobs end with it
            log.debug("the jobs of %s cannot be cancelled: %s", self._group, error)

    def heartbeat_s(self) -> float:
        """Return the seconds between heartbeats of an executor, with which Spark writes the status of its tasks."""
        return float(self._context._jsc.sc().conf().getTimeAsMs("spark.executor.heartbeatInterval", "10s")) / 1000

    def is_at_work(self) -> bool:
        """Return True if a task of the feed's jobs runs; also if there is no job now, or Spark does not respond."""
        try:
            tracker = self._context.statusTracker()
            active = set(tracker.getActiveJobsIds()) & set(tracker.getJobIdsForGroup(self._group))
            return not active or _has_tasks(tracker, active)
        except Exception as error:  # noqa: BLE001 Spark is stopping
            log.debug("Spark does not say what it does: %s", error)
            return True

    def others_work(self) -> bool:
        """True if tasks of other jobs run: their slots become free, while agents hold theirs until they exit."""
        try:
            tracker = self._context.statusTracker()
            ours = {*tracker.getJobIdsForGroup(self._group), *self._agents()}
            return _has_tasks(tracker, set(tracker.getActiveJobsIds()) - ours)
        except Exception as error:  # noqa: BLE001 Spark is stopping
            log.debug("Spark does not say what it does: %s", error)
            return True


def _has_tasks(tracker: Any, numbers: Collection[int]) -> bool:
    """True if a task of one of these jobs runs."""
    jobs = [job for number in numbers if (job := tracker.getJobInfo(number)) is not None]
    stages = [tracker.getStageInfo(number) for job in jobs for number in job.stageIds]
    return any(stage.numActiveTasks for stage in stages if stage is not None)


def _plan_of(name: str, frame: Any) -> JvmPush | PythonPush:
    """Return the JVM implementation, which is faster, if Spark can load it and it accepts the DataFrame; else Python's."""
    if problem := push.why_jvm_push_unusable(frame):
        log.warning("the rows of data=%r are sent by Python, which is slower than Spark's JVM: %s", name, problem)
        return PythonPush(name, frame, has_classes=False)
    try:
        return JvmPush(frame)
    except Exception as error:  # noqa: BLE001 py4j's: a column of another type
        log.info("the rows of data=%r are sent by Python instead of Spark's JVM: %s", name, _cause(str(error)))
    return PythonPush(name, frame, has_classes=True)


_NO_SLOT = (
    "Spark has started no task of data= for {seconds:g} s, and no other job's tasks run: the agents use all "
    "slots of the executors. Request fewer workers, or give executors another core (spark.executor.cores)"
)
_OTHERS_WORK = (
    "the rows of data= wait for a slot, since tasks of other Spark jobs and the agents use all slots. Request fewer "
    "workers, give executors another core (spark.executor.cores), or end the other jobs"
)


def _cause(text: str) -> str:
    """Return the informative line: the last Python error on an executor, else the first line of Spark's message."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    python = [line for line in lines if "Error: " in line and "org.apache" not in line and not line.startswith("at ")]
    return (python[-1] if python else lines[0] if lines else "no reason was given")[:1000]
