"""Rules of the pre-flight check: figures that a slot must reach or must not exceed; pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hopsml.cluster.shared.protocol import GpuFacts, PeerProbed, PreflightFacts


@dataclass(frozen=True)
class SlotLimits:
    """Limits for the figures of a slot."""

    open_files: int = 256  # of a worker without the others, with as many for its data as its framework may open
    files_per_member: int = 2  # a worker has two connections to each other worker
    stack_mb: float = 1.0  # with an "unlimited" limit glibc gives each thread 2
    shared_memory_mb: float = 32.0  # /dev/shm; half of Docker's default
    disk_mb: float = 512.0  # free in the scratch folder: logs, events and a checkpoint
    write_mb_s: float = 1.0  # synchronously, to the scratch folder; the slowest disks on the market write 50
    clock_skew_s: float = 5.0  # from the driver; Kerberos tolerates 300, the order of events in a log much less
    gpu_temperature_c: int = 90  # present GPUs throttle themselves at 87 to 93
    core_share: float = 1 / 3  # of the median member's core speed; machines of two generations differ less
    pair_mb_s: float = 5.0  # between neighbours in the ring; 100 Mbit/s Ethernet carries 12


@dataclass(frozen=True)
class Fault:
    """Fault of a slot: the rule's name, and a sentence with figure, rule and remedy."""

    rule: str
    text: str


LIMITS = SlotLimits()
CLOCK_SKEW = "clock skew"
LEAST_PEERS = 2  # with two members it is unknown which one is unusual
_UNLIMITED = -1
_LOCAL_REMEDY = "both are on the same host; check which programs load its processors, or use fewer workers per host"


def own_faults(facts: PreflightFacts, admitted: float, received: float, limits: SlotLimits = LIMITS) -> list[Fault]:
    """Return the faults that one agent's own figures show.

    The figures were taken between ``admitted`` and ``received``; a driver whose process stood still read them late.

    Args:
        facts: The agent's figures.
        admitted: When the driver admitted the agent, by its clock, in seconds since the epoch.
        received: When the driver read the figures, likewise.
        limits: Limits for the figures.
    """
    skew_s = facts.clock - min(max(facts.clock, admitted), received)
    checks: tuple[tuple[bool, str, str], ...] = (
        (
            _below(facts.stack_mb, limits.stack_mb),
            "stack size",
            f"{facts.stack_mb:g} MB, at least {limits.stack_mb:g} are needed: raise it (ulimit -s)",
        ),
        (
            facts.shared_memory_mb < limits.shared_memory_mb,
            "shared memory",
            f"{facts.shared_memory_mb:.0f} MB free in /dev/shm, at least {limits.shared_memory_mb:g} are needed; "
            "enlarge it (docker run --shm-size)",
        ),
        (
            facts.disk_mb < limits.disk_mb,
            "disk space",
            f"{facts.disk_mb:.0f} MB free in {facts.folder}, at least {limits.disk_mb:g} are needed; free space, or "
            "set spark.local.dir to another disk",
        ),
        (
            bool(facts.disk_problem),
            "disk write",
            f"{facts.folder} cannot be written: {facts.disk_problem}; repair it, or set spark.local.dir to another "
            "folder",
        ),
        (
            not facts.disk_problem and facts.write_mb_s < limits.write_mb_s,
            "disk speed",
            f"{facts.write_mb_s:.2f} MB/s into {facts.folder}, at least {limits.write_mb_s:g} are needed: look at the "
            "disk, or let spark.local.dir name another",
        ),
        (
            abs(skew_s) > limits.clock_skew_s,
            CLOCK_SKEW,
            f"{skew_s:+.1f} s from the driver's clock, at most {limits.clock_skew_s:g} s are allowed; synchronise "
            "the clock with NTP",
        ),
    )
    found = [Fault(rule, f"{rule}: {text}") for failed, rule, text in checks if failed]
    return found + [fault for gpu in facts.gpus for fault in _gpu_faults(gpu, facts.needed_cuda, limits)]


def open_files_of_worker(members: int, limits: SlotLimits = LIMITS) -> int:
    """Return the limit of open files (``ulimit -n``) that a worker of a group needs; its agent needs less.

    Counted in /proc/PID/fd with 2, 4 and 8 members: a worker had 16 descriptors and 2 for each member over hopsml's
    collective, 28 and 2 with gloo, 23 and 1 with TensorFlow's ring; its agent at most 38, however large the group.
    The rest of ``limits.open_files`` is for the files that the user's function and the libraries of GPUs open. The
    driver has 1 for each agent, 3 if the agents are on its machine; see ``open_files_needed`` of the acceptor.

    Args:
        members: Largest number of workers of the group that are connected to each other.
        limits: Limits for the figures.
    """
    return limits.open_files + limits.files_per_member * members


def group_faults(facts: PreflightFacts, members: int, limits: SlotLimits = LIMITS) -> list[Fault]:
    """Return the faults of a slot that depend on the number of members of the group, those that are connected."""
    needed = open_files_of_worker(members, limits)
    if not _below(facts.open_files, needed):
        return []
    group = f"a group of {members} worker{'s' if members > 1 else ''}"
    text = f"{facts.open_files}, at least {needed} are needed in {group}; raise it (ulimit -n, LimitNOFILE)"
    return [Fault("open-file limit", f"open-file limit: {text}")]


def shared_host_warnings(members: Sequence[PreflightFacts]) -> dict[str, str]:
    """Return a warning for each host that other users share; empty if all members guard TensorFlow's server.

    It is no fault of a slot, as another slot would be no better.
    """
    if all(facts.guards for facts in members):
        return {}
    return {
        facts.host: f"{facts.host} is shared with "
        f"{', '.join(facts.others[:3])}{f' and {len(facts.others) - 3} more' if len(facts.others) > 3 else ''}: "
        "TensorFlow's server there executes requests of any client with the rights of this user "
        "(docs/security.md)"
        for facts in members
        if facts.others
    }


def _below(value: float, least: float) -> bool:
    """Return True if a value is limited, and below ``least``."""
    return value != _UNLIMITED and value < least


def _gpu_faults(gpu: GpuFacts, needed_cuda: int, limits: SlotLimits) -> list[Fault]:
    """Return the faults of one GPU, for frameworks with this major version of CUDA (0: unknown)."""
    major, minor = gpu.driver_cuda // 1000, gpu.driver_cuda % 1000 // 10
    checks = (
        # Within a major version older drivers serve newer runtimes (NVIDIA, "CUDA Compatibility").
        (
            0 < major < needed_cuda,
            "GPU driver",
            f"driver {gpu.driver} supports CUDA {major}.{minor}, the installed frameworks need CUDA {needed_cuda}; update "
            f"the driver, or install frameworks for CUDA {major}",
        ),
        (
            bool(gpu.xids),
            "GPU Xid",
            f"the kernel's log has Xid {', '.join(map(str, gpu.xids))} since the host's start, none of broken hardware is "
            "allowed; reset the GPU, and have it replaced if the error comes back",
        ),
        (gpu.ecc_errors > 0, "GPU ECC", f"{gpu.ecc_errors} uncorrected memory errors, none is allowed; reset the GPU"),
        (
            gpu.rows_failed or gpu.rows_pending,
            "GPU memory rows",
            "a faulty row of memory could not be replaced; have the GPU replaced"
            if gpu.rows_failed
            else "a faulty row of memory is replaced at the next reset; reset the GPU",
        ),
        (
            bool(gpu.throttling),
            "GPU throttling",
            f"its clocks are lowered ({', '.join(gpu.throttling)}); check its cooling and power supply",
        ),
        (
            gpu.temperature_c > limits.gpu_temperature_c,
            "GPU temperature",
            f"{gpu.temperature_c} °C, at most {limits.gpu_temperature_c} °C are allowed; check its cooling",
        ),
        (
            gpu.processes > 0,
            "GPU processes",
            f"{gpu.processes} processes of other users are on the GPU, none is allowed; end them (nvidia-smi lists "
            "them)",
        ),
    )
    return [Fault(rule, f"{rule}: GPU {gpu.index}: {text}") for failed, rule, text in checks if failed]


def driver_warnings(members: Sequence[PreflightFacts]) -> dict[str, str]:
    """Return a warning for each host whose GPU driver is not persistent: each program that starts waits for its load.

    It is no fault of a slot: the training is as fast, its start is seconds slower.
    """
    return {
        facts.host: f"{facts.host}: the GPU driver's persistence mode is off, so each start loads the driver anew "
        "(seconds); switch it on with nvidia-smi -pm 1 or nvidia-persistenced"
        for facts in members
        if any(gpu.persistent is False for gpu in facts.gpus)
    }


def version_faults(members: Mapping[str, PreflightFacts]) -> dict[str, list[Fault]]:
    """Return by agent the package versions that differ from those of most members.

    Of two equal halves the first member's version counts as usual.
    """
    faults: dict[str, list[Fault]] = {}
    for package in sorted({name for facts in members.values() for name in facts.versions}):
        held = {agent_id: facts.versions.get(package, "none") for agent_id, facts in members.items()}
        usual = Counter(held.values()).most_common(1)[0][0]  # the first of equals
        for agent_id, version in held.items():
            if version != usual:
                text = (
                    f"version: {package} {version}, the other members have {usual}; install the same version everywhere"
                )
                faults.setdefault(agent_id, []).append(Fault(f"version of {package}", text))
    return faults


def core_faults(members: Mapping[str, PreflightFacts], limits: SlotLimits = LIMITS) -> dict[str, list[Fault]]:
    """Return by agent the cores that are much slower than the median member's, so that all would wait in every step."""
    speeds = {agent_id: facts.core_mb_s for agent_id, facts in members.items() if facts.core_mb_s}
    usual = statistics.median(speeds.values()) if len(speeds) > LEAST_PEERS else 0.0
    faults: dict[str, list[Fault]] = {}
    for agent_id, speed in speeds.items():
        if speed < limits.core_share * usual:
            text = (
                f"core speed: {speed:.0f} MB/s of SHA-256, the median member has {usual:.0f}, at least "
                f"{limits.core_share:.0%} of that is needed; check for throttling, or for other programs"
            )
            faults[agent_id] = [Fault("core speed", text)]
    return faults


def exchange_failed(probe: PeerProbed, limits: SlotLimits = LIMITS) -> bool:
    """Return True if two neighbours could not exchange bytes, or not fast enough."""
    return bool(probe.problem) or probe.mb_s < limits.pair_mb_s


def pair_faults(
    probes: Sequence[tuple[str, PeerProbed]],
    name: Callable[[str], str],
    host: Callable[[str], str],
    limits: SlotLimits = LIMITS,
) -> dict[str, list[Fault]]:
    """Return by agent the failed exchanges with its neighbours.

    Of each failed pair the agent with more failures is at fault; if both failed equally often, the one that was
    connected to.

    Args:
        probes: The connecting agent, and the result of its exchange.
        name: Function that returns an agent's name in messages.
        host: Function that returns an agent's host.
        limits: Limits for the figures.
    """
    failed = [(asker, probe) for asker, probe in probes if exchange_failed(probe, limits)]
    count = Counter(agent_id for asker, probe in failed for agent_id in (asker, probe.agent_id))
    faults: dict[str, list[Fault]] = {}
    for asker, probe in failed:
        blamed, other = (asker, probe.agent_id) if count[asker] > count[probe.agent_id] else (probe.agent_id, asker)
        what = probe.problem or f"{probe.mb_s:.1f} MB/s, at least {limits.pair_mb_s:g} are needed"
        remedy = _LOCAL_REMEDY if host(blamed) == host(other) else "check route, firewall and cable"
        text = f"network: between it and {name(other)}: {what}; {remedy}"
        faults.setdefault(blamed, []).append(Fault(f"network to {other}", text))
    return faults
