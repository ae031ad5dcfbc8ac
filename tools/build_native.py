"""Build the native libraries, where something changed: ``python -m tools.build_native [--sanitize thread|address]``.

    hopsml/collective/lib/libhopsml_collective.so        of native/collective/, with the compiler $CXX, or g++

Standard library only, since ``make setup`` calls it. What is beside the library says of which sources and options it was
made; several builds at once are no harm, as each puts its result in place by a rename. Sanitized ones are put in
``.cache/native/``.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "native" / "collective"
NAME = "libhopsml_collective.so"
# Each rounding happens where the source has it: the result of a reduction must not depend on the machine.
OPTIONS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra")


class NoCompiler(Exception):
    """There is no C++ compiler; the message says what to do."""


def target(sanitize: str = "") -> Path:
    """Where the library is put."""
    folder = ROOT / ".cache" / "native" / sanitize if sanitize else ROOT / "hopsml" / "collective" / "lib"
    return folder / NAME


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


def build(sanitize: str = "", sources: Path = SOURCES, library: Path | None = None) -> Path:
    """The library, built unless it is there and current.

    Args:
        sanitize: "thread" or "address", for tests; "": neither.
        sources: the folder of the C++ files.
        library: where to put it, instead of ``target(sanitize)``.

    Raises:
        NoCompiler: there is none.
        subprocess.CalledProcessError: the compiler failed; its ``stderr`` says why.
    """
    library = library or target(sanitize)
    options = [*OPTIONS, *([f"-fsanitize={sanitize}", "-g"] if sanitize else [])]
    stamp = library.with_suffix(".built-of")
    wanted = _digest(options, sources)
    if library.exists() and stamp.exists() and stamp.read_text() == wanted:
        return library
    command = [compiler(), *options]
    library.parent.mkdir(parents=True, exist_ok=True)
    part = library.with_name(f"{library.name}.{os.getpid()}.part")
    try:
        files = [str(path) for path in sorted(sources.glob("*.cc"))]
        subprocess.run([*command, "-shared", *files, "-o", str(part)], check=True, capture_output=True, text=True)
        part.replace(library)
    finally:
        part.unlink(missing_ok=True)
    stamp.write_text(wanted)
    return library


def _digest(options: Sequence[str], sources: Path) -> str:
    """Of all that the library is made of."""
    digest = hashlib.sha256(repr([os.environ.get("CXX"), *options]).encode())
    for path in sorted(sources.iterdir()):
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
    except NoCompiler as problem:
        print(f"setup: {problem}", file=sys.stderr)
    except subprocess.CalledProcessError as failed:
        sys.exit(f"setup: {SOURCES} does not compile:\n{failed.stderr}")
    if given.stamp:
        given.stamp.parent.mkdir(parents=True, exist_ok=True)
        given.stamp.touch()


if __name__ == "__main__":
    main(sys.argv[1:])
