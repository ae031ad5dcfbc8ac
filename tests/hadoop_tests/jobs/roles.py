"""A driver that plays the contract of roles on the executors of its own application; the argument is a folder."""

import sys
from pathlib import Path

from tests.cluster.roles_contract import PLAYS

if __name__ == "__main__":
    for play in PLAYS:
        folder = Path(sys.argv[1]) / play.__name__
        folder.mkdir(parents=True)
        play(folder)
        print("held:", play.__name__, flush=True)
