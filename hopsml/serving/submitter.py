"""Start of a serving on a cluster: the program that submits it, and the wait for its replicas' answers.

    python -P -m hopsml.serving.submitter FOLDER PROFILE NAME LAUNCH REPLICAS LOCK

The program follows a driver on this machine to its end, holding LOCK. A driver in a container of YARN is detached, and
the ID of its application is written to the folder. SIGTERM ends what was submitted.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

from hopsml import submission
from hopsml.core import profiles, settings
from hopsml.core.delegation_tokens import environment_as_given
from hopsml.core.newer_python import module_arguments
from hopsml.core.profiles import Profile
from hopsml.errors import ArgumentError, ClusterError, HopsmlError, RunCancelled, ServingError
from hopsml.serving import server_records, starting
from hopsml.serving.definitions import ServingDefinition, ServingFolder
from hopsml.serving.messages import ServedVersion, ServingSettings
from hopsml.serving.routes import Route
from hopsml.serving.server_records import ServingAccess
from hopsml.storage import python_child
from hopsml.submission import SubmissionPlan
from hopsml.submission.spark_command import spark_settings

LOCAL = "local"  # profile for this machine
MOST_FAILURES = "1000000"  # failures of a task: executors may fail at any time during the life of the serving
SCRIPT = "from hopsml.serving.driver import main\n\nmain({name!r}, {launch!r})\n"


def prepare_submission(
    profile: Profile, folder: ServingFolder, name: str, launch: str, replicas: int
) -> SubmissionPlan:
    """Return the submission of a serving with one executor per replica, after writing its script.

    Raises:
        ArgumentError: The settings cannot work.
    """
    folder.script.write_text(SCRIPT.format(name=name, launch=launch))
    known = spark_settings(profile)
    cores = known.get("spark.executor.cores", "1")
    if profile.master.startswith("local-cluster["):
        cores = profile.master.split(",")[1].strip()
    conf = {"spark.task.maxFailures": MOST_FAILURES, "spark.yarn.maxAppAttempts": "1", "spark.task.cpus": cores}
    if int(gpus := known.get("spark.executor.resource.gpu.amount", "0")):
        conf["spark.task.resource.gpu.amount"] = gpus
    conf["spark.dynamicAllocation.enabled"] = "false"  # replicas hold their executors
    return submission.plan(profile, str(folder.script), num_workers=replicas, conf=conf)


def spark_profile(name: str) -> Profile | None:
    """Return the profile of a cluster; None for a profile without Spark.

    Raises:
        ArgumentError: The cluster cannot hold replicas.
    """
    if name in ("", LOCAL):
        return None
    profile = profiles.load(name)
    if not profile.uses_spark:
        return None
    if profile.master.startswith(("local[", "k8s")) or profile.master == "local":
        raise ArgumentError(
            f"profile '{name}' has master {profile.master}: replicas can run on executors of YARN, of Spark's "
            "standalone cluster or of local-cluster; omit the profile to run them on this machine"
        )
    if profile.deploy_mode == "cluster" and not submission.is_detachable(profile):
        raise ArgumentError(
            f"profile '{name}' has master {profile.master} and deploy_mode cluster, which only YARN supports; use "
            "deploy_mode client"
        )
    return profile


def main(words: list[str]) -> None:
    """Run the program with its command-line arguments."""
    path, profile_name, name, launch, replicas, _ = words
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    folder = ServingFolder(Path(path))
    profile = profiles.load(profile_name)
    with submission.Interrupts() as interrupts:
        try:
            planned = prepare_submission(profile, folder, name, launch, int(replicas))
            if submission.is_detachable(profile):
                folder.application.write_text(submission.start(planned, interrupts=interrupts))
                return
            status = submission.run(planned, interrupts=interrupts)
        except RunCancelled as cancelled:
            submission.to_stderr(str(cancelled))
            status = 128 + interrupts.last
        except HopsmlError as error:
            submission.to_stderr(str(error))
            status = 1
    sys.exit(status)


POLL_S, ASK_YARN_S = 0.2, 2.0
END_S = 60.0

_submitters: dict[tuple[str, str], subprocess.Popen[bytes]] = {}  # (name, project) -> process of spark-submit


def start(
    definition: ServingDefinition,
    profile: Profile,
    route: Route,
    versions: dict[int, ServedVersion],
    token: str,
    timeout_s: float,
) -> None:
    """Start a serving on a cluster; returns when all replicas answer. After an error, no process remains.

    Raises:
        AlreadyServed: Another server has the name.
        ArgumentError: The profile or definition is not suitable.
        ServingError: The serving could not be started.
    """
    project = settings.project_url()
    with starting.exclusive_folder(definition.name, project) as (folder, lock):
        launch = secrets.token_hex(8)
        chosen = starting.make_settings(definition, project, route, versions)
        prepare_submission(profile, folder, definition.name, launch, definition.replicas)  # check first
        server_records.write_access(ServingAccess(launch, profile.name, token, secrets.token_urlsafe(32), chosen))
        folder.write_token(token)
        folder.application.unlink(missing_ok=True)
        began = folder.submission_log.stat().st_size if folder.submission_log.exists() else 0
        process = _submit(folder, lock, chosen, profile, launch)
        try:
            error = _awaited(folder, process, chosen, launch, timeout_s)
        except BaseException:  # Ctrl-C: the start is abandoned
            _end(folder, process, chosen)
            raise
        if error:
            _end(folder, process, chosen)
            said = folder.submission_log.read_bytes()[began:].decode(errors="replace")[-starting.LAST_LINES :]
            raise ServingError(f"'{definition.name}' could not be started: {error}\n{said}\nlogs: {folder.path}")


def _submit(
    folder: ServingFolder, lock: int, chosen: ServingSettings, profile: Profile, launch: str
) -> subprocess.Popen[bytes]:
    """Start the submitter process, which inherits the lock of the serving."""
    words = (str(folder.path), profile.name, chosen.name, launch, str(chosen.replicas), str(lock))
    environment = {**environment_as_given(python_child.environment()), "HOPSML_PROJECT_URL": chosen.project}
    with folder.submission_log.open("ab") as output:
        process = subprocess.Popen(
            # The process loads profiles, but not modules, from the working directory.
            [os.path.abspath(sys.executable), *module_arguments("hopsml.serving.submitter"), *words],
            pass_fds=[lock],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # it outlives a notebook, and must not receive Ctrl-C of its terminal
        )
    starting.register_child(process)
    reap_spark_submit(chosen.name, chosen.project)  # of a serving that ended before
    _submitters[chosen.name, chosen.project] = process
    return process


def _awaited(
    folder: ServingFolder, process: subprocess.Popen[bytes], chosen: ServingSettings, launch: str, timeout_s: float
) -> str:
    """Wait for the outcome of a start, and return the error; empty if it succeeded."""
    deadline = time.monotonic() + timeout_s
    asked_s = time.monotonic()
    while time.monotonic() < deadline:
        has_ended = process.poll() is not None
        over = ""
        if time.monotonic() - asked_s > ASK_YARN_S:
            asked_s = time.monotonic()
            over = _over(folder)
        outcome = server_records.read_outcome(chosen.name, chosen.project, launch)
        if outcome is not None:
            return outcome.error
        if has_ended and (process.returncode or not folder.application.exists()):
            return f"its driver ended at once, with exit status {process.returncode}"
        if over:
            return over
        time.sleep(POLL_S)
    return f"its replicas did not answer within {timeout_s:g} s (start_timeout)"


def _over(folder: ServingFolder) -> str:
    """Return the text about how a detached YARN application has ended; empty if it runs or there is none."""
    return server_records.describe_yarn_end(folder.application.read_text()) if folder.application.exists() else ""


def reap_spark_submit(name: str, project: str) -> None:
    """Wait for the end of spark-submit, if this process started it."""
    process = _submitters.pop((name, project), None)
    if process is not None:
        starting.reap(process.pid, END_S)


def _end(folder: ServingFolder, process: subprocess.Popen[bytes], chosen: ServingSettings) -> None:
    """End the application of a failed start, and delete its tokens."""
    if process.poll() is None:
        process.terminate()
    reap_spark_submit(chosen.name, chosen.project)
    if folder.application.exists():
        with contextlib.suppress(ClusterError):
            submission.end_application(folder.application.read_text(), timeout_s=END_S)
    folder.write_token("")
    server_records.delete_access(chosen.name, chosen.project)


if __name__ == "__main__":
    main(sys.argv[1:])
