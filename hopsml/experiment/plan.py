"""From a checked call to a run: capture the function, claim the run directory, hand the group to the coordinator."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hopsml import settings
from hopsml.cluster import capture
from hopsml.cluster.coordinator import RunRequest
from hopsml.cluster.gang import GangSpec
from hopsml.cluster.layout import Roles, check_environment
from hopsml.errors import CoordinatorLost, NotEnoughSlots
from hopsml.experiment import applications, arguments
from hopsml.experiment.progress import LineProgress
from hopsml.experiment.result import as_json
from hopsml.experiment.run import Run
from hopsml.storage.run_dir import RunDir, claim
from hopsml.storage.runs import find

HOOKS = ("hopsml.training.prepare:prepare",)


@dataclass(frozen=True)
class Plan:
    """A checked call; ``size`` None means one worker for each executor."""

    verb: str
    function: Callable[..., Any]
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


def start(plan: Plan) -> Run:
    """Start the run; raises before anything is started where the plan cannot be carried out."""
    check_environment(os.environ, plan.honour_environment)
    captured = capture.capture(plan.function, plan.arguments)
    store = settings.project_url()
    resume_url = find(plan.resume, store).url if plan.resume else ""
    application = applications.current(plan.profile, plan.keep_warm_s)
    size = _size(plan, application)
    directory = claim(store, application.id, _record(plan, captured, application, size))
    request = RunRequest(
        spec=GangSpec(run_id=directory.run_id, size=size, start_timeout_s=plan.start_timeout_s),
        payload=captured.payload,
        run_url=directory.url,
        preload=captured.preload if plan.preload is None else plan.preload,
        roles=plan.roles,
        with_tf_config=plan.with_tf_config,
        resume_url=resume_url,
        environment=_environment(plan, directory),
        hooks=HOOKS,
        merge_scope=plan.merge_scope,
        scoped_allocator=plan.scoped_allocator,
        storage_timeout_s=settings.storage_timeout_s(),
        local_logdir=plan.local_logdir,
    )
    return _launch(plan, request, directory, application)


def _launch(plan: Plan, request: RunRequest, directory: RunDir, application: applications.Application) -> Run:
    try:
        state = application.coordinator.launch(request)
    except CoordinatorLost:  # it closed for idleness this very moment
        application = applications.current(plan.profile, plan.keep_warm_s)
        state = application.coordinator.launch(request)
    coordinator, run_id = application.coordinator, request.spec.run_id
    run = Run(
        state,
        directory,
        lambda reason: coordinator.cancel(run_id, reason),
        metric_key=plan.metric_key,
        merge_scope=plan.merge_scope,
        scoped_allocator=plan.scoped_allocator,
    )
    application.runs.add(run)
    if plan.progress:
        run.observe(LineProgress(run_id))
    return run


def _size(plan: Plan, application: applications.Application) -> int:
    capacity = application.backend.capacity()
    size = plan.size or capacity.preferred
    if capacity.limit is not None and size > capacity.limit:
        raise NotEnoughSlots(
            f"num_workers={size}, but this cluster has at most {capacity.limit} slots ({capacity.setting}); "
            "ask for fewer workers, or raise that setting before the application starts"
        )
    if plan.roles.evaluator:
        arguments.check_evaluator(size)
    return size


def _environment(plan: Plan, directory: RunDir) -> dict[str, str]:
    variables = {
        "ML_ID": directory.run_id,  # the predecessor's name for it
        "HOPSML_RUN_ID": directory.run_id,
        "HOPSML_PROJECT_URL": settings.project_url(),
        **plan.environment,
    }
    if plan.honour_environment:
        variables["HOPSML_HONOUR_ENVIRONMENT"] = "1"
    return variables


def _record(plan: Plan, captured: capture.Captured, application: applications.Application, size: int) -> dict[str, Any]:
    return {
        "verb": plan.verb,
        "name": plan.name,
        "description": plan.description,
        "function": getattr(plan.function, "__name__", repr(plan.function)),
        "source": captured.source,
        "code_sha256": captured.sha256,
        "arguments": as_json(plan.arguments),
        "workers": size,
        "merge_scope": plan.merge_scope,
        "scoped_allocator": plan.scoped_allocator,
        "resume": plan.resume,
        "backend": application.backend.name,
        "application": application.id,
        "started": time.time(),
        "user": settings.project_name(),
        "python": platform.python_version(),
        "driver": platform.node(),
        "command": sys.argv,
    }
