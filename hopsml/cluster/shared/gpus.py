"""GPUs of a host, their names in Spark and CUDA, and the variables that assign them to a process.

Exclusive claims of GPUs are in ``gpu_claim``.
"""

from __future__ import annotations

import logging
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hopsml.errors import ArgumentError

logger = logging.getLogger(__name__)

NVIDIA_SMI_TIMEOUT_S = 20.0  # seconds; a broken driver blocks nvidia-smi indefinitely

_ADDRESS = re.compile(r"[0-9]{1,4}")


@dataclass(frozen=True)
class HostGpu:
    """GPU of this host.

    ``index`` counts in PCI bus order, as NVML, nvidia-smi and CUDA (if configured so) do.
    """

    index: int
    uuid: str = ""  # GPU-xxxxxxxx-..., "" if unknown
    bus_id: str = ""  # 00000000:3B:00.0, "" if unknown
    processes: int = 0  # compute processes on it, of any user

    @property
    def key(self) -> str:
        """Name of its lock file: the same in every process and container that sees this GPU."""
        return re.sub(r"[^A-Za-z0-9.-]", "_", self.uuid or self.bus_id or f"index-{self.index}")


def environment_for(gpu_indices: Sequence[int]) -> dict[str, str]:
    """Return the variables that give a process exactly these GPUs, numbered 0, 1, ... in the given order.

    Without GPUs the variable is "-1", not absent and not "": a CPU slot on a GPU host must not touch a GPU, and some
    launchers and shells treat an empty value as "not set".
    """
    visible = ",".join(str(index) for index in gpu_indices) or "-1"
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": visible}


def parse_address(address: str, host: Iterable[HostGpu] = ()) -> int:
    """Return the index for a resource address of Spark: a decimal number, or the UUID of a GPU of ``host``.

    Raises:
        ArgumentError: for anything else ("1abc", "-1", "").
    """
    text = address.strip()
    if _ADDRESS.fullmatch(text):
        return int(text)
    for gpu in host:
        if gpu.uuid and gpu.uuid == text:
            return gpu.index
    raise ArgumentError(
        f"{address!r} is no GPU address: a decimal index such as '0' or the UUID of a GPU of this host was "
        "expected; correct the discovery script that spark.executor.resource.gpu.discoveryScript names"
    )


def visible_gpus(host: Sequence[HostGpu], cuda_visible_devices: str) -> tuple[HostGpu, ...]:
    """Return the GPUs that CUDA would show under this value of CUDA_VISIBLE_DEVICES, in its order.

    As in CUDA the list ends at the first entry that identifies no GPU ("-1", "7" of 4); an entry is an index or the
    prefix of exactly one UUID. Parts of a GPU (MIG) are not counted.
    """
    shown: list[HostGpu] = []
    for entry in (part.strip() for part in cuda_visible_devices.split(",")):
        if entry.isdecimal():
            matches = [gpu for gpu in host if gpu.index == int(entry)]
        else:
            matches = [gpu for gpu in host if entry.startswith("GPU-") and gpu.uuid.startswith(entry)]
        if len(matches) != 1 or matches[0] in shown:
            break
        shown.append(matches[0])
    return tuple(shown)


# -- GPUs of the host


def host_gpus() -> tuple[HostGpu, ...]:
    """Return all NVIDIA GPUs of this host (or container), by NVML, else by nvidia-smi; () without a driver."""
    found = _gpus_by_nvml()
    return _gpus_by_nvidia_smi() if found is None else found


def topology_text(timeout_s: float = NVIDIA_SMI_TIMEOUT_S) -> str:
    """Return the output of ``nvidia-smi topo -m``, for ``topology.parse_topology``; "" without a driver."""
    return _nvidia_smi(["topo", "-m"], timeout_s)


def _gpus_by_nvml() -> tuple[HostGpu, ...] | None:
    """Return the GPUs listed by NVML; None if it is not installed or does not work."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        logger.debug("NVML does not start: %s", error)
        return None
    try:
        return tuple(_gpu_by_nvml(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount()))
    except pynvml.NVMLError as error:
        logger.warning("NVML started but lists no GPUs (%s); nvidia-smi is asked instead", error)
        return None
    finally:
        pynvml.nvmlShutdown()


def _gpu_by_nvml(pynvml: Any, index: int) -> HostGpu:
    """Return one GPU as NVML describes it."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    try:
        processes = len(pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
    except pynvml.NVMLError:  # not permitted in some containers
        processes = 0
    return HostGpu(
        index=index,
        uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
        bus_id=str(pynvml.nvmlDeviceGetPciInfo(handle).busId),
        processes=processes,
    )


def _gpus_by_nvidia_smi(timeout_s: float = NVIDIA_SMI_TIMEOUT_S) -> tuple[HostGpu, ...]:
    """Return the GPUs that nvidia-smi lists."""
    text = _nvidia_smi(["--query-gpu=index,uuid,pci.bus_id", "--format=csv,noheader"], timeout_s)
    gpus = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 3 and cells[0].isdecimal():
            gpus.append(HostGpu(index=int(cells[0]), uuid=cells[1], bus_id=cells[2]))
    return tuple(gpus)


def _nvidia_smi(arguments: list[str], timeout_s: float) -> str:
    """Return the output of nvidia-smi; "" if it is not installed, fails, or does not end in time."""
    try:
        process = subprocess.Popen(
            ["nvidia-smi", *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError:  # not installed, or not executable
        return ""
    with process.stdout:  # type: ignore[union-attr]  # PIPE was asked for
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()  # no unlimited wait: inside the driver it may be unkillable
            try:
                process.wait(1.0)
            except subprocess.TimeoutExpired:
                pass
            logger.warning("nvidia-smi did not answer within %.0f s; this host's GPUs are not used", timeout_s)
            return ""
    if process.returncode != 0:
        logger.debug("nvidia-smi %s ended with status %d", " ".join(arguments), process.returncode)
        return ""
    return output.decode("utf-8", "replace")
