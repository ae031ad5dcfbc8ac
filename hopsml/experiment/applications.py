"""Which cluster a verb runs on: one application (backend, coordinator) for each SparkContext, one for local slots."""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import logging
import os
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any, Protocol

from hopsml import profiles, redact, settings
from hopsml.cluster.driver.backends.base import Backend
from hopsml.cluster.driver.coordinator import Coordinator
from hopsml.cluster.forking.zygote_process import ZygoteProcess
from hopsml.cluster.shared import open_files, processes
from hopsml.errors import CoordinatorLost
from hopsml.experiment.takeover import EarlierRuns
from hopsml.storage import filesystem
from hopsml.submission import hidden
from hopsml.tracking.mlflow.link import LINK

log = logging.getLogger(__name__)

LEASE_S = 10.0
_HEARS_EXECUTORS = "org.apache.spark.network.server.TransportRequestHandler"  # a logger of Spark's
_INTERRUPTED_START_S = 10.0  # that a start of Spark which nobody wants any more gets to come to its end


class Joinable(Protocol):
    """A run or a search whose last files are written on a thread."""

    def join(self, timeout_s: float) -> None:
        """Wait at most ``timeout_s`` seconds until they are written."""


@dataclass
class Application:
    """A cluster to run on. ``id``: Spark's application id, or one of our own without Spark."""

    id: str
    backend: Backend
    coordinator: Coordinator
    earlier_runs: EarlierRuns
    environment: dict[str, str] = field(default_factory=dict)  # the profile's variables for the driver
    runs: weakref.WeakSet[Joinable] = field(default_factory=weakref.WeakSet)
    profile: str = ""  # the name of the one that it was started with

    def passed_over(self, profile: str | None) -> str:
        """A note for a caller that asks for another profile than the running application's; "" if it is the same."""
        if profile is None or profile == self.profile:
            return ""
        there = f"was started with profile {self.profile!r}" if self.profile else "was there before"
        return (
            f"profile={profile!r} has no effect: the application {self.id} ({self.backend.name}) {there}; for another one "
            "end it first (experiment.shutdown(), and spark.stop() where it is yours)"
        )


_lock = threading.RLock()
_applications: dict[str, Application] = {}
_own_contexts: list[Any] = []  # SparkContexts that this module has made
_messages: dict[str, Any] = {}  # of Spark about executors, by application
_profiles_variables: dict[str, str] = {}  # that a profile has set in this process
_spark_folder = ""  # of their executors on this machine
_noting = False
_failed = False  # whether the program ends by an exception that nobody caught
NAMED, ATTEMPT = "HOPSML_APPLICATION_ID", "HOPSML_APPLICATION_ATTEMPT"  # set by whoever starts a driver again and again
_allowed: int | None = None  # see ``allow``
_local_id = f"local-{int(time.time())}-{secrets.token_hex(3)}"


def current(profile_name: str | None = None, keep_warm_s: float = 10.0, preload: tuple[str, ...] = ()) -> Application:
    """The application of this process, started when there is none.

    A SparkContext that exists is used, whatever the profile says: a notebook or a spark-submit job has one already.
    ``preload``: what the workers will find imported; on this machine that can begin before Spark is there.
    """
    with _lock:
        context = _active_context()
        known = _applications.get(_id_of(context))
        if known is not None and known.coordinator.is_alive:
            known.coordinator.pool.keep_warm_s = keep_warm_s
            return known
        if known is not None:
            known.coordinator.close()
        check_open_files()
        processes.open_standard_streams()  # before new descriptors could get the numbers 0 to 2
        profile = None
        if context is None and not _under_spark_submit():
            profile = profiles.load(profile_name)
            _set_variables(profile)
        zygote = _start_zygote(preload, context, profile)
        try:
            if context is None and (profile is None or profile.uses_spark):
                context = _create_context(profile)
            application = _open(context, profile, keep_warm_s, zygote)
            application.profile = profile.name if profile is not None else ""
        except BaseException:
            if zygote is not None:
                zygote.close()
            raise
        _applications[application.id] = application
        return application


def allow(slots: int) -> None:
    """Let all runs of this process together have at most so many workers, whatever they ask for: from now on, and until the
    next call.

    Elastic ones that are larger become smaller at their next commit, not below their ``min_workers``, searches when a trial
    ends; what needs more than there is waits.
    """
    global _allowed
    with _lock:
        _allowed = slots
        for application in _applications.values():
            with contextlib.suppress(CoordinatorLost):
                application.coordinator.allow(slots)


def held(slots: int) -> int:
    """How many slots this process has at most, of the cluster's: agents, and those that it has asked for.

    Agents beyond ``slots`` that no run uses are let go. Raises CoordinatorLost where a coordinator does not answer.
    """
    with _lock:
        coordinators = [one.coordinator for one in _applications.values() if one.coordinator.is_alive]
    return sum(coordinator.held(slots) for coordinator in coordinators)


def check_open_files(agents: int = 0) -> None:
    """Raise CoordinatorLost where this process may open too few files for its part of a run with so many agents."""
    if problem := open_files.problem(agents):
        raise CoordinatorLost(problem)


def prepare(profile_name: str | None = None) -> None:
    """Set the variables of the profile with which ``current`` would start an application; nothing where there is one.

    What is asked before that, such as where runs are kept, depends on them. Raises ArgumentError for an unknown profile,
    also where it comes too late to have an effect.
    """
    with _lock:
        alive = any(application.coordinator.is_alive for application in _applications.values())
        if not alive and _active_context() is None and not _under_spark_submit():
            _set_variables(profiles.load(profile_name))
        elif profile_name:
            profiles.check(profile_name, may_lie_elsewhere=_under_spark_submit())


def current_id() -> str:
    """The application id under which this process records runs; starts nothing."""
    return _id_of(_active_context())


def _id_of(context: Any) -> str:
    """Under which runs are recorded: what a job service calls it, however often it starts it, else Spark's id or ours."""
    known = str(context.applicationId) if context is not None else _local_id
    return os.environ.get(NAMED) or known


def _start_zygote(preload: tuple[str, ...], context: Any, profile: profiles.Profile | None) -> ZygoteProcess | None:
    """Where agents will be on this machine; None where not, or where there is nothing to import."""
    variables = agents_variables(*_where(context, profile)) if preload else None
    if variables is None:
        return None
    try:
        return ZygoteProcess(preload, variables)
    except OSError:
        log.warning("the agents import %s themselves", ", ".join(preload), exc_info=True)
        return None


def agents_variables(master: str, settings: Mapping[str, str]) -> dict[str, str] | None:
    """The variables that the Python of agents on this machine has and ours lacks; None for agents that may be elsewhere.

    ``master``: Spark's, or "none" for agents that are our own subprocesses; ``settings``: Spark's.
    """
    if master == "none":
        return {"PYTHONHASHSEED": "0"}
    if not master.startswith("local"):
        return None
    # What Spark sets for the Python of its executors unless it is told otherwise.
    usual = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": settings.get("spark.task.cpus", "1")}
    prefix = "spark.executorEnv."
    named = {name.removeprefix(prefix): value for name, value in settings.items() if name.startswith(prefix)}
    return {**usual, **named}


def _where(context: Any, profile: profiles.Profile | None) -> tuple[str, dict[str, str]]:
    """Master and settings that a SparkContext will have, known before there is one."""
    if context is None and profile is not None:
        return profile.master, profile.spark
    if context is None:  # under spark-submit the JVM knows them
        from pyspark import SparkConf, SparkContext

        SparkContext._ensure_initialized()
        conf = SparkConf()
    else:
        conf = context.getConf()
    settings = dict(conf.getAll())
    return settings.get("spark.master", ""), settings


def _open(
    context: Any, profile: profiles.Profile | None, keep_warm_s: float, zygote: ZygoteProcess | None
) -> Application:
    key = _id_of(context)
    backend: Backend
    attempt = int(os.environ.get(ATTEMPT, "1"))
    if context is not None:
        from hopsml.cluster.driver.backends.spark import SparkBackend, application_attempt

        backend = SparkBackend(context, _messages.get(context.applicationId))
        attempt = max(attempt, application_attempt(context))
        shared_disk = context.master.startswith("local")
    else:
        from hopsml.cluster.driver.backends.local import LocalBackend

        backend = LocalBackend(profile.local_slots if profile else None)
        shared_disk = True
    coordinator = Coordinator(
        backend,
        keep_warm_s=keep_warm_s,
        lease_s=LEASE_S,
        port_range=settings.port_range(),
        sys_path=tuple(entry for entry in sys.path if entry) if shared_disk else (),
        zygote=zygote,
        allowed=_allowed,
    )
    try:
        coordinator.start()
    except OSError as error:
        raise CoordinatorLost(f"the coordinator could not open its port: {error}") from error
    variables = dict(profile.environment) if profile else {}
    redact.register_settings(variables)
    redact.register_settings(dict(context.getConf().getAll()) if context is not None else {})
    earlier_runs = EarlierRuns(key, attempt, forgives=NAMED in os.environ)
    return Application(key, backend, coordinator, earlier_runs, variables)


def _active_context() -> Any:
    """The SparkContext that there is; one of ours that Spark itself has stopped is let go, and a new one takes its place."""
    module = sys.modules.get("pyspark")
    context = module.SparkContext._active_spark_context if module is not None else None
    if context is None or context._jsc is None:
        return None
    if any(one is context for one in _own_contexts) and _was_stopped(context):
        context.stop()
        return None
    return context


def _was_stopped(context: Any) -> bool:
    """Whether Spark has stopped it by itself, as when its application is ended from outside; Python is not told."""
    try:
        return bool(context._jsc.sc().isStopped())
    except Exception as error:  # noqa: BLE001 py4j's, where the JVM has gone: a new process is needed, as the backend says
        log.debug("Spark does not say whether it is stopped: %s", error)
        return False


def _under_spark_submit() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _create_context(profile: profiles.Profile | None) -> Any:
    """Create a bare SparkContext: agents need no SQL session, without which the start takes two seconds less."""
    from pyspark import SparkConf, SparkContext

    from hopsml.cluster.driver.backends import spark_executors

    if profile is not None:
        _prepare_environment(profile)
    conf = SparkConf()
    if profile is not None:
        conf.setMaster(profile.master)
        for key, value in profile.settings().items():
            conf.set(key, value)
    if not conf.contains("spark.app.name"):
        conf.setAppName("hopsml")
    # The JVM's command line shows what anybody may read; the rest the JVM is told when it runs.
    shown = SparkConf(loadDefaults=False).setAll(list(hidden.split(dict(conf.getAll()))[0].items()))

    def make() -> Any:
        SparkContext._ensure_initialized(conf=shown)
        messages = spark_executors.collect(SparkContext._jvm)  # before the first executor is granted
        context = SparkContext.getOrCreate(conf)
        _messages[context.applicationId] = messages
        return context

    context = _uninterrupted(make)
    _note_failures()
    _own_contexts.append(context)
    return context


def _uninterrupted(make: Callable[[], Any]) -> Any:
    """The SparkContext of ``make``; Ctrl-C meanwhile waits until there is one that can be stopped in order.

    An interrupt amid a call of the JVM leaves half a context behind, and both print pages about it. On a thread, since the
    main one must be able to give up: on YARN the start may wait in a queue.
    """
    if threading.current_thread() is not threading.main_thread():
        return make()
    made: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def run() -> None:
        try:
            made.set_result(make())
        except BaseException as error:  # noqa: BLE001 the waiting thread raises it
            made.set_exception(error)

    maker = threading.Thread(target=run, name="hopsml-spark-context", daemon=True)
    try:
        maker.start()
        while not made.done():  # in pieces: a signal that another thread receives does not wake this one
            concurrent.futures.wait([made], 0.5)
        context = made.result()
    except KeyboardInterrupt:
        concurrent.futures.wait([made], _INTERRUPTED_START_S)
        if made.done() and made.exception() is None:
            made.result().setLogLevel("OFF")  # its executors are just starting, and nobody minds how they end
            made.result().stop()
        raise KeyboardInterrupt("Spark was still starting; nothing runs") from None
    _cancel_jobs_on_interrupt(context)
    return context


def _cancel_jobs_on_interrupt(context: Any) -> None:
    """Cancel jobs on Ctrl-C, as PySpark does for contexts that the main thread has made."""

    def cancel(number: int, frame: FrameType | None) -> None:
        try:
            context.cancelAllJobs()
        finally:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, cancel)


def after_interrupt() -> None:
    """Part with idle agents of Spark: PySpark cancels its jobs on Ctrl-C, and the next run would get them."""
    for application in list(_applications.values()):
        if application.backend.restarts_agents:
            with contextlib.suppress(CoordinatorLost):
                application.coordinator.dismiss_idle("Ctrl-C cancels all of Spark's jobs")


def _stop(context: Any) -> None:
    """Stop a context that hopsml has made: left to the JVM's exit it logs a page of errors.

    After an exception that nobody caught the cluster manager is told so; YARN would list the application of a
    driver in client mode as SUCCEEDED otherwise.
    """
    if context._jsc is None:
        return
    _ignore_late_messages(context)
    if _failed:
        context._jsc.sc().stop(1)
    context.stop()


def _ignore_late_messages(context: Any) -> None:
    """What an executor still says to a scheduler that has stopped is no error, but Spark logs a page for each."""
    with contextlib.suppress(Exception):  # a JVM that has gone has nothing to log, and one may log by other means
        log4j = context._jvm.org.apache.logging.log4j
        log4j.core.config.Configurator.setLevel(_HEARS_EXECUTORS, log4j.Level.OFF)


def _note_failures() -> None:
    global _noting
    if _noting:
        return
    _noting = True
    usual = sys.excepthook

    def note(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        global _failed
        _failed = True
        usual(kind, error, trace)

    sys.excepthook = note


def _set_variables(profile: profiles.Profile) -> None:
    """Those of the profile that the user has not set; those of a profile before it go."""
    for name, value in _profiles_variables.items():
        if os.environ.get(name) == value:
            del os.environ[name]
    _profiles_variables.clear()
    store = {"HOPSML_PROJECT_URL": profile.store} if profile.store else {}
    for name, value in {**store, **profile.environment}.items():
        if name not in os.environ:
            os.environ[name] = _profiles_variables[name] = value


def _prepare_environment(profile: profiles.Profile) -> None:
    """Set variables that the JVM reads at its start, unless the user has set them."""
    if profile.master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # executors share this disk, so this Python too
    if profile.master.startswith("local-cluster") and "SPARK_WORKER_DIR" not in os.environ:
        # Spark would put the executors' folders into its own installation.
        global _spark_folder
        _spark_folder = os.environ["SPARK_WORKER_DIR"] = tempfile.mkdtemp(prefix="hopsml-spark-")


def shutdown(spark: bool = False) -> None:
    """End all runs, give all agents back and close the coordinators of this process; done at its end in any case.

    ``spark``: stop the SparkContext as well, if hopsml made it for want of another; a user's own is left running.
    """
    with _lock:
        for application in list(_applications.values()):
            application.coordinator.close()
            for run in list(application.runs):
                run.join(timeout_s=30)  # its status.json is written by a thread that dies with the interpreter
        _applications.clear()
        LINK.close()  # bounded: what cannot be sent now lies in the run directories
        while spark and _own_contexts:
            _stop(_own_contexts.pop())
        if spark and _spark_folder:
            shutil.rmtree(_spark_folder, ignore_errors=True)
    filesystem.close_all()


@atexit.register
def _at_the_end() -> None:
    """``shutdown`` at exit; a second Ctrl-C skips it, and what is left ends with this process."""
    with contextlib.suppress(KeyboardInterrupt):
        shutdown(spark=True)
