"""Build the native libraries whose sources changed: ``python -m tools.build_native [--sanitize thread|address]``.

    hopsml/collective/lib/libhopsml_collective.so        of native/collective/, with the compiler $CXX, or g++
    hopsml/collective/lib/libhopsml_server.so            of native/server/, with SHA-256 of native/collective/
    hopsml/training/data/lib/libhopsml_rows.so           of native/rows/
    hopsml/training/tensorflow/lib/libhopsml_tensorflow-<minor version>.so
                                                         of native/tensorflow/, for the installed TensorFlow

It uses the standard library only, since ``make setup`` calls it. A ``.built-of`` file in the folder of each library has the
digest of its sources and options. Concurrent builds are safe, because each renames its result into place. At most as many
compilers as processors run at once. Sanitized libraries, and objects that libraries and test programs share, are in
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
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "native" / "collective"
NAME = "libhopsml_collective.so"
SERVER_SOURCES = ROOT / "native" / "server"
SERVER = ROOT / "hopsml" / "collective" / "lib" / "libhopsml_server.so"
ROWS_SOURCES = ROOT / "native" / "rows"
ROWS = ROOT / "hopsml" / "training" / "data" / "lib" / "libhopsml_rows.so"
PROGRAMS = ROOT / "native" / "collective_tests"
CACHE = ROOT / ".cache" / "native"
PLAIN = CACHE / "plain" / "objects"
TENSORFLOW_SOURCES = ROOT / "native" / "tensorflow"
TENSORFLOW_LIBRARIES = ROOT / "hopsml" / "training" / "tensorflow" / "lib"
TENSORFLOW_PACKAGES = ("tensorflow", "tensorflow-cpu")
# No contraction of roundings: the result of a reduction must not depend on the machine.
OPTIONS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra")
COMPILERS = threading.BoundedSemaphore(os.cpu_count() or 1)  # limit of concurrent compilers


class NoCompiler(Exception):
    """Error of a missing C++ compiler; the message has the remedy."""


def target(sanitize: str = "") -> Path:
    """Return the path of the collective library; ``sanitize``: as in ``build``."""
    return (CACHE / sanitize if sanitize else ROOT / "hopsml" / "collective" / "lib") / NAME


def compiler() -> str:
    """Return the path of the C++ compiler; raise NoCompiler if there is none."""
    wanted = os.environ.get("CXX") or "g++"
    found = shutil.which(wanted)
    if found is None:
        raise NoCompiler(
            f"{wanted} is missing: hopsml's own collective is not built, and TensorFlow's is used, whose server nothing "
            "guards; shuffled rows are gathered by NumPy, which takes longer (apt-get install g++, or name a compiler: "
            "CXX=...; then make setup)"
        )
    return found


def build(sanitize: str = "") -> Path:
    """Build the collective library unless it is current, and return its path.

    Args:
        sanitize: "thread" or "address", for tests; "": neither.

    Raises:
        NoCompiler: there is no compiler.
        subprocess.CalledProcessError: the compiler failed; its ``stderr`` has the reason.
    """
    return _build(target(sanitize), sources_of(target()), ["-shared"], sanitize)


def build_server() -> Path:
    """Build the guard of TensorFlow's server unless it is current; errors as in ``build``."""
    return _build(SERVER, sources_of(SERVER), ["-shared"], "")


def build_rows() -> Path:
    """Build the library that gathers rows of data sets unless it is current; errors as in ``build``."""
    return _build(ROWS, sources_of(ROWS), ["-shared"], "")


def sources_of(library: Path) -> list[Path]:
    """Return the sources of one of the three libraries that need no TensorFlow."""
    folder = {target(): SOURCES, SERVER: SERVER_SOURCES, ROWS: ROWS_SOURCES}[library]
    shared = [SOURCES / "sha256.cc"] if library == SERVER else []
    return [*sorted(folder.glob("*.cc")), *shared]


def build_program(name: str, sanitize: str = "") -> Path:
    """Build a program of native/collective_tests/ with the whole library; errors as in ``build``.

    Args:
        name: stem of the program's source file.
        sanitize: as in ``build``.
    """
    sources = [*sorted(SOURCES.glob("*.cc")), PROGRAMS / f"{name}.cc"]
    return _build(CACHE / (sanitize or "plain") / name, sources, [], sanitize)


def _build(product: Path, sources: Sequence[Path], kind: list[str], sanitize: str) -> Path:
    options = [*OPTIONS, *([f"-fsanitize={sanitize}", "-g"] if sanitize else [])]
    folders = sorted({source.parent for source in sources})
    headers = [header for folder in folders for header in sorted(folder.glob("*.h"))]
    wanted = _digest([*options, *kind], [*sources, *headers])
    if not _is_current(product, wanted):
        objects = _objects(sources, [compiler(), *options], CACHE / (sanitize or "plain") / "objects")
        _make(product, [compiler(), *options, *kind, *map(str, objects), "-ldl"])  # -ldl for the libc of older systems
        product.with_suffix(".built-of").write_text(wanted)
    return product


def objects(sources: Sequence[Path], folder: Path = PLAIN) -> list[Path]:
    """Compile each source of a library unless that was done, and return the objects; errors as in ``build``.

    Args:
        sources: source files.
        folder: folder of the objects; one compiler's objects replace older ones in the same folder.
    """
    return _objects(sources, [compiler(), *OPTIONS], folder)


def _objects(sources: Sequence[Path], command: list[str], folder: Path) -> list[Path]:
    """Compile each source unless its object exists, and return the objects; their names contain a digest of their inputs."""

    def compiled(source: Path) -> Path:
        digest = _digest(command, [source, *sorted(source.parent.glob("*.h")), *sorted(SOURCES.glob("*.h"))])
        made = folder / f"{source.stem}-{digest[:20]}.o"
        if not made.exists():
            _make(made, [*command, "-c", str(source)])
            for older in folder.glob(f"{source.stem}-{'?' * 20}.o"):
                if older != made:
                    older.unlink(missing_ok=True)
        return made

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return list(threads.map(compiled, sources))


def tensorflow_version() -> str | None:
    """Return the version of the TensorFlow that is installed for this Python; None if there is none."""
    for package in TENSORFLOW_PACKAGES:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def build_for_tensorflow(version: str) -> Path:
    """Build TensorFlow's operations for the installed version unless they are current; errors as in ``build``.

    The collective library must exist.
    """
    library, wanted = _for_tensorflow(version)
    if not _is_current(library, wanted):
        includes, linked = _flags_of_tensorflow()
        compiled = object_for_tensorflow(version, includes)
        collective = target()
        to_collective = os.path.relpath(collective.parent, library.parent)
        command = [compiler(), "-pthread", "-shared", str(compiled), f"-Wl,-rpath,$ORIGIN/{to_collective}"]
        _make(library, [*command, *linked, f"-L{collective.parent}", f"-l:{collective.name}"])
        library.with_suffix(".built-of").write_text(wanted)
    return library


def minor(version: str) -> str:
    """Return the first two numbers of a version, by which TensorFlow's libraries are named: its patches keep its ABI."""
    return ".".join(version.split(".")[:2])


def _for_tensorflow(version: str) -> tuple[Path, str]:
    """Return the path of the library, and the digest of its inputs."""
    library = TENSORFLOW_LIBRARIES / f"libhopsml_tensorflow-{minor(version)}.so"
    return library, _digest(_options_for_tensorflow(version), [*_sources_for_tensorflow(), SOURCES / "collective.h"])


def _sources_for_tensorflow() -> list[Path]:
    return sorted(TENSORFLOW_SOURCES.iterdir())


def _options_for_tensorflow(version: str) -> list[str]:
    named = f'-DHOPSML_TENSORFLOW_VERSION="{minor(version)}"'
    return ["-std=c++17", "-O2", "-fPIC", "-pthread", "-Wall", "-Wextra", named]


def object_for_tensorflow(version: str, includes: Sequence[str], folder: Path = PLAIN) -> Path:
    """Compile the operations unless that was done, without the collective, and return the object.

    Args:
        version: version of TensorFlow.
        includes: the compiler's options for its headers.
        folder: folder of the object.
    """
    _, wanted = _for_tensorflow(version)
    made = folder / f"tensorflow-{wanted[:20]}.o"
    if not made.exists():
        # As one source: TensorFlow's headers are most of the work.
        whole = "".join(f'#include "{path}"\n' for path in _sources_for_tensorflow() if path.suffix == ".cc")
        _make(made, [compiler(), *_options_for_tensorflow(version), *includes, "-c", "-x", "c++", "-"], whole)
    return made


def _flags_of_tensorflow() -> tuple[list[str], list[str]]:
    """Return TensorFlow's options for the compiler and for the linker; warnings of its headers are disabled."""
    code = "import tensorflow.sysconfig as s; print(*s.get_compile_flags()); print(*s.get_link_flags())"
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    asked = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    includes, linked = asked.stdout.splitlines()[-2:]
    return [f"-isystem{flag[2:]}" if flag.startswith("-I") else flag for flag in includes.split()], linked.split()


def _is_current(library: Path, wanted: str) -> bool:
    stamp = library.with_suffix(".built-of")
    return library.exists() and stamp.exists() and stamp.read_text() == wanted


def _make(product: Path, command: list[str], source: str = "") -> None:
    """Run the compiler with ``source`` as its input, and rename the result into place."""
    product.parent.mkdir(parents=True, exist_ok=True)
    part = product.with_name(f"{product.name}.{os.getpid()}.part")
    try:
        with COMPILERS:
            subprocess.run([*command, "-o", str(part)], check=True, capture_output=True, text=True, input=source)
        part.replace(product)
    finally:
        part.unlink(missing_ok=True)


def _digest(options: Sequence[str], files: Sequence[Path]) -> str:
    """Return the digest of a library's options and source files."""
    digest = hashlib.sha256(repr([os.environ.get("CXX"), *options]).encode())
    for path in files:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _compile_early(version: str) -> Path:
    return object_for_tensorflow(version, _flags_of_tensorflow()[0])


def build_all(sanitize: str = "") -> None:
    """Build every library, and TensorFlow's if TensorFlow is installed; errors as in ``build``."""
    version = None if sanitize else tensorflow_version()
    library, wanted = _for_tensorflow(version) if version else (Path(), "")
    with ThreadPoolExecutor(1) as beside:  # the longest compilation begins first
        early = beside.submit(_compile_early, version) if version and not _is_current(library, wanted) else None
        build(sanitize)
        build_server()
        build_rows()
        if early:
            early.result()
    if version:
        build_for_tensorflow(version)


def main(arguments: Sequence[str]) -> None:
    """Build all libraries, or print the reason why this is not possible."""
    parser = argparse.ArgumentParser(prog="build_native", description=__doc__.splitlines()[0])
    parser.add_argument("--sanitize", choices=("thread", "address"), default="")
    parser.add_argument("--stamp", type=Path, help="touched when all is done that can be")
    given = parser.parse_args(arguments)
    try:
        build_all(given.sanitize)
    except NoCompiler as problem:
        print(f"setup: {problem}", file=sys.stderr)
    except subprocess.CalledProcessError as failed:
        sys.exit(f"setup: native/ does not compile:\n{failed.stderr}")
    if given.stamp:
        given.stamp.parent.mkdir(parents=True, exist_ok=True)
        given.stamp.touch()


if __name__ == "__main__":
    main(sys.argv[1:])
