"""Applications of this process, each with backend and coordinator: one per SparkContext, one for local slots."""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import logging
import os
import platform
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
from typing import TYPE_CHECKING, Any, Protocol

from hopsml.cluster.driver.backends.base import Backend
from hopsml.cluster.driver.coordinator import Coordinator
from hopsml.cluster.driver.tokens.keeper import TokenKeeper, keep_tokens
from hopsml.cluster.driver.tokens.sources import TokenSource, source_of
from hopsml.cluster.forking.zygote import ZygoteProcess
from hopsml.cluster.shared import acceptor
from hopsml.core import processes, profiles, redact
from hopsml.core import settings as hopsml_settings
from hopsml.core.variables import SETTINGS
from hopsml.core.versions import NUMPY, check_installed, check_java, check_spark
from hopsml.errors import ArgumentError, ClusterError, CoordinatorLost
from hopsml.experiment.takeover import EarlierRuns
from hopsml.storage import filesystem
from hopsml.submission import spark_command, spark_connect, spark_start
from hopsml.tracking.mlflow.link import LINK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


log = logging.getLogger(__name__)

_HEARS_EXECUTORS = "org.apache.spark.network.server.TransportRequestHandler"  # a logger of Spark's
_INTERRUPTED_START_S = 10.0  # time for an interrupted start of Spark to complete


class Joinable(Protocol):
    """Interface of a run or a search whose last files are written on a thread."""

    def join(self, timeout_s: float) -> None:
        """Wait at most ``timeout_s`` seconds until they are written."""


@dataclass
class Application:
    """A cluster to run on. ``id``: Spark's application id, or one that hopsml generates without Spark."""

    id: str
    backend: Backend
    coordinator: Coordinator
    earlier_runs: EarlierRuns
    environment: dict[str, str] = field(default_factory=dict)  # the profile's variables for the driver
    runs: weakref.WeakSet[Joinable] = field(default_factory=weakref.WeakSet)
    profile: str = ""  # name of the profile with which it was started
    tokens: TokenKeeper | None = None  # on a secure cluster
    after_spark: bool = False  # True if it has no Spark, and this process had a Spark session

    def close_tokens(self) -> None:
        """End the distribution of delegation tokens."""
        if self.tokens is not None:
            self.tokens.close()

    def other_application_note(self, profile: str | None) -> str:
        """Return a note for a caller who may expect another application than the running one; "" if there is none."""
        if profile is None and self.after_spark:
            return (
                "the Spark session of this process has been stopped, so this run has processes of this machine as workers "
                f"(profile {self.profile!r}); to train on executors, create a session before (experiment.spark(), or "
                "SparkSession.builder.getOrCreate()), or select a profile with Spark"
            )
        if profile is None or profile == self.profile:
            return ""
        state = f"was started with profile {self.profile!r}" if self.profile else "was already running"
        return (
            f"profile={profile!r} has no effect, since the application {self.id} ({self.backend.name}) {state}; for "
            "another profile end it first (experiment.shutdown(), and spark.stop() if you have started Spark)"
        )


_lock = threading.RLock()
_applications: dict[str, Application] = {}
_own_contexts: list[Any] = []  # SparkContexts that this module has created
_messages: dict[str, Any] = {}  # Spark's messages about executors, by application
_profiles_variables: dict[str, str] = {}  # variables that a profile has set in this process
_spark_folder = ""  # folder of Spark's executors on this machine
_noting = False
_failed = False  # True if the program ends by an uncaught exception
_allowed: int | None = None  # see ``limit_slots``
_local_id = f"local-{int(time.time())}-{secrets.token_hex(3)}"


def get_or_start(
    profile_name: str | None = None, keep_warm_s: float = 10.0, preload: tuple[str, ...] = ()
) -> Application:
    """Return the application of this process; start one if there is none.

    An existing SparkContext is used, whatever the profile: a notebook or a spark-submit job has one already.

    Args:
        profile_name: profile of an application to be started; by default that of HOPSML_PROFILE.
        keep_warm_s: seconds for which idle agents are retained.
        preload: modules to be imported before workers are forked; on this machine that can begin before Spark has
            started.
    """
    with _lock:
        context = _active_context()
        known = _applications.get(_id_of(context))
        if known is not None and known.coordinator.is_alive:
            known.coordinator.pool.keep_warm_s = keep_warm_s
            return known
        if known is not None:
            known.coordinator.close()
            known.close_tokens()
        check_open_files()
        processes.open_standard_streams()  # before new descriptors get the numbers 0 to 2
        profile = None
        if context is None and not _under_spark_submit():
            profile = profiles.load(profile_name)
            _set_variables(profile)
        _identify(context, profile)
        if context is not None or profile is None or profile.uses_spark:
            check_spark(_spark_version(context), platform.python_version())
        zygote = _start_zygote(preload, context, profile)
        try:
            if context is None and (profile is None or profile.uses_spark):
                context = _create_context(profile)
            application = _open(context, profile, keep_warm_s, zygote)
            application.profile = profile.name if profile is not None else ""
            application.after_spark = context is None and _had_spark()
        except BaseException:
            if zygote is not None:
                zygote.close()
            raise
        _applications[application.id] = application
        return application


def limit_slots(slots: int) -> None:
    """Limit the number of workers of all runs of this process together, until the next call.

    Larger elastic runs shrink at their next commit, not below their ``min_workers``, and searches when a trial ends;
    requests beyond the limit wait.
    """
    global _allowed
    with _lock:
        _allowed = slots
        for application in _applications.values():
            with contextlib.suppress(CoordinatorLost):
                application.coordinator.limit_slots(slots)


def dismiss_surplus_agents(slots: int) -> int:
    """Dismiss idle agents beyond ``slots``, and return how many slots this process holds at most.

    Counted are its agents, and those that it has requested.

    Raises:
        CoordinatorLost: A coordinator does not respond.
    """
    with _lock:
        coordinators = [one.coordinator for one in _applications.values() if one.coordinator.is_alive]
    return sum(coordinator.dismiss_surplus_agents(slots) for coordinator in coordinators)


def check_open_files(agents: int = 0) -> None:
    """Raise CoordinatorLost if this process may open too few files for a run with this number of agents."""
    if problem := acceptor.open_files_problem(agents):
        raise CoordinatorLost(problem)


def set_profile_variables(profile_name: str | None = None) -> None:
    """Set the variables of the profile with which ``get_or_start`` would start an application; does nothing if one runs.

    Settings that are read before that, such as the URL of the project, depend on them.

    Raises:
        ArgumentError: The profile is unknown, even if it is given too late to have an effect.
        ClusterError: This process is a client of Spark Connect.
    """
    with _lock:
        alive = any(application.coordinator.is_alive for application in _applications.values())
        profile, context = None, _active_context()
        _check_connect(profile_name, context)
        check_installed(NUMPY)
        if not alive and context is None and not _under_spark_submit():
            profile = profiles.load(profile_name)
            _set_variables(profile)
        _identify(context, profile)
        if profile is None and profile_name:
            profiles.check(profile_name, may_lie_elsewhere=_under_spark_submit())


def _check_connect(profile_name: str | None, context: Any) -> None:
    """Raise ClusterError for a client of Spark Connect, unless the user has selected a profile without Spark."""
    facts = spark_connect.find_connect()
    if facts == spark_connect.ConnectFacts():
        return
    has_context = context is not None
    needs_spark = has_context or _under_spark_submit() or profiles.load(profile_name).uses_spark
    if needs_spark or not (profile_name or SETTINGS.profile):
        spark_connect.check_session(facts, has_context=has_context, needs_spark=needs_spark)


def current_id() -> str:
    """Return the application id under which this process records runs; starts nothing."""
    return _id_of(_active_context())


def _id_of(context: Any) -> str:
    """Return the id under which runs are recorded: HOPSML_APPLICATION_ID, else Spark's id, else a generated one."""
    known = str(context.applicationId) if context is not None else _local_id
    return SETTINGS.application_id or known


def _start_zygote(preload: tuple[str, ...], context: Any, profile: profiles.Profile | None) -> ZygoteProcess | None:
    """Start a zygote if agents will be on this machine and there are modules to import; otherwise return None."""
    variables = agents_variables(*_where(context, profile)) if preload else None
    if variables is None:
        return None
    try:
        return ZygoteProcess(preload, variables)
    except OSError:
        log.warning("the agents import the modules %s themselves", ", ".join(preload), exc_info=True)
        return None


def agents_variables(master: str, settings: Mapping[str, str]) -> dict[str, str] | None:
    """Return the variables that the Python of agents on this machine has and this process lacks.

    Args:
        master: Spark's master, or "none" for agents that are subprocesses of this process.
        settings: Spark's settings.

    Returns:
        The variables; None for agents that may be on other machines.
    """
    if master == "none":
        return {"PYTHONHASHSEED": "0"}
    if not master.startswith("local"):
        return None
    # Spark's defaults for the Python of its executors.
    usual = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": settings.get("spark.task.cpus", "1")}
    prefix = "spark.executorEnv."
    named = {name.removeprefix(prefix): value for name, value in settings.items() if name.startswith(prefix)}
    return {**usual, **named}


def _where(context: Any, profile: profiles.Profile | None) -> tuple[str, dict[str, str]]:
    """Return master and settings that a SparkContext will have, before it is created."""
    if context is None and profile is not None:
        return profile.master, profile.spark
    if context is None:  # under spark-submit the JVM has them
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
    attempt = SETTINGS.application_attempt
    if context is not None:
        from hopsml.cluster.driver.backends.spark import SparkBackend, application_attempt

        backend = SparkBackend(context, _messages.get(context.applicationId))
        attempt = max(attempt, application_attempt(context))
        shared_disk = context.master.startswith("local")
        hopsml_settings.use_name_of_spark(str(context.sparkUser()))
    else:
        from hopsml.cluster.driver.backends.local import LocalBackend

        backend = LocalBackend(profile.local_slots if profile else None)
        shared_disk = True
    source = source_of(context)
    coordinator = Coordinator(
        backend,
        keep_warm_s=keep_warm_s,
        lease_s=SETTINGS.lease_s,
        port_range=SETTINGS.port_range,
        sys_path=tuple(entry for entry in sys.path if entry) if shared_disk else (),
        zygote=zygote,
        allowed=_allowed,
        has_tokens=source is not None,
    )
    try:
        coordinator.start()
    except OSError as error:
        raise CoordinatorLost(f"the coordinator could not open its port: {error}") from error
    variables = dict(profile.environment) if profile else {}
    redact.register_settings(variables)
    redact.register_settings(dict(context.getConf().getAll()) if context is not None else {})
    earlier_runs = EarlierRuns(key, attempt, forgives=bool(SETTINGS.application_id))
    with coordinator.held_open():  # the first tokens may take long
        keeper = _keep_tokens(source, coordinator) if source is not None else None
    return Application(key, backend, coordinator, earlier_runs, variables, tokens=keeper)


def _keep_tokens(source: TokenSource, coordinator: Coordinator) -> TokenKeeper:
    """Start the keeper of a coordinator's tokens, or close the coordinator.

    Raises:
        CoordinatorLost: the tokens cannot be stored on this machine.
    """
    try:
        return keep_tokens(source, coordinator)
    except OSError as error:
        coordinator.close()
        raise CoordinatorLost(
            f"the delegation tokens of this application cannot be stored in {tempfile.gettempdir()} ({error}); free space "
            "there, or set TMPDIR to a folder on another disk"
        ) from error


def _active_context() -> Any:
    """Return the active SparkContext, or None; one of ours that Spark has stopped is stopped in Python too."""
    module = sys.modules.get("pyspark")
    context = module.SparkContext._active_spark_context if module is not None else None
    if context is None or context._jsc is None:
        return None
    if any(one is context for one in _own_contexts) and _was_stopped(context):
        context.stop()
        return None
    return context


def _spark_version(context: Any) -> str:
    """Return the version of the session's Spark; without a session, that of the pyspark that will create one."""
    if context is not None:
        return str(context.version)
    import pyspark

    return str(pyspark.__version__)


def _had_spark() -> bool:
    """Return True if a Spark session has been started in this process, by hopsml or by the user."""
    module = sys.modules.get("pyspark")
    return module is not None and getattr(module.SparkContext, "_gateway", None) is not None


def _was_stopped(context: Any) -> bool:
    """Return True if Spark has stopped it, as when its application is killed: Python's context does not notice it."""
    try:
        return bool(context._jsc.sc().isStopped())
    except Exception as error:  # noqa: BLE001 py4j's, if the JVM has exited: the backend requires a new process then
        log.debug("Spark does not say whether it is stopped: %s", error)
        return False


def _under_spark_submit() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _create_context(profile: profiles.Profile | None) -> Any:
    """Create a bare SparkContext: agents need no SQL session, without which the start takes two seconds less."""
    from pyspark import SparkConf, SparkContext

    from hopsml.cluster.driver.backends import spark_executors

    if profile is not None:
        _check_master(profile)
        _prepare_environment(profile)
    conf = SparkConf()
    if profile is not None:
        conf.setMaster(profile.master)
        for key, value in profile.settings().items():
            conf.set(key, value)
    if not conf.contains("spark.app.name"):
        conf.setAppName("hopsml")
    # The JVM's command line shows what anyone may read; the other settings are sent to the JVM when it runs.
    shown = SparkConf(loadDefaults=False).setAll(list(spark_command.split_hidden(dict(conf.getAll()))[0].items()))

    def make() -> Any:
        try:
            SparkContext._ensure_initialized(conf=shown)
        except Exception as error:  # PySpark raises various errors if its JVM does not start
            raise ClusterError(_jvm_failure(str(error), profile)) from error
        java = spark_start.java_version(f'version "{SparkContext._jvm.java.lang.System.getProperty("java.version")}"')
        if java is not None:
            check_java(java, _spark_version(None))
        messages = spark_executors.collect(SparkContext._jvm)  # before the first executor is granted
        try:
            context = SparkContext.getOrCreate(conf)
        except Exception as error:  # py4j and PySpark raise various errors
            raise ClusterError(_start_failure(str(error), profile)) from error
        _messages[context.applicationId] = messages
        return context

    context = _uninterrupted(make)
    _note_failures()
    _own_contexts.append(context)
    return context


def _check_master(profile: profiles.Profile) -> None:
    """Raise ClusterError if the profile's standalone master cannot be reached: Spark would report it after a minute."""
    source = spark_start.master_setting(profile)
    cause = spark_start.why_master_unreachable(profile.master, source, spark_start.MASTER_WAIT_S)
    if cause is not None:
        raise ClusterError(f"Spark could not start with profile {profile.name!r}: {cause[0]}. Remedy: {cause[1]}")


def _start_failure(text: str, profile: profiles.Profile | None) -> str:
    """Return the message about a SparkContext that could not be created, from the text of Spark's error."""
    lines = [line.strip(": \t") for line in text.splitlines() if not line.startswith(("\tat ", "An error occurred"))]
    cause = " ".join(line for line in lines[:2] if line)[:600] or "it gave no reason"
    place = "master and the settings under spark:" if profile is not None else "Spark settings of spark-submit"
    named = f" with profile {profile.name!r}" if profile is not None else ""
    return f"Spark could not start{named}: {cause.rstrip('.')}. Remedy: correct its {place}"


def _jvm_failure(text: str, profile: profiles.Profile | None) -> str:
    """Return the message about a JVM of Spark that did not start, from the text of PySpark's error and this machine."""
    import pyspark

    if profile is None:  # under spark-submit the JVM runs already
        return _start_failure(text, None)
    java, source = spark_start.find_java(), spark_start.master_setting(profile)
    cause = spark_start.why_jvm_fails(java, pyspark.__version__, profile.master, os.environ, source)
    if cause is None:
        first = next(iter(text.splitlines()), "") or "it gave no reason"
        cause = (
            first,
            (
                f"see the lines of Java before this error, and run `hopsml doctor --profile {profile.name}`, which checks "
                "Java and Spark"
            ),
        )
    return f"Spark could not start with profile {profile.name!r}: {cause[0].rstrip('.')}. Remedy: {cause[1]}"


def _uninterrupted(make: Callable[[], Any]) -> Any:
    """Return the SparkContext of ``make``; delay Ctrl-C during it until the context can be stopped in order.

    An interrupt during a call of the JVM would leave an incomplete context, and both would print pages about it. It
    runs on a thread, since the main one must be able to give up: on YARN the start may wait in a queue.
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
        while not made.done():  # with a timeout: a signal that another thread receives does not wake this one
            concurrent.futures.wait([made], 0.5)
        context = made.result()
    except KeyboardInterrupt:
        concurrent.futures.wait([made], _INTERRUPTED_START_S)
        if made.done() and made.exception() is None:
            made.result().setLogLevel("OFF")  # errors of executors that are just starting are of no interest
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


def release_after_interrupt() -> None:
    """Release idle agents of Spark: PySpark cancels its jobs on Ctrl-C, and the next run would get them."""
    for application in list(_applications.values()):
        if application.backend.restarts_agents:
            with contextlib.suppress(CoordinatorLost):
                application.coordinator.dismiss_idle("Ctrl-C cancels all of Spark's jobs")


def _stop(context: Any) -> None:
    """Stop a context that hopsml has created: stopped by the JVM's exit it logs a page of errors.

    After an uncaught exception Spark is stopped with exit code 1; otherwise YARN would list the application of a driver
    in client mode as SUCCEEDED.
    """
    if context._jsc is None:
        return
    _ignore_late_messages(context)
    if _failed:
        from py4j.protocol import Py4JError

        with contextlib.suppress(Py4JError):  # Spark 3.3 has no stop with an exit code
            context._jsc.sc().stop(1)
    context.stop()


def _ignore_late_messages(context: Any) -> None:
    """Turn off a logger of Spark's that logs a page for each message of an executor after the scheduler's stop."""
    with contextlib.suppress(Exception):  # the JVM may have exited, or use another logging library
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
    """Set the profile's variables that the user has not set, and remove those of an earlier profile."""
    for name, value in _profiles_variables.items():
        if os.environ.get(name) == value:
            del os.environ[name]
    _profiles_variables.clear()
    store = {"HOPSML_PROJECT_URL": profile.store} if profile.store else {}
    for name, value in {**store, **profile.environment}.items():
        if name not in os.environ:
            os.environ[name] = _profiles_variables[name] = value


def _identify(context: Any, profile: profiles.Profile | None) -> None:
    """Let this process know as whom Spark logs in by a keytab, without a ticket here, before there are any tokens.

    Args:
        context: the active SparkContext, or None.
        profile: profile with which one will be created; None under spark-submit, where the JVM has logged in.
    """
    if not hopsml_settings.is_kerberized() or hopsml_settings.SPARK_USER in os.environ:
        return
    if context is not None:
        hopsml_settings.use_name_of_spark(str(context.sparkUser()))
    elif profile is not None:
        name = hopsml_settings.short_name(str(profile.spark.get("spark.kerberos.principal") or ""))
        if name and "@" not in name:  # else Spark's JVM will know it
            hopsml_settings.use_name_of_spark(name)
    elif _under_spark_submit():
        from pyspark import SparkContext

        SparkContext._ensure_initialized()
        ugi = SparkContext._jvm.org.apache.hadoop.security.UserGroupInformation
        if ugi.isSecurityEnabled():
            hopsml_settings.use_name_of_spark(str(ugi.getCurrentUser().getShortUserName()))


def _prepare_environment(profile: profiles.Profile) -> None:
    """Set variables that the JVM reads at its start, unless the user has set them."""
    if profile.master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # executors share this disk, so this Python too
    if profile.master.startswith("local-cluster") and "SPARK_WORKER_DIR" not in os.environ:
        # Spark would create the executors' folders in its own installation.
        global _spark_folder
        _spark_folder = os.environ["SPARK_WORKER_DIR"] = tempfile.mkdtemp(prefix="hopsml-spark-")


def shutdown(spark: bool = False) -> None:
    """End all runs, release all agents and close the coordinators of this process; also called at its exit.

    Args:
        spark: stop the SparkContext as well if hopsml created it; a user's own continues.
    """
    with _lock:
        for application in list(_applications.values()):
            application.coordinator.close()
            for run in list(application.runs):
                run.join(timeout_s=30)  # its status.json is written by a thread that ends with the interpreter
            application.close_tokens()
        _applications.clear()
        LINK.close()  # bounded: what cannot be sent now is in the run directories
        while spark and _own_contexts:
            _stop(_own_contexts.pop())
        if spark and _spark_folder:
            shutil.rmtree(_spark_folder, ignore_errors=True)
    filesystem.close_all()


@atexit.register
def _at_the_end() -> None:
    """Call ``shutdown`` at exit; a second Ctrl-C skips it, and the remaining resources end with this process."""
    with contextlib.suppress(KeyboardInterrupt):
        shutdown(spark=True)


def spark(profile: str | None = None) -> SparkSession:
    """Return the Spark session on whose executors the verbs train: the existing one, else one of the profile.

        clicks = experiment.spark().read.parquet("hdfs:///data/clicks")
        experiment.collective_all_reduce(train, data={"clicks": clicks}, num_workers=4)

    Args:
        profile: name of a file in conf/, used if Spark has not started yet; by default that of HOPSML_PROFILE.

    Raises:
        ArgumentError: The profile has no Spark; otherwise the errors of Spark's start.
        ClusterError: The session would be one of Spark Connect.
    """
    set_profile_variables(profile)
    context = getattr(get_or_start(profile).backend, "context", None)
    if context is None:
        raise ArgumentError(
            "this profile runs without Spark (master: none); choose another one with profile= or HOPSML_PROFILE; "
            "`hopsml profiles` lists them"
        )
    spark_connect.check_session(
        spark_connect.find_connect()
    )  # with a context, too, the builder would create such a session
    from pyspark.sql import SparkSession

    found: SparkSession = SparkSession.builder.getOrCreate()  # of the existing context
    return found
