"""Running a script on a cluster: the spark-submit command of a profile, submitting it, following and ending it.

profile = profiles.load("yarn-cluster")
submission.run(profile, "train.py")                      # to its end; the exit status
submitted = submission.start(profile, "train.py")        # YARN's cluster mode: returns once YARN has it
submission.follow(submitted.application_id)              # from any process
submission.end(submitted.application_id)
"""

from hopsml.spark_home import spark_submit
from hopsml.submission.command import command, environment
from hopsml.submission.follower import ApplicationResult, end, follow, to_stderr
from hopsml.submission.interrupts import Interrupts
from hopsml.submission.submit import Submission, SubmissionPlan, is_detachable, plan, run, start

__all__ = [
    "ApplicationResult",
    "Interrupts",
    "Submission",
    "SubmissionPlan",
    "command",
    "end",
    "environment",
    "follow",
    "is_detachable",
    "plan",
    "run",
    "spark_submit",
    "start",
    "to_stderr",
]
