"""``make demo``: digits on two real Spark executors of this machine; everything stays below ./.hopsml."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "spark_jobs" / "train_digits.py"
LEAST_ACCURACY = 0.97


def main() -> int:
    """Run the job as a person would; fail when the network has not learnt."""
    print(
        "hopsml demo: a convolutional network on scikit-learn's digits, two Spark executors (local-cluster)", flush=True
    )
    environment = {**os.environ, "HOPSML_PROFILE": "local-cluster"}
    environment.setdefault("HOPSML_SPARK_MASTER", "local-cluster[2,1,1024]")  # one worker each
    environment.setdefault("HOPSML_PROJECT_URL", f"file://{ROOT / '.hopsml'}")
    job = subprocess.Popen([sys.executable, str(SCRIPT)], env=environment, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    last = ""
    assert job.stdout is not None
    for line in job.stdout:
        print(line, end="", flush=True)
        last = line
    if job.wait():
        return job.returncode
    accuracy = json.loads(last)["accuracy"]
    if accuracy < LEAST_ACCURACY:
        print(f"the accuracy {accuracy:.4f} is below {LEAST_ACCURACY}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
