"""Measurements of an agent's own slot: limits, disk, versions, GPUs.

They take tens of milliseconds and raise nothing.
"""

from __future__ import annotations

import hashlib
import os
import platform
import pwd
import resource
import shutil
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from hopsml.cluster.shared.protocol import GpuFacts, PreflightFacts
from hopsml.cluster.worker import server_guard

MB = 1 << 20
WRITE_BYTES = 4 * MB
WRITE_CHUNK = MB // 2
FIRST_PERSON, NOBODY = 1000, 65534  # uids; lower ones are system services
WRITE_MOST_S = 0.5  # seconds after which a slow disk has been detected
CORE_TURNS = 12  # the best one counts: other load makes some slow, a throttled core makes all slow
# Members of one group exchange data by these; a State contains the formats of numpy and keras.
FRAMEWORKS = ("tensorflow", "tensorflow-cpu", "keras", "torch", "jax", "numpy")


def measure(folder: Path, host: str, door: int, gpu_indices: Sequence[int]) -> PreflightFacts:
    """Measure the slot's properties that the preflight rules evaluate.

    Args:
        folder: scratch folder of the agent.
        host: address of the agent.
        door: port of its probe server.
        gpu_indices: GPUs of the slot.
    """
    write_mb_s, disk_problem = write_speed(folder)
    return PreflightFacts(
        host=host,
        door=door,
        folder=str(folder),
        open_files=_limit(resource.RLIMIT_NOFILE),
        stack_mb=_in_mb(_limit(resource.RLIMIT_STACK)),
        shared_memory_mb=_free_mb("/dev/shm"),
        disk_mb=_free_mb(folder),
        write_mb_s=write_mb_s,
        disk_problem=disk_problem,
        versions=versions(),
        gpus=gpu_facts(gpu_indices),
        core_mb_s=core_speed(),
        others=other_people(),
        guards=server_guard.is_ready(),
        clock=time.time(),  # last, as it is compared with the clock of the receiver
    )


def _limit(which: int) -> int:
    soft, _ = resource.getrlimit(which)
    return -1 if soft == resource.RLIM_INFINITY else soft


def _in_mb(size: int) -> float:
    return size / MB if size >= 0 else -1.0


def _free_mb(folder: Path | str) -> float:
    """Return the MB that this user may use; 0 if there is no such folder."""
    try:
        return shutil.disk_usage(folder).free / MB
    except OSError:
        return 0.0


def write_speed(folder: Path) -> tuple[float, str]:
    """Return the MB/s of writing a file with fdatasync, and the error text, or ""."""
    path = folder / "preflight"
    chunk, written, began = os.urandom(WRITE_CHUNK), 0, time.monotonic()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            while written < WRITE_BYTES and time.monotonic() - began < WRITE_MOST_S:
                if (count := os.write(descriptor, chunk)) == 0:
                    raise OSError("nothing was written")
                written += count
                os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        return 0.0, f"{error.strerror or error} after {written / MB:.1f} MB"
    finally:
        path.unlink(missing_ok=True)
    return written / MB / max(time.monotonic() - began, 1e-6), ""


def other_people(proc: Path = Path("/proc")) -> tuple[str, ...]:
    """Return the names of other users who have processes on this host, without root and system users.

    A container shows only its own processes, and /proc mounted with hidepid only those of this user.
    """
    owners = set()
    for entry in os.scandir(proc):
        if entry.name.isdecimal():
            try:
                owners.add(entry.stat().st_uid)
            except OSError:  # it has ended
                continue
    owners -= {os.geteuid(), os.getuid()}
    return tuple(sorted(_name_of(uid) for uid in owners if FIRST_PERSON <= uid != NOBODY))


def _name_of(uid: int) -> str:
    """Return the name of a user, or the uid if there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def core_speed() -> float:
    """Return the MB/s of SHA-256 on one core, as a measure of computing speed that needs no library."""
    block = bytes(MB)
    best = min(_seconds_to_hash(block) for _ in range(CORE_TURNS))
    return 1.0 / max(best, 1e-6)


def _seconds_to_hash(block: bytes) -> float:
    began = time.perf_counter()
    hashlib.sha256(block).digest()
    return time.perf_counter() - began


def versions() -> dict[str, str]:
    """Return the installed versions of Python, hopsml and the frameworks, without importing these."""
    found = {"python": platform.python_version(), "hopsml": str(sys.modules["hopsml"].__version__)}
    for name in FRAMEWORKS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def gpu_facts(indices: Sequence[int]) -> tuple[GpuFacts, ...]:
    """Return the state of these GPUs; () without NVML, which is not an error."""
    if not indices:
        return ()
    try:
        import pynvml
    except ImportError:
        return ()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        return tuple(_gpu(pynvml, index) for index in indices)
    except pynvml.NVMLError:  # an emulated resource: the index is not that of a real GPU
        return ()
    finally:
        pynvml.nvmlShutdown()


def _gpu(nvml: Any, index: int) -> GpuFacts:
    """Return the state of one GPU; 0 for values that are not available."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def ask(question: Any, *arguments: Any) -> Any:
        try:
            return question(handle, *arguments)
        except nvml.NVMLError:  # not supported by this model, or not permitted in this container
            return None

    uncorrected, since_load = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    return GpuFacts(
        index=index,
        ecc_errors=int(ask(nvml.nvmlDeviceGetTotalEccErrors, uncorrected, since_load) or 0),
        temperature_c=int(ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU) or 0),
        processes=len(ask(nvml.nvmlDeviceGetComputeRunningProcesses) or ()),
    )
