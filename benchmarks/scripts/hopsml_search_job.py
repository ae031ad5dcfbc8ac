"""A driver that runs one search of the benchmark from nothing: FOLDER EXECUTORS CASE; writes FOLDER/result.json."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from benchmarks.scripts import hopsml_searches

if __name__ == "__main__":
    folder, executors, case = sys.argv[1:]
    facts = hopsml_searches.run(case, int(executors))
    facts["ended"] = time.monotonic()
    if case == "asha":
        again = hopsml_searches.run(case, int(executors))
        facts |= {"seconds": again["seconds"], "steps": again["steps"]}
    fresh = Path(folder, "result.tmp")
    fresh.write_text(json.dumps(facts))
    fresh.rename(Path(folder, "result.json"))
