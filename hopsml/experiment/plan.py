"""From a checked call to a run: capture the function, claim the run directory, hand the group to the coordinator."""

from __future__ import annotations

import logging
import os
import pickle
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, cast

from hopsml import redact, settings, tracebacks
from hopsml.cluster import capture, gpus
from hopsml.cluster.formation import RunRequest
from hopsml.cluster.gang import GangSpec
from hopsml.cluster.layout import Roles, check_environment
from hopsml.cluster.preflight.gate import Mode
from hopsml.cluster.run_state import Change
from hopsml.errors import CoordinatorLost, NotEnoughSlots, PermissionRefused, QuotaExceeded
from hopsml.experiment import applications, arguments, mlflow, progress, taking_up
from hopsml.experiment.events_folder import EventsFolder
from hopsml.experiment.plain import as_json
from hopsml.experiment.run import Run
from hopsml.experiment.sign_of_life import SignOfLife
from hopsml.storage import cancel_request, job_record, privacy
from hopsml.storage.run_dir import RunDir, claim
from hopsml.storage.runs import find
from hopsml.tracking import record as run_record
from hopsml.tracking import seeds
from hopsml.tracking.mlflow.order import Group
from hopsml.tracking.recording import Recording
from hopsml.training import driver_log, lane, mlflow_run

HOOKS = ("hopsml.tracking.worker_record:attach", "hopsml.training.prepare:prepare")


@dataclass(frozen=True)
class Elastic:
    """A group that may change. Times are in seconds."""

    min_size: int
    reset_limit: int | None = None
    min_workers_timeout_s: float = 600.0
    heartbeat_timeout_s: float = 5.0
    progress_timeout_s: float | None = None
    host_failure_limit: int = 3
    host_cooldown_s: float = 60.0


@dataclass(frozen=True)
class LanesAsked:
    """A search: its workers carry trials out, one after another, each on its own; ``none``: it has no workers itself."""

    none: bool = False
    log_to_lane: bool = False  # what trials print goes to the lanes' logs as well
    trials: str = "trials"  # where the trials' folders are, below the run directory; "": directly in it
    directory: RunDir | None = None  # of the search that is continued; None: a new one
    facts: Mapping[str, Any] = field(default_factory=dict)  # for run.json
    before_status: Callable[[], None] = lambda: None  # what else must lie there before status.json


@dataclass(frozen=True)
class Member:
    """A run in a folder of another one: a distributed trial of a search, or one combination of a launch."""

    folder: str  # of all of them, below the directory of the whole
    directory: RunDir = field(default_factory=lambda: RunDir(""))
    run_id: str = ""  # distinct from those of other searches on this coordinator, and of its own earlier attempts
    config: Mapping[str, Any] = field(default_factory=dict)
    experiment: str = ""  # id of the whole, for ML_ID; "": its own
    recorded: bool = False  # with its own code and environment; else they are recorded with the whole


@dataclass(frozen=True)
class Plan:
    """A checked call; ``size`` None means one worker for each GPU or slot.

    A rerun has no ``function`` of this process: ``captured`` holds the bytes that run ``rerun_of`` shipped.
    """

    verb: str
    function: Callable[..., Any] | None
    arguments: dict[str, Any]
    name: str
    description: str
    size: int | None
    roles: Roles
    with_tf_config: bool
    merge_scope: int | str
    scoped_allocator: bool
    resume: str | None
    start_timeout_s: float
    keep_warm_s: float
    preload: tuple[str, ...] | None
    honour_environment: bool
    profile: str | None
    progress: bool
    environment: dict[str, str]
    local_logdir: bool
    metric_key: str | None
    checkpoint_every_s: float = 60.0
    elastic: Elastic | None = None
    lanes: LanesAsked | None = None
    member: Member | None = None
    captured: capture.Captured | None = None
    rerun_of: RunDir | None = None
    continues: str = ""  # URL of the run that this one takes up, whose driver is gone
    register_as: str | None = None  # name in MLflow's model registry
    group: Group | None = None  # the runs that MLflow shows below one
    preflight: Mode = "warn"  # what becomes of slots that are not good enough
    notes: tuple[str, ...] = ()  # what people are told when it begins


def start(plan: Plan) -> Run:
    """Start the run; raises before anything is started where the plan cannot be carried out."""
    return start_on(plan)[0]


def start_on(plan: Plan) -> tuple[Run, applications.Application]:
    """As ``start``; the application as well, on which it was started."""
    try:
        return _start_on(plan)
    except (PermissionRefused, QuotaExceeded) as error:  # the way there is nothing to a person either
        raise type(error)(f"{error}; HOPSML_PROJECT_URL says where runs are kept", error.path) from None
    except KeyboardInterrupt as interrupt:  # while Spark is starting, say: where in that is nothing to a person
        tracebacks.shortened(interrupt)
        raise


def _start_on(plan: Plan) -> tuple[Run, applications.Application]:
    check_environment({**os.environ, **plan.environment}, plan.honour_environment)
    tell = progress.teller() if plan.progress else None
    redact.register_settings(plan.environment)
    seed = seeds.choose(plan.environment, os.environ)
    captured = plan.captured or capture.capture(cast("Callable[..., Any]", plan.function), plan.arguments)
    store = settings.project_url()
    resume_url = find(plan.resume, store).url if plan.resume else ""
    application = applications.current(plan.profile, plan.keep_warm_s, _preload(plan, captured))
    size = _size(plan, application)
    record = _record(plan, captured, application, size, seed)
    # What a search goes on with is in its journal.
    searches = plan.lanes is not None or plan.member is not None
    continues = ("" if searches else application.earlier_runs.take(store, record)) or plan.continues
    record |= {"continues": continues, "resumed_from": resume_url}
    directory = _directory(plan, store, application, record)
    events = EventsFolder(directory)
    if continues:
        taking_up.end(continues, directory)
    further_fits = taking_up.further_fits(continues or resume_url)
    resume_url, resume_step = taking_up.standing(continues or resume_url)
    request = RunRequest(
        spec=_spec(plan, plan.member.run_id if plan.member is not None else directory.run_id, size),
        payload=captured.shipped if plan.lanes is None else _lane_payload(plan.lanes, captured, seed),
        run_url=directory.url,
        preload=_preload(plan, captured),
        roles=plan.roles,
        with_tf_config=plan.with_tf_config,
        resume_url=resume_url,
        resume_step=resume_step,
        resume_fits=further_fits,
        environment=_environment(plan, directory, seed, settings.mlflow_tracking_uri(application.environment)),
        hooks=HOOKS,
        merge_scope=plan.merge_scope,
        scoped_allocator=plan.scoped_allocator,
        storage_timeout_s=settings.storage_timeout_s(),
        checkpoint_every_s=plan.checkpoint_every_s,
        heartbeat_timeout_s=plan.elastic.heartbeat_timeout_s if plan.elastic else 10.0,
        preflight=plan.preflight,
    )
    run, application = _launch(plan, request, captured, directory, application, events)
    try:
        if tell is not None:
            run.observe(tell(run.state, plan.name, directory.url))
        if continues:
            where = f"the checkpoint of step {resume_step}" if resume_url else "the beginning: it had no checkpoint yet"
            run.state.publish(Change("note", text=f"goes on with {continues} from {where}"))
        unrecorded = f"the run cannot be repeated: {captured.unrecorded}" if captured.unrecorded else ""
        for text in [*plan.notes, application.passed_over(plan.profile), unrecorded, captured.large]:
            if text:
                run.state.publish(Change("note", text=text))
        mlflow.follow(run, record, application.environment, register_as=plan.register_as, group=plan.group)
    except BaseException:  # an interrupt: nobody will have the handle
        run.cancel("interrupted while it was being started")
        raise
    return run, application


def _directory(plan: Plan, store: str, application: applications.Application, record: Mapping[str, Any]) -> RunDir:
    """A new one, with its record; that of a search which is continued, as it is; the one that a trial was given."""
    if plan.member is not None:
        plan.member.directory.write_run(record)
        return plan.member.directory
    continued = plan.lanes.directory if plan.lanes is not None else None
    share = plan.environment.get(privacy.VARIABLE)
    directory = claim(store, application.id, record, share=share) if continued is None else continued
    if continued is not None:
        cancel_request.withdraw(continued)
    job_record.announce(directory, application.id)
    return directory


def _launch(
    plan: Plan,
    request: RunRequest,
    captured: capture.Captured,
    directory: RunDir,
    application: applications.Application,
    events: EventsFolder,
) -> tuple[Run, applications.Application]:
    try:
        state = application.coordinator.launch(request)
    except CoordinatorLost:  # it closed for idleness this very moment
        application = applications.current(plan.profile, plan.keep_warm_s, request.preload)
        state = application.coordinator.launch(request)
    coordinator, run_id = application.coordinator, request.spec.run_id
    recording = None
    if plan.member is None or plan.member.recorded:
        payload = None if captured.unrecorded else captured.payload
        recording = Recording(directory, payload, more=_facts(application), code_of=plan.rerun_of).start()
    run = Run(
        state,
        directory,
        lambda reason: coordinator.cancel(run_id, reason),
        resize=(lambda size: coordinator.resize(run_id, size)) if request.spec.elastic else None,
        limits=(request.spec.minimum, request.spec.size),
        tell=(lambda rank, data: coordinator.tell(run_id, rank, data)) if plan.lanes is None else None,
        metric_key=plan.metric_key,
        heeds_requests=plan.member is None,
        before_status=lambda: _before_status(plan, recording, events),
        merge_scope=plan.merge_scope,
        scoped_allocator=plan.scoped_allocator,
    )
    if plan.member is None and plan.lanes is None:
        SignOfLife(directory, state, partial(_taken, run)).start()
    application.runs.add(run)
    return run, application


def _taken(run: Run, successor: str) -> None:
    run.cancel(f"another driver has taken it up: it goes on in {successor}")


def _before_status(plan: Plan, recording: Recording | None, events: EventsFolder) -> None:
    events.wait()
    if plan.lanes is not None:
        plan.lanes.before_status()
    if recording is not None:
        recording.join()


def _lane_payload(lanes: LanesAsked, captured: capture.Captured, seed: int) -> bytes:
    """The function that every lane's worker calls, which hands the user's on as the bytes that it is."""
    options = {
        "payload": captured.shipped,
        "seed": seed,
        "log_to_lane": lanes.log_to_lane,
        "trials": lanes.trials,
        "storage_timeout_s": settings.storage_timeout_s(),
    }
    return pickle.dumps((lane.serve, options))


def _spec(plan: Plan, run_id: str, size: int) -> GangSpec:
    if plan.lanes is not None:
        return GangSpec(run_id=run_id, size=size, start_timeout_s=plan.start_timeout_s, independent=True)
    if plan.elastic is None:
        if plan.roles.evaluator:  # it waits for checkpoints, and does nothing meanwhile
            return GangSpec(run_id, size, start_timeout_s=plan.start_timeout_s, exited_s=None, returned_s=None)
        return GangSpec(run_id=run_id, size=size, start_timeout_s=plan.start_timeout_s)
    return GangSpec(
        run_id=run_id,
        size=size,
        min_size=min(plan.elastic.min_size, size),
        start_timeout_s=plan.start_timeout_s,
        reset_limit=plan.elastic.reset_limit,
        min_workers_timeout_s=plan.elastic.min_workers_timeout_s,
        progress_timeout_s=plan.elastic.progress_timeout_s,
        host_failure_limit=plan.elastic.host_failure_limit,
        cooldown_s=plan.elastic.host_cooldown_s,
        drain_s=settings.drain_s(),
    )


def _size(plan: Plan, application: applications.Application) -> int:
    capacity = application.backend.capacity()
    if plan.lanes is not None and plan.lanes.none:
        return 0
    size = plan.size or capacity.preferred
    if plan.lanes is not None and capacity.limit is not None:
        size = max(1, min(size, capacity.limit))  # fewer lanes take longer
    if plan.elastic is not None and capacity.limit is not None:
        # What such a cluster can never give is not asked for: the tasks would wait in front of other jobs for ever.
        size = max(min(size, capacity.limit), plan.elastic.min_size)
    if capacity.limit is not None and size > capacity.limit:
        raise NotEnoughSlots(
            f"num_workers={size}, but this cluster has at most {capacity.limit} slots ({capacity.setting}); "
            "ask for fewer workers, or raise that setting before the application starts"
        )
    if plan.roles.evaluator:
        arguments.check_evaluator(size)
    return size


def _preload(plan: Plan, captured: capture.Captured) -> tuple[str, ...]:
    return captured.preload if plan.preload is None else plan.preload


def _environment(plan: Plan, directory: RunDir, seed: int, mlflow_uri: str) -> dict[str, str]:
    """``mlflow_uri``: where the run is tracked; what its workers log goes there as well, unless the user has said where."""
    of_mlflow = {}
    if mlflow_uri and plan.lanes is None and mlflow_run.VARIABLE not in plan.environment:
        of_mlflow = {"MLFLOW_TRACKING_URI": mlflow_uri, mlflow_run.WANTED: "1"}
    variables = {
        **of_mlflow,
        "ML_ID": (plan.member.experiment if plan.member is not None else "")
        or directory.run_id,  # the predecessor's name
        "HOPSML_RUN_ID": directory.run_id,
        "HOPSML_PROJECT_URL": settings.project_url(),
        settings.SYSTEM_METRICS: str(settings.system_metrics_s()),
        driver_log.VARIABLE: driver_log.of(logging.getLogger()),
        **plan.environment,
        seeds.VARIABLE: str(seed),
    }
    if plan.honour_environment:
        variables["HOPSML_HONOUR_ENVIRONMENT"] = "1"
    if plan.local_logdir:
        variables[settings.LOCAL_LOGDIR] = "1"
    return variables


def _record(
    plan: Plan, captured: capture.Captured, application: applications.Application, size: int, seed: int
) -> dict[str, Any]:
    """``run.json``: what ``experiment.rerun`` needs to build the same plan again stands under ``options``."""
    record = {
        "verb": plan.verb,
        "name": plan.name,
        "description": plan.description,
        "function": captured.name,
        "source": captured.source,
        "code_sha256": captured.code_sha256,
        "payload_sha256": captured.sha256,
        "payload_bytes": len(captured.payload),
        "arguments": redact.arguments(as_json(plan.arguments if plan.member is None else dict(plan.member.config))),
        "workers": size,
        "merge_scope": plan.merge_scope,
        "scoped_allocator": plan.scoped_allocator,
        "resume": plan.resume,
        "seed": seed,
        "options": {
            "evaluator": plan.roles.evaluator,
            "with_tf_config": plan.with_tf_config,
            "start_timeout_s": plan.start_timeout_s,
            "keep_warm_s": plan.keep_warm_s,
            "preload": list(_preload(plan, captured)),
            "own_imports": list(captured.own_imports),
            "honour_environment": plan.honour_environment,
            "environment": redact.settings(
                {name: value for name, value in plan.environment.items() if name != seeds.VARIABLE}
            ),
            "local_logdir": plan.local_logdir,
            "metric_key": plan.metric_key,
            "checkpoint_every_s": plan.checkpoint_every_s,
            "elastic": asdict(plan.elastic) if plan.elastic is not None else None,
            "register_as": plan.register_as,
            "preflight": plan.preflight,
        },
        "secrets": [one.facts() for one in captured.secrets],
        "unrecorded": captured.unrecorded,
        "rerun_of": plan.rerun_of.url if plan.rerun_of is not None else None,
        "profile": plan.profile or os.environ.get("HOPSML_PROFILE"),
        "backend": application.backend.name,
        "application": application.id,
        "attempt": application.earlier_runs.attempt,
        "user": settings.project_name(),
        "driver": platform.node(),
        **run_record.of_driver(),
        **(plan.lanes.facts if plan.lanes is not None else {}),
    }
    cleaned: dict[str, Any] = redact.record(record)
    return cleaned


def record_of_several(
    plan: Plan, application: applications.Application, count: int, table: Mapping[str, Any]
) -> dict[str, Any]:
    """``run.json`` of the whole of which runs with such plans are the members; ``table``: the arguments of them all."""
    captured = plan.captured or capture.capture(cast("Callable[..., Any]", plan.function), plan.arguments)
    record = _record(plan, captured, application, count, seeds.choose(plan.environment, os.environ))
    return {**record, "arguments": redact.arguments(as_json(dict(table)))}


def _facts(application: applications.Application) -> dict[str, Callable[[], Any]]:
    """What only the layers above know of the environment; computed while the run is under way."""
    context = getattr(application.backend, "context", None)
    facts: dict[str, Callable[[], Any]] = {"driver_gpus": lambda: [asdict(gpu) for gpu in gpus.host_gpus()]}
    if context is not None:
        facts["spark"] = lambda: {
            "version": context.version,
            "master": context.master,
            "settings": redact.settings(dict(context.getConf().getAll())),
        }
    return facts
