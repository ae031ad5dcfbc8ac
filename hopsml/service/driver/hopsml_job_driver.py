"""The driver of one task of a job: ``hopsml_job_driver.py JOB.yaml TASK``.

spark-submit starts it, or Python under a profile without Spark. It is a script: it travels alone, and
imports hopsml where it runs.
"""

import signal
import sys

INTERRUPTED = 128 + signal.SIGINT  # exit status


def main() -> None:
    """Run the task; whoever is asked to end meanwhile says so in a line, also where it has hardly begun."""
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # which waits while Python starts
        from hopsml.errors import HopsmlError
        from hopsml.service.driver.run_task import run

        try:
            sys.exit(run(*sys.argv[1:]))
        except HopsmlError as error:
            sys.exit(f"hopsml: {error}")
    except KeyboardInterrupt:
        print("hopsml: this task was asked to end, and has ended", file=sys.stderr)
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
