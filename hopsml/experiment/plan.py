"""Start of a run from a checked call: capture the function, create the run directory, call the coordinator."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import platform
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from msgspec.structs import asdict, replace

from hopsml.cluster.driver import capture
from hopsml.cluster.driver.active_run import RunRequest
from hopsml.cluster.driver.run_state import Change, Observer, RunState
from hopsml.cluster.forking.fork_server import preload_order
from hopsml.cluster.shared import gpus
from hopsml.cluster.shared.layout import check_environment
from hopsml.cluster.shared.plain import argument_as_json
from hopsml.cluster.shared.protocol import Resume
from hopsml.cluster.shared.spec import (
    AS_MANY_AS_THERE_ARE,
    ONLY_HOPSMLS_ENCRYPTS,
    AnyGroup,
    Communication,
    Roles,
    RunSpec,
    spec_record,
)
from hopsml.cluster.worker import context as worker_context
from hopsml.core import redact, settings, tracebacks
from hopsml.core.callbacks import nonblocking_logger
from hopsml.core.variables import SETTINGS, Settings
from hopsml.errors import (
    ArgumentError,
    CoordinatorLost,
    EnvironmentConflict,
    HopsmlError,
    NotEnoughSlots,
    PermissionRefused,
    QuotaExceeded,
)
from hopsml.experiment import applications, frame_feed, progress, reporting, takeover, tuned, verbs
from hopsml.experiment.run import Run
from hopsml.experiment.run_role import StandaloneRun
from hopsml.experiment.takeover import SignOfLife
from hopsml.storage import urls
from hopsml.storage.filesystem import for_url
from hopsml.storage.run_dir import RunDir
from hopsml.tracking import inputs, named_runs
from hopsml.tracking import record as run_record
from hopsml.tracking.mlflow.order import RunGroup
from hopsml.tracking.record import RunRecordWriter
from hopsml.training import prepare

HOOKS = (
    "hopsml.tracking.inputs:start_recording", "hopsml.tracking.provenance:record_worker", "hopsml.training.prepare:prepare",
)  # fmt: skip

# Imports of a framework's workers in addition to the function's own. Torch's first step would import 820 modules more.
FRAMEWORK_MODULES = {"torch": ("torch", "torch._dynamo", "torch.distributed.tensor"), "jax": ("jax",)}

_OF_DRIVER = (
    Settings.cores.name,
    Settings.port_range.name,
    Settings.traceback.name,
)  # variables that workers take over

logger = nonblocking_logger(__name__)


@dataclass(frozen=True)
class Plan:
    """A checked call: the run's specification, and the objects that exist only in this process.

    A rerun has no ``function`` in this process: ``captured`` holds the bytes that run ``rerun_of`` sent to its workers.
    """

    spec: RunSpec
    function: Callable[..., Any] | None
    arguments: dict[str, Any]
    profile: str | None = None
    progress: bool = True
    standing: StandaloneRun = field(default_factory=StandaloneRun)
    captured: capture.Captured | None = None
    rerun_of: RunDir | None = None
    continues: str = ""  # URL of the run that this one continues because its driver failed
    siblings: RunGroup | None = None  # the runs that MLflow shows below one parent
    notes: tuple[str, ...] = ()  # notes published when the run begins
    frames: Mapping[str, Any] = field(default_factory=dict)  # DataFrames by the function's arguments
    resources: Sequence[str] = ()  # paths of files that are copied into the run directory


def start(plan: Plan) -> Run:
    """Start the run and return its handle; raises before anything is started if the plan cannot be carried out."""
    return start_with_application(plan)[0]


def _check_environment(environ: Mapping[str, str], honour: bool) -> None:
    """Check the environment by ``layout.check_environment``; in a worker, raise an error that names the worker."""
    try:
        check_environment(environ, honour)
    except EnvironmentConflict:
        worker = worker_context.current()
        if worker is None:
            raise
        raise EnvironmentConflict(
            f"this is rank {worker.rank} of run {worker.run_id} already, which calls the training function, or the "
            "program of hopsml submit --framework: call the verb in a driver, outside of the training function, or "
            "pass honour_environment=True for a separate run in this worker"
        ) from None


def start_with_application(plan: Plan) -> tuple[Run, applications.Application]:
    """Start the run and return its handle, with the application on which it was started."""
    try:
        return _start_on(plan)
    except (PermissionRefused, QuotaExceeded) as error:  # the traceback through storage code has no useful information
        raise type(error)(f"{error}; HOPSML_PROJECT_URL sets the folder for runs", error.path) from None
    except KeyboardInterrupt as interrupt:  # for instance while Spark starts: that traceback has no useful information
        tracebacks.shortened(interrupt)
        raise


def _start_on(plan: Plan) -> tuple[Run, applications.Application]:
    spec = plan.spec
    applications.set_profile_variables(plan.profile)
    _check_environment({**os.environ, **spec.environment}, spec.honour_environment)
    Settings({**os.environ, **spec.environment}).check([Settings.cores.name, *spec.environment])
    tell = progress.run_observer_maker() if plan.progress else None
    redact.register_settings(spec.environment)
    captured = plan.captured or capture.capture(cast("Callable[..., Any]", plan.function), plan.arguments)
    spec = _settled(spec, captured)
    _refuse_plaintext(spec)
    store = settings.project_url()
    resources = inputs.resource_urls(plan.resources)
    resume_url = named_runs.find(spec.resume, store).url if spec.resume else ""
    application = applications.get_or_start(plan.profile, spec.keep_warm_s, spec.modules)
    group, bare, alike = _group(spec, application)
    spec = replace(spec, group=group)
    applications.check_open_files(spec.group.size)
    frame_feed.check_feed(spec.frames, plan.frames, application, spec.group.size)
    communication, as_tuned = spec.communication, ""
    if plan.rerun_of is None:  # the original's specification contains its tuned settings
        communication, as_tuned = tuned.with_tuned_settings(communication, captured.name, spec.group.size)
    spec = replace(spec, communication=communication)
    record = _record(plan, spec, captured, application)
    # A continued search reads its state from its event log, so only standalone runs look up an earlier attempt.
    continues = (
        application.earlier_runs.reserve_run_to_continue(store, record) if plan.standing.whole else ""
    ) or plan.continues
    record |= {"continues": continues, "resumed_from": resume_url, **({"resources": resources} if resources else {})}
    directory = plan.standing.create_directory(spec, store, application.id, record)
    events = EventsFolderCreator(directory)
    try:
        if continues:
            takeover.hand_over_run(continues, directory)
        inputs.copy_resources(resources, directory.url)
        begins = Resume(
            *takeover.checkpoint_of(continues or resume_url), takeover.later_fit_checkpoints(continues or resume_url)
        )
        run_id = plan.standing.run_id(directory)
        travels = replace(spec, environment=_environment(plan, spec, directory, application))
        trace = reporting.begin_trace(run_id, spec.group.size)
        request = RunRequest(
            run_id=run_id,
            spec=trace.spec_with_trace(travels) if trace is not None else travels,
            payload=plan.standing.payload(captured, spec),
            run_url=directory.url,
            resume=begins,
            bare=bare,
        )
        watchers = [trace.on_change] if trace is not None else []
        run, application = _start_run(plan, request, captured, directory, application, events, tell, watchers)
    except BaseException as error:
        takeover.record_failed_start(continues, directory, error)
        raise
    try:
        if continues:
            where = (
                f"the checkpoint of step {begins.step}"
                if begins.url
                else "the beginning, since it has no checkpoint yet"
            )
            _note(run, f"continues {continues} from {where}")
        unrecorded = f"the run cannot be repeated: {captured.unrecorded}" if captured.unrecorded else ""
        _note(
            run,
            *plan.notes,
            alike,
            as_tuned,
            application.other_application_note(plan.profile),
            unrecorded,
            captured.large,
        )
        _note(run, application.tokens.notice if application.tokens is not None else "")
        reporting.track_in_mlflow(
            run, record, application.environment, register_as=spec.register_as, group=plan.siblings
        )
    except BaseException:  # an interrupt: no caller will have the handle
        with contextlib.suppress(CoordinatorLost):
            application.coordinator.cancel(request.run_id, "interrupted while it was being started")
        raise
    return run, application


def _settled(spec: RunSpec, captured: capture.Captured) -> RunSpec:
    """Return the specification with the values that the driver chooses without looking at the cluster."""
    retry_s = SETTINGS.storage_retry_s
    return replace(
        spec,
        seed=inputs.choose_seed(spec.environment, os.environ) if spec.seed is None else spec.seed,
        preload=modules_of(spec, captured.preload) if spec.preload is None else spec.preload,
        storage_timeout_s=SETTINGS.storage_timeout_s,
        communication=with_required_encryption(spec.communication),
        group=replace(spec.group, flush_s=max(spec.group.flush_s, retry_s), retry_s=retry_s),
        hooks=HOOKS,
    )


def _refuse_plaintext(spec: RunSpec) -> None:
    """Raise ArgumentError if encryption is required, but the framework bypasses hopsml's collective."""
    plain = "JAX's collectives" if spec.framework == "jax" else "TensorFlow's servers" if spec.group.relaunches else ""
    if plain and spec.communication.encryption and spec.group.size != 1:
        raise ArgumentError(
            f"experiment.{spec.verb} with encryption ({Settings.encryption.name}=1 requests it for all runs), but "
            f"{plain} send in plain text; {ONLY_HOPSMLS_ENCRYPTS}: experiment.collective_all_reduce or "
            "experiment.torch take it"
        )


def with_required_encryption(communication: Communication) -> Communication:
    """Return the settings with encryption turned on if it is required in all runs.

    Raises:
        ArgumentError: The settings select a collective that cannot encrypt.
    """
    return replace(communication, encryption=communication.encryption or SETTINGS.encryption)


def modules_of(spec: RunSpec, of_function: tuple[str, ...]) -> tuple[str, ...]:
    """Return the modules to import before workers are forked, unless the call specifies them."""
    # Parameter servers import TensorFlow, whatever the function does.
    of_servers = ("tensorflow",) if spec.group.relaunches and spec.framework == "tensorflow" else ()
    return preload_order((*of_function, *FRAMEWORK_MODULES.get(spec.framework, ()), *of_servers))


def _note(run: Run, *texts: str) -> None:
    """Publish each text that is not empty as a note of the run."""
    for text in filter(None, texts):
        run.state.publish(Change("note", text=text))


def _start_run(
    plan: Plan,
    request: RunRequest,
    captured: capture.Captured,
    directory: RunDir,
    application: applications.Application,
    events: EventsFolderCreator,
    tell: Callable[[RunState, str, str], Observer] | None,
    watchers: Sequence[Observer],
) -> tuple[Run, applications.Application]:
    spec, standing = request.spec, plan.standing

    def observe(state: RunState) -> None:
        for watcher in watchers:
            state.observe(watcher)
        if tell is not None:  # observe before the launch: a short run prints all its lines while a display is made
            state.observe(tell(state, spec.name, directory.url))

    try:
        state = frame_feed.start_run(application, request, observe, plan.frames)
    except CoordinatorLost:  # it closed for idleness at this moment
        application = applications.get_or_start(plan.profile, spec.keep_warm_s, spec.modules)
        with application.coordinator.held_open():
            state = frame_feed.start_run(application, request, observe, plan.frames)
    coordinator, run_id = application.coordinator, request.run_id
    recording = None
    if standing.recorded:
        payload = None if captured.unrecorded else captured.payload
        recording = RunRecordWriter(directory, payload, more=_facts(application), code_of=plan.rerun_of).start()
    run = Run(
        state,
        directory,
        lambda reason: coordinator.cancel(run_id, reason),
        resize=(lambda size: coordinator.resize(run_id, size))
        if spec.group.regroups and spec.evaluation is None
        else None,
        limits=(spec.group.minimum, spec.group.size),
        tell=(lambda rank, data: coordinator.send_to_worker(run_id, rank, data)) if standing.trains else None,
        servers=range(1, spec.group.size - int(spec.roles.evaluator)) if spec.group.relaunches else (),
        metric_key=spec.metric_key,
        heeds_requests=standing.heeds_requests,
        profile=partial(coordinator.request_stack_profile, run_id),
        before_status=lambda: _before_status(recording, events),
        name=spec.name,
        given_ring_order=list(spec.ring_order),
        **asdict(spec.communication),
    )
    if standing.gives_signs:
        sign = SignOfLife(directory, state, partial(_taken, run))
        run.while_storing(sign.give)
        sign.start()
    application.runs.add(run)
    return run, application


def _taken(run: Run, successor: str) -> None:
    run.cancel(f"another driver has continued it in {successor}")


def _before_status(recording: RunRecordWriter | None, events: EventsFolderCreator) -> None:
    events.wait()
    if recording is not None:
        recording.join()


class EventsFolderCreator:
    """Folder for event files on remote storage, created on a thread while agents start.

    The start of the run does not wait for the storage. In a local run directory workers create the folder. A refusal by
    the storage is only logged: what workers write there creates the folder as well.
    """

    def __init__(self, directory: RunDir) -> None:
        self._directory = directory
        self._thread: threading.Thread | None = None
        if urls.split(directory.url)[0] not in ("", "file"):
            self._thread = threading.Thread(target=self._make, name=f"hopsml-events-{directory.run_id}", daemon=True)
            self._thread.start()

    def _make(self) -> None:
        try:
            for_url(self._directory.events).make_dirs(self._directory.events)
        except (HopsmlError, OSError) as error:
            logger.warning("the folder %s was not created: %s", self._directory.events, error)

    def wait(self) -> None:
        """Wait until the folder has been created or refused; the storage timeout bounds the time."""
        if self._thread is not None:
            self._thread.join()


def _group(spec: RunSpec, application: applications.Application) -> tuple[AnyGroup, int, str]:
    """Return the group with its size limited by the cluster's capacity, its number of bare members, and a note.

    Bare members need no GPU; their number is 0 if the cluster's agents are all alike. The note reports GPUs
    that such members hold in this case, and is "" otherwise.

    Raises:
        NotEnoughSlots: The cluster can never have as many slots.
        ArgumentError: There are too few workers for an evaluator.
    """
    capacity, group = application.backend.capacity(), spec.group
    bare = spec.roles.without_gpu if capacity.bare != 0 else 0
    if group.size == AS_MANY_AS_THERE_ARE:
        size = capacity.default_agents(bare)
        most = frame_feed.max_workers(capacity) if spec.frames else None
        group = replace(group, size=min(size, most) if most else size)
    if capacity.limit is not None:
        group = replace(group, size=group.size_within(capacity.limit + bare))
    if lacking := capacity.why_too_small(group.size, bare):
        raise NotEnoughSlots(
            f"{_size_text(group, spec.roles)}, but {lacking} ({capacity.setting}); "
            + _more_slots(group.size, bool(SETTINGS.job_tag), capacity.how_to_enlarge)
        )
    if group.relaunches:
        verbs.check_servers(group.size, spec.roles)
    elif spec.roles.evaluator:
        verbs.check_evaluator(group.size)
    alike = f"{spec.roles.without_gpu} GPUs are assigned to members that need none: {capacity.alike}"
    return group, bare, alike if capacity.alike and spec.roles.without_gpu else ""


def _more_slots(size: int, is_job: bool, how_to_enlarge: str) -> str:
    """Return the remedy for too few slots; of a job's driver, how the job requests ``size`` slots."""
    if not is_job:
        return f"request fewer workers, or {how_to_enlarge} before the application starts"
    return (
        f"the job has requested fewer than {size}: start it with `hopsml jobs run --workers {size}`, or with "
        f"`count: {size}` for the task in its job file"
    )


def _size_text(group: AnyGroup, roles: Roles) -> str:
    """Return a description of the number of slots that the call requests, for an error message."""
    if group.regroups:  # its size is limited to the cluster's, but not below min_workers
        return f"min_workers={group.minimum}"
    if not group.relaunches:
        return f"num_workers={group.size}"
    workers = group.size - 1 - roles.parameter_servers - int(roles.evaluator)
    evaluator = " and the evaluator" if roles.evaluator else ""
    return f"num_workers={workers}, num_ps={roles.parameter_servers}, the chief{evaluator}: {group.size} slots"


def _environment(plan: Plan, spec: RunSpec, directory: RunDir, application: applications.Application) -> dict[str, str]:
    """Return the workers' variables; MLflow's point to where the run is tracked, unless the user has set them."""
    of_mlflow, mlflow_uri = {}, settings.mlflow_tracking_uri(application.environment)
    if mlflow_uri and plan.standing.trains and prepare.MLFLOW_VARIABLE not in spec.environment:
        of_mlflow = {"MLFLOW_TRACKING_URI": mlflow_uri, prepare.MLFLOW_WANTED: "1"}
    return {
        **of_mlflow,
        "ML_ID": plan.standing.experiment_id(directory),  # the predecessor's variable
        "HOPSML_RUN_ID": directory.run_id,
        "HOPSML_PROJECT_URL": settings.project_url(),
        Settings.system_metrics_s.name: str(SETTINGS.system_metrics_s),
        Settings.keepalive_s.name: str(SETTINGS.keepalive_s),
        prepare.LOGGING: prepare.describe_logging(logging.getLogger()),
        **{name: os.environ[name] for name in _OF_DRIVER if name in os.environ},
        **spec.environment,
        inputs.SEED_VARIABLE: str(spec.seed),
        **({Settings.local_logdir.name: "1"} if spec.local_logdir else {}),
    }


def _record(
    plan: Plan, spec: RunSpec, captured: capture.Captured, application: applications.Application
) -> dict[str, Any]:
    """Return the content of ``run.json``.

    ``experiment.rerun`` builds the same plan from its entry ``spec``; the entries above are those most often looked up.
    """
    variables = {name: value for name, value in spec.environment.items() if name != inputs.SEED_VARIABLE}
    record = {
        "verb": spec.verb,
        "name": spec.name,
        "description": spec.description,
        "function": captured.name,
        "source": captured.source,
        "code_sha256": captured.code_sha256,
        "payload_sha256": captured.sha256,
        "payload_bytes": len(captured.payload),
        "own_imports": list(captured.own_imports),
        "arguments": redact.arguments(argument_as_json(plan.standing.arguments(plan.arguments))),
        "workers": spec.group.size,
        "seed": spec.seed,
        "spec": {**spec_record(spec), "environment": redact.settings(variables)},
        "secrets": [one.facts() for one in captured.secrets],
        "unrecorded": captured.unrecorded,
        "rerun_of": plan.rerun_of.url if plan.rerun_of is not None else None,
        "profile": plan.profile or (SETTINGS.profile or None),
        "backend": application.backend.name,
        "application": application.id,
        "attempt": application.earlier_runs.attempt,
        "user": settings.project_name(),
        "driver": platform.node(),
        **run_record.driver_record(),
        **plan.standing.record_entries(),
    }
    cleaned: dict[str, Any] = redact.record(record)
    return cleaned


def launch_record(
    plan: Plan, application: applications.Application, count: int, table: Mapping[str, Any]
) -> dict[str, Any]:
    """Return ``run.json`` of a launch as a whole.

    Args:
        plan: plan of one of its runs.
        application: application on which they run.
        count: number of the runs.
        table: arguments of all of them, as lists by name.
    """
    captured = plan.captured or capture.capture(cast("Callable[..., Any]", plan.function), plan.arguments)
    spec = replace(_settled(plan.spec, captured), group=replace(plan.spec.group, size=count))
    record = _record(plan, spec, captured, application)
    return {**record, "arguments": redact.arguments(argument_as_json(dict(table)))}


def _facts(application: applications.Application) -> dict[str, Callable[[], Any]]:
    """Return functions that compute facts of driver and Spark for the run record, called during the run."""
    context = getattr(application.backend, "context", None)
    facts: dict[str, Callable[[], Any]] = {"driver_gpus": lambda: [dataclasses.asdict(gpu) for gpu in gpus.host_gpus()]}
    if context is not None:
        facts["spark"] = lambda: {
            "version": context.version,
            "master": context.master,
            "settings": redact.settings(dict(context.getConf().getAll())),
        }
    return facts
