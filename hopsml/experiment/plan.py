"""From a checked call to a run: capture the function, claim the run directory, hand the group to the coordinator."""

from __future__ import annotations

import os
import pickle
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from hopsml import settings
from hopsml.cluster import capture, gpus
from hopsml.cluster.formation import RunRequest
from hopsml.cluster.gang import GangSpec
from hopsml.cluster.layout import Roles, check_environment
from hopsml.cluster.preflight.gate import Mode
from hopsml.cluster.run_state import Change
from hopsml.errors import CoordinatorLost, NotEnoughSlots
from hopsml.experiment import applications, arguments, mlflow, progress, taking_up
from hopsml.experiment.plain import as_json
from hopsml.experiment.run import Run
from hopsml.storage import job_record
from hopsml.storage.run_dir import RunDir, claim
from hopsml.storage.runs import find
from hopsml.tracking import record as run_record
from hopsml.tracking import redact, seeds
from hopsml.tracking.mlflow.order import Group
from hopsml.tracking.recording import Recording
from hopsml.training import lane

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
    """A distributed trial of a search: a run in a folder of the search's, which is recorded with the search."""

    folder: str  # of all trials, below the search's directory
    directory: RunDir = field(default_factory=lambda: RunDir(""))
    run_id: str = ""  # distinct from those of other searches on this coordinator, and of its own earlier attempts
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """A checked call; ``size`` None means one worker for each executor.

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


def start(plan: Plan) -> Run:
    """Start the run; raises before anything is started where the plan cannot be carried out."""
    return start_on(plan)[0]


def start_on(plan: Plan) -> tuple[Run, applications.Application]:
    """As ``start``; the application as well, on which it was started."""
    check_environment(os.environ, plan.honour_environment)
    tell = progress.teller() if plan.progress else None
    seed = seeds.choose(plan.environment, os.environ)
    captured = plan.captured or capture.capture(cast("Callable[..., Any]", plan.function), plan.arguments)
    store = settings.project_url()
    resume_url = find(plan.resume, store).url if plan.resume else ""
    application = applications.current(plan.profile, plan.keep_warm_s, _preload(plan, captured))
    size = _size(plan, application)
    record = _record(plan, captured, application, size, seed)
    # What a search goes on with is in its journal.
    searches = plan.lanes is not None or plan.member is not None
    continues = "" if searches else application.earlier_runs.take(store, record) or plan.continues
    record |= {"continues": continues, "resumed_from": resume_url}
    directory = _directory(plan, store, application, record)
    if continues:
        taking_up.end(continues, directory)
    resume_url, resume_step = taking_up.standing(continues or resume_url)
    request = RunRequest(
        spec=_spec(plan, plan.member.run_id if plan.member is not None else directory.run_id, size),
        payload=captured.payload if plan.lanes is None else _lane_payload(plan.lanes, captured, seed),
        run_url=directory.url,
        preload=_preload(plan, captured),
        roles=plan.roles,
        with_tf_config=plan.with_tf_config,
        resume_url=resume_url,
        resume_step=resume_step,
        environment=_environment(plan, directory, seed),
        hooks=HOOKS,
        merge_scope=plan.merge_scope,
        scoped_allocator=plan.scoped_allocator,
        storage_timeout_s=settings.storage_timeout_s(),
        local_logdir=plan.local_logdir,
        checkpoint_every_s=plan.checkpoint_every_s,
        heartbeat_timeout_s=plan.elastic.heartbeat_timeout_s if plan.elastic else 10.0,
        preflight=plan.preflight,
    )
    run, application = _launch(plan, request, captured, directory, application)
    try:
        if tell is not None:
            run.observe(tell(run.state, plan.name, directory.url))
        if continues:
            where = f"the checkpoint of step {resume_step}" if resume_url else "the beginning: it had no checkpoint yet"
            run.state.publish(Change("note", text=f"goes on with {continues} from {where}"))
        if captured.large:
            run.state.publish(Change("note", text=captured.large))
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
    directory = claim(store, application.id, record) if continued is None else continued
    job_record.announce(directory, application.id)
    return directory


def _launch(
    plan: Plan,
    request: RunRequest,
    captured: capture.Captured,
    directory: RunDir,
    application: applications.Application,
) -> tuple[Run, applications.Application]:
    try:
        state = application.coordinator.launch(request)
    except CoordinatorLost:  # it closed for idleness this very moment
        application = applications.current(plan.profile, plan.keep_warm_s, request.preload)
        state = application.coordinator.launch(request)
    coordinator, run_id = application.coordinator, request.spec.run_id
    recording = None
    if plan.member is None:
        recording = Recording(directory, captured.payload, more=_facts(application), code_of=plan.rerun_of).start()
    run = Run(
        state,
        directory,
        lambda reason: coordinator.cancel(run_id, reason),
        resize=(lambda size: coordinator.resize(run_id, size)) if request.spec.elastic else None,
        limits=(request.spec.minimum, request.spec.size),
        tell=(lambda rank, data: coordinator.tell(run_id, rank, data)) if plan.lanes is None else None,
        metric_key=plan.metric_key,
        before_status=lambda: _before_status(plan, recording),
        merge_scope=plan.merge_scope,
        scoped_allocator=plan.scoped_allocator,
    )
    application.runs.add(run)
    return run, application


def _before_status(plan: Plan, recording: Recording | None) -> None:
    if plan.lanes is not None:
        plan.lanes.before_status()
    if recording is not None:
        recording.join()


def _lane_payload(lanes: LanesAsked, captured: capture.Captured, seed: int) -> bytes:
    """The function that every lane's worker calls, which hands the user's on as the bytes that it is."""
    options = {
        "payload": captured.payload,
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


def _environment(plan: Plan, directory: RunDir, seed: int) -> dict[str, str]:
    variables = {
        "ML_ID": directory.run_id,  # the predecessor's name for it
        "HOPSML_RUN_ID": directory.run_id,
        "HOPSML_PROJECT_URL": settings.project_url(),
        settings.SYSTEM_METRICS: str(settings.system_metrics_s()),
        **plan.environment,
        seeds.VARIABLE: str(seed),
    }
    if plan.honour_environment:
        variables["HOPSML_HONOUR_ENVIRONMENT"] = "1"
    return variables


def _record(
    plan: Plan, captured: capture.Captured, application: applications.Application, size: int, seed: int
) -> dict[str, Any]:
    """``run.json``: what ``experiment.rerun`` needs to build the same plan again stands under ``options``."""
    return {
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
        },
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
