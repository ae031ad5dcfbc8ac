"""Test of the libraries of a wheel for another processor: cross-compiled, linked as in the wheel, run by an emulator."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.helpers.clock import END_S
from tools import build_native, build_wheel

TARGET = build_wheel.Target("aarch64", is_own=False)
COMPILER, EMULATOR, SYSTEM = "aarch64-linux-gnu-g++", "qemu-aarch64", Path("/usr/aarch64-linux-gnu")

pytestmark = [
    pytest.mark.local,
    pytest.mark.variant,
    pytest.mark.skipif(
        not (shutil.which(COMPILER) and shutil.which(EMULATOR) and SYSTEM.is_dir()),
        reason="needs apt-get install g++-aarch64-linux-gnu qemu-user",
    ),
]


def test_processes_on_aarch64_reduce_over_sockets_and_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", COMPILER)
    build_wheel._create_environment()
    library = tmp_path / build_native.NAME
    build_wheel._link(
        TARGET, library, build_native.objects(build_native.sources_of(build_native.target()), TARGET.objects)
    )
    assert build_wheel._symbols_fit(TARGET, library)
    program = tmp_path / "exercise"
    source = build_native.PROGRAMS / "exercise.cc"
    linked = [f"-L{tmp_path}", "-lhopsml_collective", f"-Wl,-rpath,{tmp_path}"]
    subprocess.run([COMPILER, *build_native.OPTIONS, source, "-o", program, *linked], check=True)
    command = [EMULATOR, "-L", SYSTEM, program, "two-processes"]
    done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, timeout=END_S, check=False)
    assert done.returncode == 0, done.stderr


def test_missing_cross_compiler_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CXX", "set again by the call")
    with pytest.raises(build_native.NoCompiler, match=r"is missing.*apt-get install g\+\+-aarch64-linux-gnu\)"):
        build_wheel._use_cross_compiler(TARGET)
