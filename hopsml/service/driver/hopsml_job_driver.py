"""The driver of one task of a job: ``hopsml_job_driver.py JOB.yaml TASK``.

spark-submit starts it, or Python under a profile without Spark. It is a script: it travels alone, and
imports hopsml where it runs.
"""

import signal
import sys

INTERRUPTED = 128 + signal.SIGINT  # exit status
SETTLE_S = 1.0


def main() -> None:
    """Run the task; whoever is asked to end meanwhile says so in a line, also where it has hardly begun."""
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # which waits while Python starts
        from hopsml.cluster.worker import log_streams
        from hopsml.errors import HopsmlError
        from hopsml.service.driver.run_task import run

        lost: list[str] = []
        note = log_streams.install(lost.append)  # a disk that is full ends no driver: what it trains may lie elsewhere
        try:
            sys.exit(run(*sys.argv[1:]))
        except HopsmlError as error:
            sys.exit(f"hopsml: {error}")
        finally:
            note.settle(SETTLE_S)
            for text in lost:  # there may be room again
                print(f"hopsml: {text}", file=sys.stderr)
    except KeyboardInterrupt:
        print("hopsml: this task was asked to end, and has ended", file=sys.stderr)
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
