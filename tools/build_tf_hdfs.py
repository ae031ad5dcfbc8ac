"""Build TensorFlow's file system for ``hdfs://`` if its sources changed: ``python -m tools.build_tf_hdfs [--lock]``.

    hopsml/training/tensorflow/lib/libhopsml_tf_hdfs.so       of native/tf_hdfs/, with ``cargo``, for any TensorFlow

It takes one to three minutes without a cache, so ``make setup`` and ``make demo`` do not call it; ``make wheel``,
``make tf-hdfs`` and the tests that need it do. The crates are those of ``native/tf_hdfs/crates.lock``, by checksum;
``--lock`` selects their newest versions. One of them, ``hdfs-native``, is built from a patched copy (``_MENDED``).
It uses the standard library only, as tools/build_native.py does. A lock makes concurrent builds wait.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tomllib

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "native" / "tf_hdfs"
LOCK = SOURCES / "crates.lock"
LIBRARY = ROOT / "hopsml" / "training" / "tensorflow" / "lib" / "libhopsml_tf_hdfs.so"
CACHE = ROOT / ".cache" / "native" / "tf_hdfs"
CRATE = "hdfs-native"

# File of the crate, its text, and the replacement.
_MENDED = (
    # Without this the last block of a file that is being written, or was just closed, does not count in its length: a
    # reader sees an empty file, without an error.
    (
        "src/client.rs",
        "        if let Some(locations) = located_info.locations {\n            let ec_schema",
        "        if let Some(mut locations) = located_info.locations {\n"
        "            if !locations.is_last_block_complete\n"
        "                && let Some(last) = locations.last_block.clone()\n"
        "                && last.b.num_bytes() > 0\n"
        "            {\n"
        "                locations.file_length = last.offset + last.b.num_bytes();\n"
        "                if !locations.blocks.iter().any(|block| block.b.block_id == last.b.block_id) {\n"
        "                    locations.blocks.push(last);\n"
        "                }\n"
        "            }\n"
        "            let ec_schema",
    ),
    # Identifies a file that is opened again.
    (
        "src/file.rs",
        "    /// Returns the total size of the file\n",
        "    /// The number of its first block; None for an empty file.\n"
        "    pub fn first_block(&self) -> Option<u64> {\n"
        "        self.located_blocks.blocks.first().map(|block| block.b.block_id)\n"
        "    }\n\n"
        "    /// Returns the total size of the file\n",
    ),
    # Time after which a silent DataNode of a writer is replaced; the default is longer than the step's deadline.
    (
        "src/hdfs/block_writer.rs",
        "const ACK_READ_TIMEOUT: Duration = Duration::from_secs(60);",
        "const ACK_READ_TIMEOUT: Duration = Duration::from_secs(10);",
    ),
    # Sockets to DataNodes are reused for 3 s; a forked process must not reuse those of its parent.
    (
        "src/hdfs/connection.rs",
        "        self.remove_expired();\n\n        let url",
        "        static OWNER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);\n"
        "        let me = std::process::id();\n"
        "        if OWNER.swap(me, Ordering::AcqRel) != me {\n"
        "            std::mem::forget(std::mem::take(&mut *self.cache.lock().unwrap()));\n"
        "        }\n"
        "        self.remove_expired();\n\n        let url",
    ),
)


class NoCargo(Exception):
    """Error of a missing ``cargo``; the message has the consequences and the remedy."""


def cargo() -> str:
    """Return the path of ``$CARGO``, or of ``cargo``; raise NoCargo if there is none."""
    wanted = os.environ.get("CARGO") or "cargo"
    found = shutil.which(wanted)
    if found is None:
        raise NoCargo(
            f"{wanted} is missing: TensorFlow does not open hdfs:// itself, and workers write to a local folder that is "
            "mirrored (install Rust 1.88 or later, or name its cargo: CARGO=...; then make tf-hdfs)"
        )
    return found


def build() -> Path:
    """Build the library unless it is current, and return its path.

    Raises:
        NoCargo: Rust is not installed.
        subprocess.CalledProcessError: it does not compile, or crates cannot be fetched; ``stderr`` has the reason.
    """
    stamp, wanted = LIBRARY.with_suffix(".built-of"), _digest()
    with _alone():
        if not (LIBRARY.exists() and stamp.exists() and stamp.read_text() == wanted):
            made = _compiled(CACHE / "sources")
            LIBRARY.parent.mkdir(parents=True, exist_ok=True)
            part = LIBRARY.with_name(f"{LIBRARY.name}.part")
            shutil.copyfile(made, part)
            part.replace(LIBRARY)
            stamp.write_text(wanted)
    return LIBRARY


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Hold the lock of builds: a build uses all processors, and replaces the copied sources."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def link_portable(library: Path, linker: Path, target: str = "") -> None:
    """Build the library, its last step by another linker, into the file ``library``; errors as in ``build``.

    Args:
        library: file to write; its folder exists.
        linker: program that links for the oldest glibc that the library must load with.
        target: Rust's name of another platform, such as "aarch64-unknown-linux-gnu"; "": that of this machine.
    """
    if target and not _has_standard_library(target):
        raise NoCargo(f"this machine's Rust cannot compile for {target} (rustup target add {target})")
    with _alone():
        of_target = ("--target", target) if target else ()
        _by_cargo(CACHE / "sources", "rustc", "--lib", "--quiet", *of_target, options=("-C", f"linker={linker}"))
        shutil.copyfile(CACHE / "target" / target / "release" / LIBRARY.name, library)


def _has_standard_library(target: str) -> bool:
    """Return True if Rust's standard library for a platform is installed."""
    rustc = Path(cargo()).with_name("rustc")
    asked = subprocess.run(
        [rustc, "--print", "target-libdir", "--target", target], capture_output=True, text=True, check=False
    )
    return asked.returncode == 0 and Path(asked.stdout.strip()).is_dir()


def test() -> str:
    """Run the library's own tests and return their output; errors as in ``build``."""
    with _alone():
        return _by_cargo(CACHE / "sources", "test")


def _compiled(folder: Path) -> Path:
    """Build the library from sources in ``folder``, and return cargo's result."""
    _by_cargo(folder, "build", "--quiet")
    return CACHE / "target" / "release" / LIBRARY.name


def _by_cargo(folder: Path, *verb: str, options: Sequence[str] = ()) -> str:
    """Run a verb of cargo with the locked crates, one of them patched, and return its output.

    Args:
        folder: copied sources.
        verb: arguments of cargo.
        options: of the compiler, for the library alone and not for the crates.
    """
    laid_out, wanted = folder / ".laid-out-of", _digest()
    if not (laid_out.exists() and laid_out.read_text() == wanted):  # otherwise cargo would compile everything again
        _lay_out(folder, LOCK.read_text(encoding="utf-8"))
        _run(folder, "fetch", "--locked", "--quiet")
        _mend(_source_of(folder, CRATE), folder / CRATE)
        laid_out.write_text(wanted)
    patch = f'patch.crates-io.{CRATE}.path="{folder / CRATE}"'
    told = _run(folder, *verb, "--release", "--offline", "--config", patch, *(("--", *options) if options else ()))
    _compare(_packages(folder / "Cargo.lock"), _packages(LOCK))
    return told


def _lay_out(folder: Path, lock: str) -> None:
    """Copy the sources, and write Cargo's lock file with the registry's name, which Cargo generates."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(SOURCES, folder)
    _run(folder, "generate-lockfile", "--quiet")
    source = re.search(r"^source = .*$", (folder / "Cargo.lock").read_text(encoding="utf-8"), re.MULTILINE)
    if source is None:
        raise ValueError(f"{folder / 'Cargo.lock'}: no crate comes from a registry")
    text = re.sub("^checksum = ", f"{source[0]}\nchecksum = ", lock, flags=re.MULTILINE)
    (folder / "Cargo.lock").write_text(text, encoding="utf-8")


def _source_of(folder: Path, crate: str) -> Path:
    """Return the folder into which cargo has fetched a crate."""
    told = json.loads(_run(folder, "metadata", "--format-version", "1", "--locked", "--offline"))
    return next(Path(package["manifest_path"]).parent for package in told["packages"] if package["name"] == crate)


def _mend(source: Path, copy: Path) -> None:
    shutil.copytree(source, copy)
    for name, before, after in _MENDED:
        text = (copy / name).read_text(encoding="utf-8")
        if text.count(before) != 1:
            raise ValueError(
                f"{CRATE}'s {name} is not the one that tools/build_tf_hdfs.py mends: {before!r} is not in it once"
            )
        (copy / name).write_text(text.replace(before, after), encoding="utf-8")


def _packages(lock: Path) -> dict[tuple[str, str], Any]:
    """Return checksums by name and version; None for packages that are not from a registry."""
    packages = tomllib.loads(lock.read_text(encoding="utf-8"))["package"]
    return {(package["name"], package["version"]): package.get("checksum") for package in packages}


def _compare(built: dict[tuple[str, str], Any], locked: dict[tuple[str, str], Any]) -> None:
    """Raise ValueError if cargo used other crates than the locked ones, apart from the patched one."""
    other = {package for package, checksum in built.items() if package[0] != CRATE and locked.get(package) != checksum}
    if other:
        raise ValueError(f"cargo took crates that are not in native/tf_hdfs/crates.lock: {sorted(other)}")


def _run(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "CARGO_TARGET_DIR": str(CACHE / "target")}
    command = [cargo(), *arguments]
    return subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True).stdout


def _digest() -> str:
    """Return the digest of the library's patches and source files."""
    digest = hashlib.sha256(repr(_MENDED).encode())
    for path in sorted(path for path in SOURCES.rglob("*") if path.is_file()):
        digest.update(str(path.relative_to(SOURCES)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def lock() -> None:
    """Lock the newest crates that satisfy native/tf_hdfs/Cargo.toml; errors as in ``build``."""
    with _alone():
        _lay_out(CACHE / "sources", "")
        _run(CACHE / "sources", "generate-lockfile", "--quiet")
        text = (CACHE / "sources" / "Cargo.lock").read_text(encoding="utf-8")
    heading = "".join(line for line in LOCK.read_text(encoding="utf-8").splitlines(True) if line.startswith("#"))
    kept = [line for line in text.splitlines(True) if not line.startswith(("#", "source = "))]
    LOCK.write_text(heading + "".join(kept).lstrip("\n"), encoding="utf-8")


def main(arguments: Sequence[str]) -> None:
    """Build the library or lock the crates; print the reason if this is not possible."""
    parser = argparse.ArgumentParser(prog="build_tf_hdfs", description=__doc__.splitlines()[0])
    parser.add_argument("--lock", action="store_true", help="choose the crates anew, and build nothing")
    parser.add_argument("--if-possible", action="store_true", help="without cargo: say what is lost, and go on")
    given = parser.parse_args(arguments)
    try:
        lock() if given.lock else build()
    except NoCargo as problem:
        if given.if_possible:
            print(f"tf-hdfs: {problem}", file=sys.stderr)
        else:
            sys.exit(f"tf-hdfs: {problem}")
    except subprocess.CalledProcessError as failed:
        sys.exit(f"tf-hdfs: native/tf_hdfs is not built: {' '.join(failed.cmd)}:\n{failed.stderr}")


if __name__ == "__main__":
    main(sys.argv[1:])
