"""Tests of the native library: C++ programs, with and without the sanitizers."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.helpers.clock import END_S
from tools import build_native

pytestmark = pytest.mark.local

# The first report ends a program with a separate status.
QUIET = {"TSAN_OPTIONS": "halt_on_error=1 die_after_fork=0", "ASAN_OPTIONS": "detect_leaks=1"}


def run(program: str, *arguments: str, sanitize: str = "") -> None:
    """Build and run the program; its stderr is the failure."""
    path = build_native.build_program(program, sanitize)
    done = subprocess.run(
        [path, *arguments], env={**os.environ, **QUIET}, capture_output=True, text=True, timeout=END_S, check=False
    )
    assert done.returncode == 0, done.stderr[-8000:]


def test_native_digests_floats_and_parsers_pass_their_tests() -> None:
    run("pieces", "0.3")


@pytest.mark.variant
@pytest.mark.parametrize("sanitize", ["thread", "address"])
def test_sanitizers_find_no_errors(sanitize: str) -> None:
    run("pieces", "5", sanitize=sanitize)
    run("exercise", sanitize=sanitize)


def test_current_build_is_not_repeated() -> None:
    path = build_native.build()
    before = path.stat().st_mtime_ns
    assert build_native.build().stat().st_mtime_ns == before


def test_missing_compiler_is_reported_with_the_consequence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(build_native.NoCompiler, match=r"no-such-compiler is missing.*TensorFlow's is used"):
        build_native.build()
