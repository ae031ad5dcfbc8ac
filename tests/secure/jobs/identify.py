"""Program for spark-submit: one worker; the file that the first argument names gets the user's names in the processes,
and the token file with which the driver was started.

With a second argument, the name of a profile, it then submits itself by `hopsml submit`, as one worker of another
application; the third argument is the file of that.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import hopsml
from hopsml.core import settings
from hopsml.core.delegation_tokens import VARIABLE


def name_of_user() -> str:
    return settings.user_name()


if __name__ == "__main__":
    given = os.environ.get(VARIABLE)
    result = hopsml.experiment.distributed(name_of_user, num_workers=1)
    found = {
        "driver": settings.user_name(),
        "worker": result.value,
        "project": settings.project_url(),
        "run": str(result.run_dir),
        "given": given,
    }
    Path(sys.argv[1]).write_text(json.dumps(found))
    if sys.argv[2:]:
        profile, file = sys.argv[2:]
        line = ["-c", "from hopsml.cli import main; main()", "submit", "--profile", profile, __file__, file]
        sys.exit(subprocess.run([sys.executable, *line], check=False).returncode)
