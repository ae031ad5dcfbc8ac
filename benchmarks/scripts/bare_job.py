"""One worker of a group that was started by hand: TF_CONFIG is in the environment."""

from __future__ import annotations

import sys

from benchmarks.scripts import model

if __name__ == "__main__":
    model.train(model.plain_strategy(), sys.argv[1], int(sys.argv[3]))
