"""Program of a task's driver: ``hopsml_job_driver.py JOB.yaml TASK``.

It is started by spark-submit, or by Python under a profile without Spark. It is a script that is shipped alone, and
imports the hopsml that is installed where it runs.
"""

import signal
import sys

INTERRUPTED = 128 + signal.SIGINT  # exit status
SETTLE_S = 1.0


def main() -> None:
    """Run the task to its end; print one line if it was requested to end, even at an early stage."""
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # blocked while Python starts
        from hopsml.cluster.worker import calling
        from hopsml.core.processes import write_no_core_dumps
        from hopsml.errors import HopsmlError
        from hopsml.service.driver.run_task import run

        write_no_core_dumps()  # it takes the secrets of its job
        lost: list[str] = []
        note = calling.install_log_streams(lost.append)  # a full disk does not end the driver
        try:
            sys.exit(run(*sys.argv[1:]))
        except HopsmlError as error:
            sys.exit(f"hopsml: {error}")
        finally:
            note.wait_until_sent(SETTLE_S)
            for text in lost:  # the disk may have space again
                print(f"hopsml: {text}", file=sys.stderr)
    except KeyboardInterrupt:
        print("hopsml: this task was asked to end, and has ended", file=sys.stderr)
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
