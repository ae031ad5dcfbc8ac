"""Submission by spark-submit: starts it, finds the application by a unique tag, and follows it."""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hopsml.core.profiles import Profile
from hopsml.errors import ArgumentError, ClusterError, ClusterUnavailable, RunCancelled
from hopsml.submission import follower, shipping, spark_start
from hopsml.submission.follower import TIMED_OUT, FollowState, OnLostContact, StateObserved, step, to_stderr
from hopsml.submission.shipping import Shipment
from hopsml.submission.spark_command import WITHOUT_CLUSTER, build_command, environment
from hopsml.submission.spark_submit import NoInterrupts, SparkSubmit, Waiter
from hopsml.yarn import ResourceManager, YarnApplication
from hopsml.yarn.rpc import RpcClient

_LOOK_S = 0.5
_SETTLE_S = 1.0  # seconds for a request that spark-submit had sent just before it was ended
_ID_TIMEOUT_S = 30.0  # seconds from the end of spark-submit until the ResourceManager lists the application


def is_detachable(profile: Profile) -> bool:
    """Return True if the application runs on independently of this process, with its driver in YARN."""
    return profile.master.startswith("yarn") and profile.deploy_mode == "cluster"


@dataclass(frozen=True)
class SubmissionPlan:
    """Prepared submission: the command, a tag that only this submission has, and the environment that is shipped."""

    profile: Profile
    script: str
    command: tuple[str, ...]
    tag: str
    shipment: Shipment


def plan(
    profile: Profile,
    script: str,
    arguments: Sequence[str] = (),
    *,
    num_workers: int | None = None,
    conf: Mapping[str, str] | None = None,
    tag: str | None = None,
    ship_environment: str | None = None,
) -> SubmissionPlan:
    """Prepare a submission for ``start`` or ``run``; nothing is packed or started.

    Args:
        profile: determines where the script runs.
        script: path of the script.
        arguments: arguments of the script.
        num_workers: number of executors; None for the profile's.
        conf: Spark's settings, which take precedence over the profile's.
        tag: additional YARN tag by which any process can find the application (``ResourceManager.find_by_tag``).
        ship_environment: see Profile.

    Raises:
        ArgumentError: for a script that cannot run.
    """
    own = f"hopsml-{secrets.token_hex(8)}"
    tags = [each for each in (own, tag) if each] if profile.master.startswith("yarn") else []
    shipment = shipping.plan_shipment(ship_environment or profile.ship_environment, profile)
    line = build_command(profile, script, arguments, num_workers=num_workers, conf=conf, tags=tags, shipment=shipment)
    return SubmissionPlan(profile, script, tuple(line), own, shipment)


def start(planned: SubmissionPlan, *, interrupts: Waiter | None = None) -> str:
    """Submit a script in YARN's cluster mode; return the application's id once YARN lists it.

    The application continues independently of this process.

    Raises:
        ArgumentError: for a profile of another kind; nothing was submitted.
        ClusterError: if spark-submit fails, with its output.
        RunCancelled: after a signal; the application is ended then.
    """
    profile = planned.profile
    if not is_detachable(profile):
        raise ArgumentError(
            f"profile '{profile.name}' (master {profile.master}, {profile.deploy_mode} mode) does not run its driver "
            "on YARN; use a profile with master yarn and deploy_mode cluster, or wait for the end of the script "
            "(submission.run)"
        )
    return _submit(planned, _resource_manager(profile), interrupts or NoInterrupts())


def run(
    planned: SubmissionPlan,
    *,
    waiting_timeout_s: float | None = None,
    interrupts: Waiter | None = None,
    on_lost_contact: OnLostContact = OnLostContact.FOLLOW,
) -> int:
    """Run a script to its end under any profile; return its exit status, 0 only for success.

    In YARN's cluster mode this is ``start`` and ``follow``; otherwise the driver runs on this machine, with this
    process's output. All started processes are ended.

    Args:
        planned: the submission.
        waiting_timeout_s: longest wait in the queue, in seconds; None for no limit.
        interrupts: source of signals.
        on_lost_contact: what to do in cluster mode if YARN's web services cannot be read after the submission.
    """
    waiter = interrupts or NoInterrupts()
    profile = planned.profile
    yarn = _resource_manager(profile) if profile.master.startswith("yarn") else None
    if yarn is not None and is_detachable(profile):
        taken = _submit(planned, yarn, waiter)
        ended = follower.follow(
            taken,
            yarn=yarn,
            waiting_timeout_s=waiting_timeout_s,
            interrupts=waiter,
            on_lost_contact=on_lost_contact,
            rpc=_rpc(planned),
        )
        return ended.status
    if profile.uses_spark:
        spark_start.check_submission_java(environment(profile))
    _ship(planned, waiter)
    with SparkSubmit(planned.command, environment(profile), quiet=False) as job:
        status = _accompany(job, yarn, planned.tag, waiter, waiting_timeout_s)
    if status and yarn is not None:
        _end_by_tag(yarn, planned.tag)  # a killed driver has not unregistered from YARN
    if status == 1 and (why := spark_start.why_submit_fails(profile, environment(profile))):
        to_stderr(why)
    return status


def _resource_manager(profile: Profile) -> ResourceManager:
    """Return the client of YARN; raises ArgumentError with the remedies if none is configured."""
    try:
        return ResourceManager.from_environment()
    except ArgumentError as error:
        raise ArgumentError(f"profile '{profile.name}' runs on YARN, and {error}; {WITHOUT_CLUSTER}") from None


def _submit(planned: SubmissionPlan, yarn: ResourceManager, waiter: Waiter) -> str:
    """Run spark-submit, wait until YARN lists the application, and return its id."""
    spark_start.check_submission_java(environment(planned.profile))
    _ship(planned, waiter)
    to_stderr(f"submitting {planned.script} to {', '.join(yarn.addresses)}")
    with SparkSubmit(planned.command, environment(planned.profile), quiet=True) as job:
        while (status := job.poll()) is None:
            if (number := waiter.wait(3600.0, job.ended)) is not None:
                _end(job, number, waiter)
                raise _cancelled(yarn, planned, number, job.application_id())
        known = job.application_id()
        if status:
            found = _find(yarn, planned.tag)
            if found is None or found.is_final:
                why = (
                    spark_start.why_submit_fails(planned.profile, environment(planned.profile)) if found is None else ""
                )
                raise ClusterError(_why_failed(job, status, found, yarn, planned.tag) + (f"\n{why}" if why else ""))
    return _wait_for(yarn, planned, waiter, known)


def _rpc(planned: SubmissionPlan) -> RpcClient:
    """Return the client that uses the installation and the environment of the submission's spark-submit."""
    return RpcClient(planned.command[0], environment(planned.profile))


def _ship(planned: SubmissionPlan, waiter: Waiter) -> None:
    """Pack and upload the environment if needed; a signal stops it."""

    def check() -> None:
        if (number := waiter.wait(0.0)) is not None:
            name = signal.Signals(number).name
            raise RunCancelled(f"{name} while the environment was being packed; nothing was submitted")

    shipping.ensure_uploaded(planned.shipment, to_stderr, check)


def _accompany(
    job: SparkSubmit, yarn: ResourceManager | None, tag: str, waiter: Waiter, waiting_timeout_s: float | None
) -> int:
    """Wait for a driver on this machine, and on YARN print what it waits for; return the exit status."""
    state, is_told = FollowState("", time.monotonic(), waiting_timeout_s), False
    while (status := job.poll()) is None:
        if (number := waiter.wait(follower.POLL_S if yarn else 3600.0, job.ended)) is not None:
            to_stderr("ending it (a second one ends this command at once)")
            return _end(job, number, waiter)
        found = _find(yarn, tag) if yarn is not None else None
        if found is None and yarn is not None and not is_told and (problem := _unreadable(yarn, tag)):
            is_told = True
            to_stderr(
                f"what the application with the tag {tag} waits for is unknown, and --timeout has no effect: {problem}"
            )
        if found is not None and not found.is_final:
            state, todo = step(state, StateObserved(found), time.monotonic())
            for line in todo.lines:
                to_stderr(line)
            if todo.end:
                job.end()
                return TIMED_OUT
    return status if status >= 0 else 128 - status


def _end(job: SparkSubmit, number: int, waiter: Waiter) -> int:
    """End the driver; a second signal kills it.

    The script gets SIGINT, which cancels runs, whatever signal arrived here.
    """
    if not job.send_signal_to_script(signal.SIGINT):
        job.send_signal(number)
    deadline = time.monotonic() + 10.0
    while job.has_processes() and time.monotonic() < deadline:
        if waiter.wait(0.05) is not None:
            break
    job.end(signal.SIGKILL, 0.0)
    return 128 + number


def _find(yarn: ResourceManager, tag: str) -> YarnApplication | None:
    """Return the newest application with this tag; None if there is none, or YARN does not answer."""
    try:
        found = yarn.find_by_tag(tag)
    except ClusterError:
        return None
    return found[0] if found else None


def _wait_for(yarn: ResourceManager, planned: SubmissionPlan, waiter: Waiter, known: str) -> str:
    """Return the id of the application of a spark-submit that has succeeded.

    If the ResourceManager refuses, or does not answer in time, it is the id that spark-submit has printed.

    Args:
        yarn: client of the ResourceManager.
        planned: the submission.
        waiter: source of signals.
        known: the id in the output of spark-submit; "" if there is none.
    """
    deadline = time.monotonic() + _ID_TIMEOUT_S
    while True:
        problem = f"the ResourceManager lists no application with the tag {planned.tag}; check its log"
        is_refused = False
        try:
            if found := yarn.find_by_tag(planned.tag):
                return found[0].id
        except ClusterError as error:
            problem, is_refused = str(error), not isinstance(error, ClusterUnavailable)
        if is_refused or time.monotonic() > deadline:
            if not known:
                raise ClusterError(
                    f"spark-submit has submitted {planned.script} with the tag {planned.tag}, and its id is unknown: "
                    f"{problem}"
                )
            to_stderr(f"{known} was submitted, with the tag {planned.tag}, but YARN's list cannot be read: {problem}")
            return known
        if (number := waiter.wait(_LOOK_S)) is not None:
            raise _cancelled(yarn, planned, number, known)


def _cancelled(yarn: ResourceManager, planned: SubmissionPlan, number: int, known: str) -> RunCancelled:
    """End an application whose submission was interrupted, and return the error to raise.

    Args:
        yarn: client of the ResourceManager.
        planned: the submission.
        number: number of the signal.
        known: the id in the output of spark-submit; "" if there is none.
    """
    deadline = time.monotonic() + _SETTLE_S
    while not (ended := _end_by_tag(yarn, planned.tag)) and time.monotonic() < deadline:
        time.sleep(0.1)
    what = f"; {ended} was ended" if ended else "; nothing was submitted"
    if not ended and known:
        try:
            _rpc(planned).kill(known)
            what = f"; {known} was ended"
        except ClusterError as error:
            what = f"; {known} may be running, end it with `yarn application -kill {known}`: {error}"
    return RunCancelled(f"{signal.Signals(number).name} while {planned.script} was being submitted{what}")


def _end_by_tag(yarn: ResourceManager, tag: str) -> str:
    """End the application with this tag, if there is one; return its id."""
    found = _find(yarn, tag)
    if found is None:
        return ""
    if not found.is_final:
        follower.end_application(found.id, yarn=yarn)
    return found.id


def _why_failed(job: SparkSubmit, status: int, found: YarnApplication | None, yarn: ResourceManager, tag: str) -> str:
    """Return the error text of a failed spark-submit, with what is known of the application."""
    app = f"; {found.id} is {found.state}: {found.diagnostics}" if found is not None else ", and nothing was submitted"
    if found is None and (known := job.application_id()):
        app = f"; it has submitted {known}, which may be running"
    elif found is None and (problem := _unreadable(yarn, tag)):
        app = f"; whether an application with the tag {tag} was submitted is unknown: {problem}"
    return f"spark-submit failed with exit status {status}{app}; its output:\n{job.output_tail()}"


def _unreadable(yarn: ResourceManager, tag: str) -> str:
    """Return why the ResourceManager's list cannot be read; "" if it can."""
    try:
        yarn.find_by_tag(tag)
    except ClusterError as error:
        return str(error)
    return ""
