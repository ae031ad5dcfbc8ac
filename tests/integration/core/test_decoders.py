"""Tests of msgspec's types in threads: concurrent first decodings of a type would crash.

A ``Decoder`` at module level prepares the type during the import, which happens once.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.clock import END_S

pytestmark = pytest.mark.local
PACKAGE = Path(__file__).parents[3] / "hopsml"

# Each child is a new process without decoded types; its threads start simultaneously.
FIRST_DECODING = """
import os, sys, threading
from datetime import UTC, datetime
from hopsml.model import description
made = description.ModelDescription("digits", 1, "files", datetime.now(UTC))
data = description.encode(made)

def race():
    sys.setswitchinterval(1e-6)
    together = threading.Barrier(8)
    def read():
        together.wait()
        assert description.decode(data, "file:///model.json") == made
    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()

for _ in range(30):
    if not (child := os.fork()):
        race()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status == 0, status
"""


def test_threads_can_decode_the_first_descriptions_simultaneously() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST_DECODING], capture_output=True, text=True, timeout=END_S)
    assert done.returncode == 0, done.stderr


@pytest.mark.variant
def test_msgspec_types_are_passed_to_module_level_decoders() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("msgspec.json.decode", "msgspec.msgpack.decode")
        and any(keyword.arg == "type" for keyword in node.keywords)
    ]
    assert not found, "several threads may be the first to decode: make a Decoder at the top of the module"
