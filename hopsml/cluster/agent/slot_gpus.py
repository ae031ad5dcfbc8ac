"""The GPUs of one slot, from Spark's assignment or by a claim on this host, as the agent announces them."""

from __future__ import annotations

from dataclasses import dataclass

from hopsml.cluster.agent.gpu_claim import GpuClaim, claim_gpus
from hopsml.cluster.shared import gpus


@dataclass(frozen=True)
class SlotGpus:
    """``claim`` keeps others away for as long as it is referenced; None where there is nothing to keep."""

    indices: tuple[int, ...] = ()
    bus_ids: tuple[str, ...] = ()
    topology: str = ""
    claim: GpuClaim | None = None


def take(addresses: tuple[str, ...], count: int) -> SlotGpus:
    """Those that Spark assigned, else ``count`` free ones; none is touched where neither asks for any.

    On a host without a driver the assigned addresses are kept as they are: the resource is emulated there.
    Blocks while NVML answers. Raises RunError when not enough are free, ArgumentError for a malformed address.
    """
    if not addresses and not count:
        return SlotGpus()
    host = gpus.host_gpus()
    if not host:
        return SlotGpus(tuple(gpus.parse_address(address) for address in addresses))
    claim = claim_gpus(host, addresses, None if addresses else count)
    return SlotGpus(claim.indices, tuple(gpu.bus_id for gpu in claim.gpus), gpus.topology_text(), claim)
