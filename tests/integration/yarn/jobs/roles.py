"""Driver that runs the contract of roles on the executors of its application; the argument is a folder.

With a second one, "gpus", it writes the GPUs of a run's members to `held.json` in the folder.
"""

import json
import sys
from pathlib import Path

from tests.helpers.cluster.role_gpus import held_by_role
from tests.helpers.cluster.roles_contract import PLAYS, submit

if __name__ == "__main__":
    if sys.argv[2:] == ["gpus"]:
        report = Path(sys.argv[1]) / "told"
        Path(sys.argv[1], "held.json").write_text(json.dumps(held_by_role(submit(report), report)))
        sys.exit(0)
    for play in PLAYS:
        folder = Path(sys.argv[1]) / play.__name__
        folder.mkdir(parents=True)
        play(folder)
        print("held:", play.__name__, flush=True)
