"""State of a slot's GPUs for the preflight: from NVML, and from Xid errors in the log of the Linux kernel.

Nothing here raises: what cannot be found out, as in a container without the right to read the kernel's log, is left out.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from typing import Any

from hopsml.cluster.shared.protocol import GpuFacts

# Bits of NVML's clock event reasons that mean trouble; others, as an idle GPU or a power limit, are normal.
THROTTLE_REASONS = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
# Xid errors of broken hardware or a broken driver (NVIDIA, "Xid Errors"); those that a program causes are left out.
BROKEN_XIDS = {
    48: "double-bit ECC error",
    64: "failed row remapping",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    92: "high rate of single-bit ECC errors",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "GSP timeout",
    120: "GSP error",
}
# "3,1,9,-;NVRM: Xid (PCI:0000:18:00): 79, pid=..., GPU has fallen off the bus."; at the beginning only, since other
# messages contain names that users choose, such as those of control groups.
_XID = re.compile(r"[^ ;][^;]*;NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")
_RECORD_BYTES = 8192  # the longest record of /dev/kmsg
# Packages of the CUDA runtime; those without a suffix begin with CUDA 13, and their version is CUDA's.
_RUNTIMES = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime-cu11")


def gpu_facts(indices: Sequence[int], kernel_log: str = "/dev/kmsg") -> tuple[GpuFacts, ...]:
    """Return the state of these GPUs; () without NVML, which is not an error.

    Args:
        indices: GPUs of the slot.
        kernel_log: device with the records of the kernel's log since boot, as far as its buffer holds them.
    """
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
        xids = xids_by_bus(kernel_records(kernel_log))
        return tuple(_gpu(pynvml, index, xids) for index in indices)
    except pynvml.NVMLError:  # an emulated resource: the index is not that of a real GPU
        return ()
    finally:
        pynvml.nvmlShutdown()


def _gpu(nvml: Any, index: int, xids: dict[str, tuple[int, ...]]) -> GpuFacts:
    """Return the state of one GPU; 0, "" or () for values that are not available."""
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def query(question: str, *arguments: Any) -> Any:
        try:
            return getattr(nvml, question)(*arguments)
        except (nvml.NVMLError, AttributeError):  # not supported by this model, driver or binding, or not permitted
            return None

    uncorrected, since_load = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    reasons = int(query("nvmlDeviceGetCurrentClocksThrottleReasons", handle) or 0)
    _, _, pending, failed = query("nvmlDeviceGetRemappedRows", handle) or (0, 0, 0, 0)
    pci, persistence = query("nvmlDeviceGetPciInfo", handle), query("nvmlDeviceGetPersistenceMode", handle)
    return GpuFacts(
        index=index,
        ecc_errors=int(query("nvmlDeviceGetTotalEccErrors", handle, uncorrected, since_load) or 0),
        temperature_c=int(query("nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU) or 0),
        processes=len(query("nvmlDeviceGetComputeRunningProcesses", handle) or ()),
        driver=_text(query("nvmlSystemGetDriverVersion")),
        driver_cuda=int(query("nvmlSystemGetCudaDriverVersion_v2") or 0),
        throttling=tuple(text for bit, text in THROTTLE_REASONS.items() if reasons & bit),
        rows_pending=bool(pending),
        rows_failed=bool(failed),
        persistent=None if persistence is None else bool(persistence),
        xids=xids.get(_bus(_text(pci.busId)), ()) if pci is not None else (),
    )


def _text(value: Any) -> str:
    """Return a text of NVML, which older bindings return as bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")


def _bus(name: str) -> str:
    """Return domain, bus and device in the notation of the kernel: "0000:18:00", from "00000000:18:00.0"."""
    domain, _, place = name.lower().partition(":")
    return f"{domain[-4:].rjust(4, '0')}:{place.partition('.')[0]}"


def xids_by_bus(records: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Return the distinct Xid errors of broken hardware by GPU (domain, bus, device), in their order."""
    found: dict[str, tuple[int, ...]] = {}
    for record in records:
        if (match := _XID.match(record)) is not None and (xid := int(match[2])) in BROKEN_XIDS:
            bus = _bus(match[1])
            if xid not in found.get(bus, ()):
                found[bus] = (*found.get(bus, ()), xid)
    return found


def kernel_records(device: str) -> Iterator[str]:
    """Yield the present records of the kernel's log; none without the right to read it."""
    with contextlib.suppress(OSError):
        descriptor = os.open(device, os.O_RDONLY | os.O_NONBLOCK)
        try:
            while True:
                try:
                    record = os.read(descriptor, _RECORD_BYTES)
                except BrokenPipeError:  # a record was overwritten meanwhile; the next read continues behind it
                    continue
                except OSError as error:
                    if error.errno == errno.EINVAL:  # a record longer than the buffer, which the next read repeats
                        return
                    raise  # EAGAIN: there is no further record
                if not record:  # a file in place of the device
                    return
                yield from record.decode(errors="replace").splitlines()
        finally:
            os.close(descriptor)


def needed_cuda() -> int:
    """Return the major version of CUDA that the installed frameworks bring with them; 0 if they bring none."""
    for name in _RUNTIMES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return int(metadata.version(name).partition(".")[0])
    return 0
