"""Build the native libraries, where something changed: ``python -m tools.build_native [--sanitize thread|address]``.

    hopsml/collective/lib/libhopsml_collective.so        of native/collective/, with the compiler $CXX, or g++
    hopsml/training/tensorflow/lib/libhopsml_tensorflow-<version>.so
                                                         of native/tensorflow/, for the TensorFlow that is installed

Standard library only, since ``make setup`` calls it. What is beside the library says of which sources and options it was
made; several builds at once are no harm, as each puts its result in place by a rename. Sanitized ones are put in
``.cache/native/``.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "native" / "collective"
NAME = "libhopsml_collective.so"
PROGRAMS = ROOT / "native" / "collective_tests"
CACHE = ROOT / ".cache" / "native"
TENSORFLOW_SOURCES = ROOT / "native" / "tensorflow"
TENSORFLOW_LIBRARIES = ROOT / "hopsml" / "training" / "tensorflow" / "lib"
TENSORFLOW_PACKAGES = ("tensorflow", "tensorflow-cpu")
# Each rounding happens where the source has it: the result of a reduction must not depend on the machine.
OPTIONS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra")


class NoCompiler(Exception):
    """There is no C++ compiler; the message says what to do."""


def target(sanitize: str = "") -> Path:
    """Where the library is put."""
    return (CACHE / sanitize if sanitize else ROOT / "hopsml" / "collective" / "lib") / NAME


def compiler() -> str:
    """The path of the C++ compiler; NoCompiler when there is none."""
    wanted = os.environ.get("CXX") or "g++"
    found = shutil.which(wanted)
    if found is None:
        raise NoCompiler(
            f"{wanted} is missing: hopsml's own collective is not built, and TensorFlow's is used "
            "(apt-get install g++, or name a compiler: CXX=...; then make setup)"
        )
    return found


def build(sanitize: str = "") -> Path:
    """The library, built unless it is there and current.

    Args:
        sanitize: "thread" or "address", for tests; "": neither.

    Raises:
        NoCompiler: there is none.
        subprocess.CalledProcessError: the compiler failed; its ``stderr`` says why.
    """
    return _build(target(sanitize), sorted(SOURCES.glob("*.cc")), "-shared", sanitize)


def build_program(name: str, sanitize: str = "") -> Path:
    """A program of native/collective_tests/ with all of the library in it; arguments and errors as of ``build``."""
    sources = [*sorted(SOURCES.glob("*.cc")), PROGRAMS / f"{name}.cc"]
    return _build(CACHE / (sanitize or "plain") / name, sources, "-O1", sanitize)


def _build(product: Path, sources: Sequence[Path], kind: str, sanitize: str) -> Path:
    options = [*OPTIONS, kind, *([f"-fsanitize={sanitize}", "-g"] if sanitize else [])]
    wanted = _digest(options, [*sources, *sorted(SOURCES.glob("*.h"))])
    if not _is_current(product, wanted):
        _compile(product, wanted, [compiler(), *options, *map(str, sources)])
    return product


def tensorflow_version() -> str | None:
    """Of the TensorFlow that is installed beside this Python; None for none."""
    for package in TENSORFLOW_PACKAGES:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def build_for_tensorflow(version: str) -> Path:
    """TensorFlow's operations, built unless they are there and current; the collective is there.

    Raises NoCompiler, subprocess.CalledProcessError.
    """
    library = TENSORFLOW_LIBRARIES / f"libhopsml_tensorflow-{version}.so"
    options = ["-std=c++17", "-O2", "-fPIC", "-pthread", "-Wall", "-Wextra", f'-DHOPSML_TENSORFLOW_VERSION="{version}"']
    sources = sorted(TENSORFLOW_SOURCES.iterdir())
    wanted = _digest(options, [*sources, SOURCES / "collective.h"])
    if _is_current(library, wanted):
        return library
    command = [compiler(), *options]
    includes, linked = _flags_of_tensorflow()
    # In one piece: TensorFlow's headers are most of the work.
    whole = "".join(f'#include "{path}"\n' for path in sources if path.suffix == ".cc")
    collective = target()
    to_collective = os.path.relpath(collective.parent, library.parent)
    command += [*includes, "-shared", "-x", "c++", "-", f"-Wl,-rpath,$ORIGIN/{to_collective}"]
    _compile(library, wanted, [*command, *linked, f"-L{collective.parent}", f"-l:{collective.name}"], whole)
    return library


def _flags_of_tensorflow() -> tuple[list[str], list[str]]:
    """For the compiler, and for the linker. Its headers' own warnings are not ours."""
    code = "import tensorflow.sysconfig as s; print(*s.get_compile_flags()); print(*s.get_link_flags())"
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    asked = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    includes, linked = asked.stdout.splitlines()[-2:]
    return [f"-isystem{flag[2:]}" if flag.startswith("-I") else flag for flag in includes.split()], linked.split()


def _is_current(library: Path, wanted: str) -> bool:
    stamp = library.with_suffix(".built-of")
    return library.exists() and stamp.exists() and stamp.read_text() == wanted


def _compile(library: Path, wanted: str, command: list[str], source: str = "") -> None:
    """Run the compiler, with ``source`` as its input, and put what it makes in place."""
    library.parent.mkdir(parents=True, exist_ok=True)
    part = library.with_name(f"{library.name}.{os.getpid()}.part")
    try:
        subprocess.run([*command, "-o", str(part)], check=True, capture_output=True, text=True, input=source)
        part.replace(library)
    finally:
        part.unlink(missing_ok=True)
    library.with_suffix(".built-of").write_text(wanted)


def _digest(options: Sequence[str], files: Sequence[Path]) -> str:
    """Of all that the library is made of."""
    digest = hashlib.sha256(repr([os.environ.get("CXX"), *options]).encode())
    for path in files:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def main(arguments: Sequence[str]) -> None:
    """Build, and say what hinders."""
    parser = argparse.ArgumentParser(prog="build_native", description=__doc__.splitlines()[0])
    parser.add_argument("--sanitize", choices=("thread", "address"), default="")
    parser.add_argument("--stamp", type=Path, help="touched when all is done that can be")
    given = parser.parse_args(arguments)
    try:
        build(given.sanitize)
        if not given.sanitize and (version := tensorflow_version()):
            build_for_tensorflow(version)
    except NoCompiler as problem:
        print(f"setup: {problem}", file=sys.stderr)
    except subprocess.CalledProcessError as failed:
        sys.exit(f"setup: native/ does not compile:\n{failed.stderr}")
    if given.stamp:
        given.stamp.parent.mkdir(parents=True, exist_ok=True)
        given.stamp.touch()


if __name__ == "__main__":
    main(sys.argv[1:])
