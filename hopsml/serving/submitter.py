"""Program that submits a serving to a cluster, and follows a driver on this machine.

    python -P -m hopsml.serving.submitter FOLDER PROFILE NAME LAUNCH REPLICAS LOCK

It follows a driver on this machine to its end, holding LOCK. A driver in a container of YARN is detached,
and the ID of its application is written to the folder. SIGTERM ends what was submitted.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from hopsml import submission
from hopsml.core import profiles
from hopsml.core.profiles import Profile
from hopsml.errors import ArgumentError, HopsmlError, RunCancelled
from hopsml.serving.places import ServingFolder
from hopsml.submission import SubmissionPlan
from hopsml.submission.command import spark_settings

LOCAL = "local"  # profile for this machine
MOST_FAILURES = "1000000"  # failures of a task: executors may fail at any time during the life of the serving
SCRIPT = "from hopsml.serving.driver import main\n\nmain({name!r}, {launch!r})\n"


def plan(profile: Profile, folder: ServingFolder, name: str, launch: str, replicas: int) -> SubmissionPlan:
    """Return the submission of a serving with one executor per replica, after writing its script.

    Args:
        profile: Profile of the cluster.
        folder: Folder of the serving, for the script.
        name: Name of the serving.
        launch: ID of the start.
        replicas: Number of replicas.

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


def checked_profile(name: str) -> Profile | None:
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
            f"profile '{name}' has master {profile.master}: replicas are held by executors of YARN, of Spark's standalone "
            "cluster or of local-cluster; without a profile they run on this machine"
        )
    if profile.deploy_mode == "cluster" and not submission.is_detachable(profile):
        raise ArgumentError(
            f"profile '{name}' has master {profile.master} and deploy_mode cluster, which only YARN has; take client"
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
