"""``make demo``: train digits on two Spark executors of this machine over both collectives; files stay below ./.hopsml."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "spark_jobs" / "digits_both_ways.py"
LEAST_ACCURACY = 0.97


def main() -> int:
    """Run the job as a user would; return an error status if the accuracy is too low."""
    print(
        "hopsml demo: a convolutional network on scikit-learn's digits, two Spark executors (local-cluster); "
        "over TensorFlow's collectives, then over hopsml's",
        flush=True,
    )
    environment = {**os.environ, "HOPSML_PROFILE": "local-cluster"}
    environment.setdefault("HOPSML_SPARK_MASTER", "local-cluster[2,1,1024]")  # one worker for each executor
    environment.setdefault("HOPSML_PROJECT_URL", f"file://{ROOT / '.hopsml'}")
    job = subprocess.Popen([sys.executable, str(SCRIPT)], env=environment, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    last = ""
    assert job.stdout is not None
    for line in job.stdout:
        print(line, end="", flush=True)
        last = line
    if job.wait():
        return job.returncode
    found = {name: one["accuracy"] for name, one in json.loads(last)["implementations"].items()}
    low = [f"{name} {accuracy:.4f}" for name, accuracy in found.items() if accuracy < LEAST_ACCURACY]
    if low:
        print(f"the accuracy is below {LEAST_ACCURACY}: {', '.join(low)}", file=sys.stderr)
    return bool(low)


if __name__ == "__main__":
    sys.exit(main())
