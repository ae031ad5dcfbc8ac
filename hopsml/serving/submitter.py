"""Submits a serving to a cluster: ``python -P -m hopsml.serving.submitter FOLDER PROFILE NAME LAUNCH REPLICAS LOCK``.

A driver on this machine is accompanied to its end, with LOCK held; one in YARN's own container is left to YARN, and the
application's id is written to the folder. SIGTERM ends what was submitted.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from hopsml import profiles, submission
from hopsml.errors import ArgumentError, HopsmlError, RunCancelled
from hopsml.profiles import Profile
from hopsml.serving.places import ServingFolder
from hopsml.submission import SubmissionPlan
from hopsml.submission.command import spark_settings

LOCAL = "local"  # the profile of this machine
MOST_FAILURES = "1000000"  # of a task: executors may be lost for as long as the serving lives
SCRIPT = "from hopsml.serving.driver import main\n\nmain({name!r}, {launch!r})\n"


def plan(profile: Profile, folder: ServingFolder, name: str, launch: str, replicas: int) -> SubmissionPlan:
    """What is submitted: an executor for each replica. Writes the script; raises ArgumentError for what cannot work."""
    folder.script.write_text(SCRIPT.format(name=name, launch=launch))
    known = spark_settings(profile)
    cores = known.get("spark.executor.cores", "1")
    if profile.master.startswith("local-cluster["):
        cores = profile.master.split(",")[1].strip()
    conf = {"spark.task.maxFailures": MOST_FAILURES, "spark.yarn.maxAppAttempts": "1", "spark.task.cpus": cores}
    if int(gpus := known.get("spark.executor.resource.gpu.amount", "0")):
        conf["spark.task.resource.gpu.amount"] = gpus
    conf["spark.dynamicAllocation.enabled"] = "false"  # replicas stay
    return submission.plan(profile, str(folder.script), num_workers=replicas, conf=conf)


def checked_profile(name: str) -> Profile | None:
    """The profile of a cluster; None for one without Spark. Raises ArgumentError for one that cannot hold replicas."""
    if name in ("", LOCAL):
        return None
    profile = profiles.load(name)
    if not profile.uses_spark:
        return None
    if profile.master.startswith(("local[", "k8s")) or profile.master == "local":
        raise ArgumentError(
            f"profile '{name}' has master {profile.master}: replicas are held by executors of YARN, of Spark's standalone "
            "cluster or of local-cluster; without a profile they run on this machine"
        )
    if profile.deploy_mode == "cluster" and not submission.is_detachable(profile):
        raise ArgumentError(
            f"profile '{name}' has master {profile.master} and deploy_mode cluster, which only YARN has; take client"
        )
    return profile


def main(words: list[str]) -> None:
    """The program."""
    path, profile_name, name, launch, replicas, _ = words
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    folder = ServingFolder(Path(path))
    profile = profiles.load(profile_name)
    with submission.Interrupts() as interrupts:
        try:
            planned = plan(profile, folder, name, launch, int(replicas))
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


if __name__ == "__main__":
    main(sys.argv[1:])
