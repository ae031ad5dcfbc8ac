"""A worker of a group that was started by hand, for steps in turns."""

from __future__ import annotations

import sys

from benchmarks.scripts import model, turns

if __name__ == "__main__":
    turns.serve(sys.argv[1], "bare", model.rank(), model.build(model.plain_strategy()))
