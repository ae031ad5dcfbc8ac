"""Run the tests of HDFS and YARN with further releases of Hadoop (``make hadoop-versions``); writes the results.

    python -m tools.hadoop_versions                        # the last line is {"releases": n, "failed": [names]}
    python -m tools.hadoop_versions --releases "3.3.6"

`make test` runs these and all other tests of Hadoop with the release of tools/hadoop/pom.xml. The table goes into
benchmarks/results/hadoop.md; a release that was not run now keeps its line. Jars that were not there before are removed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.hadoop.jars import CACHE, VERSION
from tools.version_matrix import commit

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "benchmarks" / "results" / "hadoop.md"
RELEASES = ("3.3.6", "3.4.1")
# Submission, runs on HDFS, storage, and TensorFlow's hdfs://: what depends on the release of Hadoop.
TESTS = tuple(
    f"tests/integration/yarn/{name}.py"
    for name in ("test_submit", "test_runs_on_hdfs", "test_storage_hdfs", "test_tf_hdfs")
)
_HEAD = f"""# Releases of Hadoop

`make hadoop-versions` on this machine: {", ".join(Path(test).name for test in TESTS)} of `tests/integration/yarn`, without
variants, with the daemons and clients of another release than 3.5.0, with which `make test` runs all tests.

"""
_COLUMNS = ("Hadoop", "result", "seconds", "date", "commit")


def run_release(release: str, arguments: Sequence[str]) -> tuple[str, str]:
    """Run the tests with one release; return the last line of pytest, and what failed, "" if all passed."""
    jars = CACHE / f"jars-{release}"
    existed = jars.exists()
    log = CACHE / f"tests-{release}.log"
    CACHE.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not variant", *TESTS, *arguments]
    try:
        with log.open("wb") as output:
            status = subprocess.run(
                command, stdout=output, stderr=output, cwd=ROOT, env={**os.environ, VERSION: release}, check=False
            ).returncode
    finally:
        if not existed:
            shutil.rmtree(jars, ignore_errors=True)
    lines = log.read_text(errors="replace").splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    problem = "\n".join(failed or lines[-5:]) + f"\n(all of it: {log})" if status else ""
    return (lines[-1].partition(" in ")[0] if lines else ""), problem


def read_lines(page: Path) -> dict[str, str]:
    """Return the lines of an earlier page by release."""
    if not page.exists():
        return {}
    rows = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| 3.")]
    return {row.split(" ")[1]: row for row in rows}


def page_text(lines: Mapping[str, str]) -> str:
    """Return the page with these lines, in the order of the releases."""
    head = f"| {' | '.join(_COLUMNS)} |\n{'|---' * len(_COLUMNS)}|\n"
    return _HEAD + head + "".join(f"{lines[release]}\n" for release in sorted(lines))


def main() -> int:
    """Run the tests with the selected releases one after another; return 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m tools.hadoop_versions", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--releases", default="", help="releases, separated by spaces; by default " + ", ".join(RELEASES)
    )
    parser.add_argument("arguments", nargs="*", help="further arguments of pytest, behind --")
    given = parser.parse_args()
    releases = given.releases.split() or list(RELEASES)
    if unknown := set(releases) - set(RELEASES):
        parser.error(f"no release is named {', '.join(sorted(unknown))}; there are: {', '.join(RELEASES)}")
    lines, failed = read_lines(PAGE), []
    for release in releases:
        began, day = time.monotonic(), time.strftime("%Y-%m-%d", time.gmtime())
        tests, problem = run_release(release, given.arguments)
        took_s = round(time.monotonic() - began)
        result = f"FAILED: {tests}" if problem else tests
        lines[release] = f"| {' | '.join((release, result, str(took_s), day, commit()))} |"
        print(f"Hadoop {release}: {result}, {took_s} s", flush=True)
        if problem:
            failed.append(release)
            print(problem, file=sys.stderr, flush=True)
    if not given.arguments:  # else these are not all tests
        PAGE.write_text(page_text(lines), encoding="utf-8")
    print(json.dumps({"releases": len(releases), "failed": failed}))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
