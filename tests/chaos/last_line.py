"""python -m tests.chaos.last_line FILE: the totals of the last chaos run as one line of JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

if __name__ == "__main__":
    found = json.loads(Path(sys.argv[1]).read_text())
    del found["rows"]
    print(json.dumps(found))
