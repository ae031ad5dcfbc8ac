"""Submission of a script to a cluster: the spark-submit command of a profile, its start, following and ending it.

Example:
    planned = submission.plan(profiles.load("yarn-cluster"), "train.py")
    submission.run(planned)                      # to its end; returns the exit status
    application_id = submission.start(planned)   # instead, in YARN's cluster mode: returns once YARN lists it
    submission.follow(application_id)            # from any process
    submission.end_application(application_id)
"""

from hopsml.submission.follower import ApplicationResult, OnLostContact, end_application, follow, to_stderr
from hopsml.submission.spark_command import build_command, environment
from hopsml.submission.spark_submit import Interrupts
from hopsml.submission.submit import SubmissionPlan, is_detachable, plan, run, start

__all__ = [
    "ApplicationResult",
    "Interrupts",
    "OnLostContact",
    "SubmissionPlan",
    "build_command",
    "end_application",
    "environment",
    "follow",
    "is_detachable",
    "plan",
    "run",
    "start",
    "to_stderr",
]
