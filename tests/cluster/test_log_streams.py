"""Tests that a worker's output is in its log line by line, whatever the interpreter does with a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.fast

CODE = """
import json, sys
from pathlib import Path
from hopsml.cluster.worker import calling
calling.install_log_streams(print)
log = Path(sys.argv[1])
print("a beginning", end="")
seen = [log.read_text()]
print(", and its end")
print("an error", file=sys.stderr)
seen.append(log.read_text())
Path(sys.argv[2]).write_text(json.dumps(seen))
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_line_is_there_when_it_is_printed_and_a_part_of_one_where_python_is_told_so(
    tmp_path: Path, unbuffered: str
) -> None:
    log, seen = tmp_path / "log", tmp_path / "seen"
    with log.open("wb") as written:
        environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        command = [sys.executable, "-c", CODE, str(log), str(seen)]
        subprocess.run(command, stdout=written, stderr=written, env=environment, check=True)
    first, then = json.loads(seen.read_text())
    assert first == ("a beginning" if unbuffered else "")
    assert then == "a beginning, and its end\nan error\n"
