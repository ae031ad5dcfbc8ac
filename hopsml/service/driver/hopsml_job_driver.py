"""The driver of one task of a job: ``hopsml_job_driver.py JOB.yaml TASK``.

spark-submit starts it, or Python under a profile without Spark. It is a script: it travels alone, and
imports hopsml where it runs.
"""

import sys

from hopsml.errors import HopsmlError
from hopsml.service.driver.run_task import run

if __name__ == "__main__":
    try:
        sys.exit(run(*sys.argv[1:]))
    except HopsmlError as error:
        sys.exit(f"hopsml: {error}")
