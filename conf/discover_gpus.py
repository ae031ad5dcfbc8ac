#!/usr/bin/env python3
"""Spark's GPU discovery script: claims GPUs of this host for the one executor that runs it.

YARN counts GPUs and, without its GPU isolation, does not distinguish them: a script that lists them all assigns GPU 0
to every executor of a node. This one prints addresses that no other living executor of the host holds:

    {"name": "gpu", "addresses": ["1"]}

A claim belongs to the process that runs the script (the executor's JVM, by pid and start time) and is valid while that
process lives, however it ends: no process has to release it, and nothing runs in the background. All claims of a host
are in one small file, changed under a lock.

    spark.executor.resource.gpu.amount           1
    spark.executor.resource.gpu.discoveryScript  /path/discover_gpus.py    (executable, on every node)

Environment of the executor:

    HOPSML_GPUS_PER_EXECUTOR  how many to claim (default 1); `all` prints every GPU and claims none
                              (for a Spark standalone worker, which divides them among its executors itself)
    HOPSML_GPU_WAIT_S         seconds to wait for an executor that is just ending (default 10)
    HOPSML_EMULATED_GPUS      pretend that the node has this many; without nvidia-smi: 2
    HOPSML_GPU_CLAIMS         folder of the claims, one per host (default /run/lock/hopsml-gpus, else
                              /tmp/hopsml-gpus)
    CUDA_VISIBLE_DEVICES      as set by YARN's GPU isolation or an administrator: only these are assigned

Needs Linux and Python 3.7 or later, no packages.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Mapping

NVIDIA_SMI = ["nvidia-smi", "--query-gpu=index,uuid", "--format=csv,noheader"]
NVIDIA_SMI_TIMEOUT_S = 60  # the first call after a boot without persistence mode takes many seconds
DEFAULT_EMULATED = "2"


class NoGpu(Exception):
    """Raised if fewer GPUs are free than requested; the message names the processes that hold them."""


def gpus_of_node(environment: Mapping[str, str]) -> dict[str, str]:
    """Return address -> name that is unique on the host, for every GPU of this node."""
    emulated_count = environment.get("HOPSML_EMULATED_GPUS")
    if emulated_count is None and shutil.which(NVIDIA_SMI[0]) is None:
        emulated_count = DEFAULT_EMULATED
    if emulated_count is not None:
        return emulated(int(emulated_count), environment.get("NM_HOST", "local"))
    listed = subprocess.run(NVIDIA_SMI, capture_output=True, text=True, timeout=NVIDIA_SMI_TIMEOUT_S)
    if listed.returncode:  # a broken driver must not turn into emulated GPUs
        said = (listed.stdout + listed.stderr).strip()
        raise NoGpu(f"nvidia-smi failed with exit status {listed.returncode}: {said}")
    return visible(parse_nvidia_smi(listed.stdout), environment.get("CUDA_VISIBLE_DEVICES"))


def emulated(count: int, node: str) -> dict[str, str]:
    """Return addresses 0 to count-1; YARN's node name distinguishes several emulated nodes on one host."""
    return {str(index): f"emulated-{node}-{index}" for index in range(count)}


def parse_nvidia_smi(text: str) -> dict[str, str]:
    """Return address -> UUID from nvidia-smi's lines such as ``0, GPU-8f6a...``."""
    rows = (line.split(",") for line in text.splitlines() if "," in line)
    return {row[0].strip(): row[1].strip() for row in rows}


def visible(gpus: Mapping[str, str], allowed: str | None) -> dict[str, str]:
    """Return those of ``gpus`` that CUDA_VISIBLE_DEVICES allows, by index or by a prefix of the UUID."""
    if allowed is None:
        return dict(gpus)
    wanted = [entry.strip() for entry in allowed.split(",") if entry.strip()]
    return {
        address: uuid
        for address, uuid in gpus.items()
        if any(address == entry or (entry.startswith("GPU-") and uuid.startswith(entry)) for entry in wanted)
    }


def holder_of(pid: int) -> str | None:
    """Return a text that identifies process ``pid`` and no later process of that pid; None if it has ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields[0] in "ZX":  # dead, and only not yet waited for
        return None
    return f"{pid} started {fields[19]} boot {boot} in {os.readlink('/proc/self/ns/pid')}"


def is_alive(holder: str) -> bool:
    """Return True if the process that a claim names lives.

    A claim from another pid namespace cannot be checked; it is valid until the host restarts.
    """
    with open("/proc/sys/kernel/random/boot_id") as file:
        if f" boot {file.read().strip()} " not in holder:
            return False
    if not holder.endswith(" in " + os.readlink("/proc/self/ns/pid")):
        return True
    return holder_of(int(holder.split()[0])) == holder


def choose(
    gpus: Mapping[str, str], claims: Mapping[str, str], count: int, holder: str
) -> tuple[list[str], dict[str, str]]:
    """Return ``count`` free addresses, lowest first, and the claims (name -> living holder) with them added."""
    free = [address for address in sorted(gpus, key=numeric) if gpus[address] not in claims]
    if len(free) < count:
        taken = [f"{address} by pid {claims[name].split()[0]}" for address, name in gpus.items() if name in claims]
        raise NoGpu(f"{count} GPU(s) wanted, {len(free)} of {len(gpus)} free (taken: {', '.join(taken) or 'none'})")
    chosen = free[:count]
    return chosen, {**claims, **{gpus[address]: holder for address in chosen}}


def numeric(address: str) -> tuple[int, int, str]:
    """Return a sort key: 2 before 10, and texts that are no number last."""
    return (0, int(address), "") if address.isdigit() else (1, 0, address)


def claims_folder(environment: Mapping[str, str]) -> str:
    """Return the folder of the host's claims.

    /run/lock is preferred: its old files are not deleted while the host is up.
    """
    if environment.get("HOPSML_GPU_CLAIMS"):
        return environment["HOPSML_GPU_CLAIMS"]
    for parent in ("/run/lock", "/tmp"):
        if os.path.isdir(parent) and os.stat(parent).st_mode & stat.S_IWOTH:  # the same result for every user
            return os.path.join(parent, "hopsml-gpus")
    raise NoGpu("neither /run/lock nor /tmp is writable for all; set HOPSML_GPU_CLAIMS to a folder that is")


def open_claims(folder: str) -> int:
    """Open the claims file for reading and writing; a missing one is created with access for all users."""
    try:
        os.mkdir(folder)
        os.chmod(folder, 0o1777)
    except FileExistsError:
        pass
    path = os.path.join(folder, "claims.json")
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            pass
        try:
            made = os.open(path, flags | os.O_CREAT | os.O_EXCL)
            os.fchmod(made, 0o666)
            return made
        except FileExistsError:
            pass


def claim(gpus: Mapping[str, str], count: int, owner: int, folder: str) -> list[str]:
    """Claim ``count`` of ``gpus`` for the process ``owner`` and return their addresses.

    Raises:
        NoGpu: too few GPUs are free, or ``owner`` has ended.
    """
    holder = holder_of(owner)
    if holder is None:
        raise NoGpu(f"the process {owner} that asked for GPUs is gone")
    file = open_claims(folder)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        size = os.fstat(file).st_size
        text = os.pread(file, size, 0).decode()
        claims = json.loads(text) if text.strip() else {}
        claims = {name: held for name, held in claims.items() if is_alive(held)}
        chosen, claims = choose(gpus, claims, count, holder)
        # one write that covers all of the old text: killed at any moment, it leaves the old claims or the new
        os.pwrite(file, json.dumps(claims, indent=1, sort_keys=True).ljust(size).encode(), 0)
    finally:
        os.close(file)
    return chosen


def claim_within(timeout_s: float, gpus: Mapping[str, str], count: int, owner: int, folder: str) -> list[str]:
    """Claim GPUs as ``claim`` does, retrying for ``timeout_s`` seconds.

    YARN may start an executor before its predecessor has ended.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return claim(gpus, count, owner, folder)
        except NoGpu:
            if count > len(gpus) or time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def main() -> int:
    """Print the addresses for the calling process; without any print a reason to stderr and return 1."""
    wanted = os.environ.get("HOPSML_GPUS_PER_EXECUTOR", "1")
    try:
        gpus = gpus_of_node(os.environ)
        if wanted == "all":
            addresses = sorted(gpus, key=numeric)
        else:
            wait_s = float(os.environ.get("HOPSML_GPU_WAIT_S", "10"))
            addresses = claim_within(wait_s, gpus, int(wanted), os.getppid(), claims_folder(os.environ))
    except (NoGpu, OSError, ValueError, subprocess.TimeoutExpired) as error:
        print(f"discover_gpus: {error}", file=sys.stderr)
        return 1
    print(json.dumps({"name": "gpu", "addresses": addresses}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
