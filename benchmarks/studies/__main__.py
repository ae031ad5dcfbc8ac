"""Command line of the studies: python -m benchmarks.studies NAME... [--quick] [--out FOLDER].

Each study writes a JSON file and a picture.
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import environments
from benchmarks.figures import Report
from benchmarks.launched import ROOT
from benchmarks.options import Options

STUDIES = ("accuracy", "algorithms", "convergence", "exchange", "resizing", "servers")
RESULTS = ROOT / "benchmarks" / "results" / "studies"


def main(words: list[str]) -> int:
    """Run the named studies, write their files, and print their figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.studies", description=__doc__)
    parser.add_argument("names", nargs="+", choices=(*STUDIES, "all"), metavar="NAME", help=", ".join(STUDIES))
    parser.add_argument("--quick", action="store_true", help="few seeds and steps: a first look")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the folder for JSON and pictures")
    given = parser.parse_args(words)
    given.out.mkdir(parents=True, exist_ok=True)
    report = Report()
    for name in STUDIES if "all" in given.names else dict.fromkeys(given.names):
        began = time.monotonic()
        report.add(play(name, Options(given.quick, None, (), print), given.out))
        print(f"studies: {name} took {time.monotonic() - began:.0f} s", flush=True)
    print(report.table(), flush=True)
    return 0


def play(name: str, options: Options, out: Path) -> Report:
    """Run one study in a temporary project on the local backend; write its files to ``out`` and return its figures."""
    from hopsml import experiment

    with tempfile.TemporaryDirectory(prefix="hopsml-study-") as folder:
        conf = Path(folder, "conf")
        conf.mkdir()
        (conf / "local.yaml").write_text("master: none\nlocal_slots: 8\n")
        settings = {"HOPSML_CONF_DIR": str(conf), "HOPSML_PROJECT_URL": f"file://{folder}/project"}
        os.environ.update({**settings, "HOPSML_PROFILE": "local", "HOPSML_MLFLOW": "0"})
        try:
            study, figures = importlib.import_module(f"benchmarks.studies.{name}").run(options)
        finally:
            experiment.shutdown()
    written = out / f"{study.name}.json"
    written.write_text(study.as_json())
    python = environments.ensure("plots", options.say)
    script = ROOT / "benchmarks" / "scripts" / "draw_study.py"
    subprocess.run([python, script, written, written.with_suffix(".png")], check=True)
    print(f"\n{study.title}\n\n{study.table()}\n", flush=True)
    return Report(figures, list(study.notes))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
