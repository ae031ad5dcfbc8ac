"""Checks of this machine, pure functions from facts to a finding, and the requirements of a profile."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hopsml.cluster.driver.preflight.rules import open_files_of_worker
from hopsml.cluster.shared.acceptor import open_files_needed
from hopsml.cluster.shared.gpus import HostGpu
from hopsml.core import extras, settings
from hopsml.core.newer_python import StrEnum
from hopsml.core.profiles import Profile
from hopsml.core.versions import (
    JAX,
    KERAS,
    NUMPY,
    PANDAS,
    PYSPARK,
    PYTHON,
    SPARK_NEEDS,
    TORCH,
    parse_version,
    spark_needs,
    tensorflow_versions,
    uses_keras_2,
    version_text,
    versions_text,
)
from hopsml.doctor.facts import AddressFacts, LimitFacts, PortFacts, PythonFacts, ScratchFacts, SparkFacts
from hopsml.submission import spark_connect
from hopsml.submission.spark_start import JavaFacts, install_java, java_version, why_java_fails


class Status(StrEnum):
    """Severity of a finding: with WARN all or some runs work, with FAIL runs under this profile fail."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """Result of one check; it has a ``remedy`` unless its status is OK, ``facts`` are for ``--json``."""

    name: str
    status: Status
    summary: str
    remedy: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.status is Status.OK) == bool(self.remedy):
            raise ValueError(f"finding {self.name!r} is {self.status}: only what is not ok has a remedy, and all of it")


@dataclass(frozen=True)
class Needs:
    """Requirements of runs under a profile, which decide whether something missing is a failure."""

    profile: str = "local"
    spark: bool = False
    yarn: bool = False
    distributed: bool = False  # executors on other machines
    master: str = "none"

    @classmethod
    def of_profile(cls, profile: Profile) -> Needs:
        """Return the requirements of runs under ``profile``."""
        return cls(
            profile=profile.name,
            spark=profile.uses_spark,
            yarn=profile.master.startswith("yarn"),
            distributed=profile.uses_spark and not profile.master.startswith("local"),
            master=profile.master,
        )

    def status_if_missing(self, needed: bool) -> Status:
        """Return the status of something that is missing: FAIL if the profile needs it, else WARN."""
        return Status.FAIL if needed else Status.WARN


def ok(name: str, summary: str, /, **facts: Any) -> Finding:
    """Return a finding without a problem."""
    return Finding(name, Status.OK, summary, facts=facts)


def warn(name: str, summary: str, remedy: str, /, **facts: Any) -> Finding:
    """Return a finding with which some runs, or all, still work."""
    return Finding(name, Status.WARN, summary, remedy, facts)


def fail(name: str, summary: str, remedy: str, /, **facts: Any) -> Finding:
    """Return a finding with which runs under this profile fail."""
    return Finding(name, Status.FAIL, summary, remedy, facts)


MIB, GIB = 1 << 20, 1 << 30
USUAL_WORKERS = 1920  # for which a worker needs 4096 open files
TENSORFLOWS = ("tensorflow", "tensorflow-cpu")
PORTS_COMFORTABLE = settings.AGENT_PORTS + 4  # those of the driver, and of an agent that is about to exit


def python(version: tuple[int, int, int]) -> Finding:
    """Check that the driver's Python version is supported: a newer one is a warning, an older one a failure."""
    text = version_text(version)
    supported, remedy = versions_text(PYTHON.supported), f"use Python {PYTHON.nearest(text)}"
    judged = PYTHON.verdict(text)
    if judged == "works":
        return ok("python", text, version=text)
    if judged == "broken":
        return fail("python", f"Python {text} is not supported (supported: {supported})", remedy, version=text)
    why = f"Python {text} has not been tested (supported: {supported})"
    return warn("python", why, f"if something fails for no clear reason, {remedy}", version=text)


def java(facts: JavaFacts, pyspark: str, needs: Needs) -> Finding:
    """Check for a Java that the installed Spark supports; profiles without Spark do not need it."""
    install = install_java(pyspark)
    if not facts.path and not needs.spark:
        return ok("java", f"not needed, since profile {needs.profile} runs without Spark")
    version = java_version(facts.output)
    known = {} if version is None or facts.problem else {"version": version}
    if why := why_java_fails(facts, pyspark):
        return Finding("java", needs.status_if_missing(needs.spark), why, install, known)
    where = f"{facts.path} (from {facts.source})"
    if version not in spark_needs(pyspark).javas:
        why = f"Java {version} at {where}: Spark {version_text(spark_needs(pyspark).spark)} is not tested with this version"
        return warn("java", why, f"if Spark fails for no clear reason, {install}", **known)
    return ok("java", f"{version} at {where}", **known)


def spark(
    facts: SparkFacts, packages: Mapping[str, str], needs: Needs, python: tuple[int, int, int] = (0, 0, 0)
) -> Finding:
    """Check pyspark with this Python, its Hadoop client, the Spark in SPARK_HOME, and that sessions are classic ones.

    ``python``: version of this Python; (0, 0, 0): not compared. Missing pyspark fails only if the profile needs Spark.
    """
    install = extras.install_command("spark")
    known = {"pyspark": facts.pyspark, "hadoop_client": facts.hadoop_client, "spark_home": facts.home}
    if "pyspark-client" in packages and facts.pyspark:
        return fail(
            "spark",
            f"pyspark {facts.pyspark} and pyspark-client {packages['pyspark-client']} overwrite each other's files",
            "pip uninstall pyspark pyspark-client, then "
            + install
            + "; Airflow's Spark provider needs a separate environment",
            **known,
        )
    if problem := spark_connect.why_no_classic_session(facts.connect, needs_spark=needs.spark):
        cause, _, remedy = problem.partition(". Remedy: ")
        return Finding("spark", needs.status_if_missing(needs.spark), cause, remedy, known)
    if not facts.pyspark:
        summary = f"pyspark is not installed; profile {needs.profile} {'needs it' if needs.spark else 'does without'}"
        return fail("spark", summary, install, **known) if needs.spark else ok("spark", summary, **known)
    newest = spark_needs(facts.pyspark).newest_python
    if python[:2] > newest:
        wanted = next((version_text(one.spark) for one in SPARK_NEEDS if one.newest_python >= python[:2]), "")
        remedy = f"use Python {version_text(newest)}" + (f", or pip install 'pyspark>={wanted}'" if wanted else "")
        why = f"pyspark {facts.pyspark} does not serialize functions of Python {version_text(python[:2])}"
        return Finding("spark", needs.status_if_missing(needs.spark), why, remedy, known)
    if PYSPARK.verdict(facts.pyspark) != "works":
        why = f"pyspark {facts.pyspark} has not been tested (supported: {versions_text(PYSPARK.supported)})"
        return warn(
            "spark", why, f"if Spark fails for no clear reason, {PYSPARK.install_command(facts.pyspark)}", **known
        )
    if facts.home and parse_version(facts.home_version)[:2] != parse_version(facts.pyspark)[:2]:
        there = f"Spark {facts.home_version}" if facts.home_version else "no Spark"
        return Finding(
            "spark",
            needs.status_if_missing(needs.spark),
            f"SPARK_HOME={facts.home} contains Spark {there}, but the package pyspark has version {facts.pyspark}",
            "unset SPARK_HOME, or install the pyspark of the same version: pip install "
            f"'pyspark=={facts.home_version or facts.pyspark}'",
            known,
        )
    client = f"Hadoop client {facts.hadoop_client}" if facts.hadoop_client else "without a Hadoop client"
    return ok("spark", f"pyspark {facts.pyspark}, {client}", **known)


def frameworks(packages: Mapping[str, str], environment: Mapping[str, str]) -> Finding:
    """Check the versions of frameworks, NumPy and pandas, and for combinations that are known to fail."""
    names = (*TENSORFLOWS, "keras", "tf-keras", "torch", "jax")
    known = {name: packages[name] for name in names if name in packages}
    arrays = {name: packages[name] for name in ("numpy", "pandas") if name in packages}
    listed = ", ".join(f"{name} {version}" for name, version in known.items())
    problems = [*_broken({**known, **arrays}, environment), *_bad_combinations(packages, environment)]
    if problems:
        worst = Status.FAIL if any(status is Status.FAIL for status, _, _ in problems) else Status.WARN
        summary = f"{listed}: " if listed else ""
        summary += "; ".join(problem for _, problem, _ in problems)
        return Finding("frameworks", worst, summary, "; ".join(remedy for _, _, remedy in problems), dict(known))
    if not known:
        remedy = (
            f"{extras.install_command('tensorflow')} (or [tensorflow-cpu]); functions without a framework need none"
        )
        return warn("frameworks", "neither TensorFlow nor another framework is installed", remedy)
    return ok("frameworks", listed, **known)


def _broken(known: Mapping[str, str], environment: Mapping[str, str]) -> list[tuple[Status, str, str]]:
    """Return status, problem and remedy of each framework whose version is untested or known to fail."""
    tables = dict.fromkeys(TENSORFLOWS, tensorflow_versions(environment))
    tables |= {one.package: one for one in (KERAS, TORCH, JAX, NUMPY, PANDAS)}
    if uses_keras_2(environment):
        del tables["keras"]  # its version does not matter: tf_keras is used in its place
    problems = []
    for name in known:
        if name not in tables:
            continue
        versions = tables[name]
        pin = f"pip install '{name}=={versions.nearest(known[name])}.*'"
        judged = versions.verdict(known[name])
        if judged == "broken":
            problems.append((Status.FAIL, f"{name} {known[name]} does not work: {versions.why_not_older}", pin))
        elif judged == "unknown":
            supported = versions_text(versions.supported)
            why = f"{name} {known[name]} has not been tested (versions known to work: {supported})"
            problems.append((Status.WARN, why, f"if training fails for no clear reason, {pin}"))
    return problems


def _bad_combinations(packages: Mapping[str, str], environment: Mapping[str, str]) -> list[tuple[Status, str, str]]:
    """Return status, problem and remedy of each combination of packages that conflicts."""
    problems = []
    both = [packages[name] for name in TENSORFLOWS if name in packages]
    if len(both) == 2:
        status = Status.FAIL if both[0] != both[1] else Status.WARN
        remedy = "pip uninstall tensorflow tensorflow-cpu, then install one of them"
        problems.append((status, "tensorflow and tensorflow-cpu overwrite each other's files", remedy))
    legacy = uses_keras_2(environment)
    if legacy and "tf-keras" not in packages:
        remedy = "pip install tf-keras --no-deps, or unset the variable"
        problems.append((Status.FAIL, "TF_USE_LEGACY_KERAS is set, but tf-keras is not installed", remedy))
    if both and "tf-keras" in packages and parse_version(packages["tf-keras"])[:2] != parse_version(both[0])[:2]:
        wanted = ".".join(map(str, parse_version(both[0])[:2]))
        status = Status.FAIL if legacy else Status.WARN
        why = f"tf-keras {packages['tf-keras']} is for another version of TensorFlow"
        problems.append((status, why, f"pip install --no-deps 'tf-keras=={wanted}.*'"))
    if "tensorflow-io" in packages and both:
        why = f"tensorflow-io {packages['tensorflow-io']} cannot be loaded with this version of TensorFlow"
        problems.append((Status.WARN, why, "pip uninstall tensorflow-io; hopsml reads and writes HDFS without it"))
    return problems


def gpus(found: Sequence[HostGpu], has_driver: bool, packages: Mapping[str, str]) -> Finding:
    """Check that the GPUs of this machine respond; executors on other machines may have different ones."""
    facts = {"gpus": [{"index": gpu.index, "uuid": gpu.uuid, "processes": gpu.processes} for gpu in found]}
    if not found and has_driver:
        return warn(
            "gpus",
            "nvidia-smi is installed, but finds no GPU",
            "run nvidia-smi; the usual causes are a driver update without a restart, and a container without --gpus",
        )
    if not found:
        return ok("gpus", "this machine has none; workers on it run in CPU slots", **facts)
    if "tensorflow-cpu" in packages and "tensorflow" not in packages:
        return warn(
            "gpus",
            f"this machine has {len(found)}, but tensorflow-cpu cannot use them",
            f"pip uninstall tensorflow-cpu, then {extras.install_command('tensorflow')}",
            **facts,
        )
    busy = sum(1 for gpu in found if gpu.processes)
    return ok("gpus", f"{len(found)} on this machine{f', {busy} in use' if busy else ''}", **facts)


def limits(facts: LimitFacts, gpu_count: int = 0, workers: int = USUAL_WORKERS) -> Finding:
    """Check the limits of open files, processes, stack and shared memory.

    Args:
        facts: The limits.
        gpu_count: Number of GPUs of this machine.
        workers: Number of workers of the largest group.
    """
    known = {
        "open_files": facts.open_files,
        "processes": facts.processes,
        "stack_bytes": facts.stack_bytes,
        "shm_bytes": facts.shm_bytes,
    }
    problems: list[tuple[str, str]] = []
    needed = max(open_files_of_worker(workers), open_files_needed(workers))
    if 0 <= facts.open_files < needed:
        why = f"the limit of open files is only {facts.open_files}, and a group of {workers} workers needs {needed}"
        problems.append((why, f"ulimit -n {max(65536, needed)} (or nofile in limits.conf)"))
    if 0 <= facts.processes < 4096:
        why = f"the limit of processes and threads is only {facts.processes}, and one worker needs more than 100"
        problems.append((why, "ulimit -u 65536 (or nproc in limits.conf)"))
    if 0 <= facts.stack_bytes < 8 * MIB:
        problems.append((f"the stack limit is only {facts.stack_bytes // 1024} KiB", "ulimit -s 8192"))
    if gpu_count > 1 and facts.shm_bytes < GIB:
        why = f"/dev/shm has only {facts.shm_bytes // MIB} MiB, and NCCL uses it to pass data between {gpu_count} GPUs"
        problems.append((why, "docker run --shm-size=8g, or mount -o remount,size=8g /dev/shm"))
    if problems:
        summary, remedy = ("; ".join(texts) for texts in zip(*problems, strict=True))
        return warn("limits", summary, remedy, **known)
    return ok("limits", f"{_count(facts.open_files)} files, {_count(facts.processes)} processes", **known)


def scratch(facts: ScratchFacts) -> Finding:
    """Check the space for files that are not yet on shared storage: events, logs, checkpoints."""
    known = {"folder": facts.folder, "free_bytes": facts.free_bytes}
    remedy = f"free space in {facts.folder}, or set TMPDIR to a folder on a larger disk"
    if facts.problem:
        return fail("scratch", f"{facts.folder} cannot be written: {facts.problem}", remedy, **known)
    free = f"{facts.free_bytes / GIB:.1f} GiB free in {facts.folder}"
    if facts.free_bytes < GIB // 4 or facts.free_inodes == 0:
        return fail("scratch", free + (", and no free inode" if facts.free_inodes == 0 else ""), remedy, **known)
    if facts.free_bytes < 5 * GIB:
        return warn("scratch", f"{free}: checkpoints of a large model may not fit", remedy, **known)
    return ok("scratch", free, **known)


def ports(facts: PortFacts) -> Finding:
    """Check that ports can be bound: each agent on a host needs six, the coordinator one more."""
    known = {"range": facts.text, "tried": facts.tried, "free": facts.free}
    if facts.tried == 0:
        remedy = "set it to two port numbers, for instance 40000-40100, or unset it"
        return fail("ports", facts.problem, remedy, **known)
    if facts.free == 0:
        remedy = "end the processes that use these ports (ss -tlnp lists them), or set HOPSML_PORT_RANGE to free ports"
        return fail("ports", f"none of the ports {facts.tried} can be opened: {facts.problem}", remedy, **known)
    if not facts.text:
        return ok(
            "ports",
            "the kernel chooses free ports; set HOPSML_PORT_RANGE=low-high to limit them for a firewall",
            **known,
        )
    if facts.free < PORTS_COMFORTABLE:
        remedy = f"widen the range to {PORTS_COMFORTABLE} ports or more for one worker per host: {settings.PORT_NEEDS}"
        return warn("ports", f"only {facts.free} of {facts.tried} in {facts.text} are free", remedy, **known)
    return ok("ports", f"{facts.free} of {facts.tried} in {facts.text} are free", **known)


def shared_host(others: Sequence[str], guarded: bool) -> Finding:
    """Warn of other users' processes on this machine, which can command TensorFlow's server unless it is guarded.

    Args:
        others: names of the users.
        guarded: whether TensorFlow's server admits only members of its group.
    """
    if guarded:
        people = f"{', '.join(others[:5])} beside you: " if others else ""
        summary = f"{people}TensorFlow's server in a worker admits only members of its group"
        return ok("shared host", summary, others=list(others))
    if not others:
        summary = "no processes of other users were found on this machine; TensorFlow's server admits every client"
        return ok("shared host", f"{summary} (libhopsml_server.so is missing, or HOPSML_UNGUARDED_SERVER=1)", others=[])
    remedy = (
        "build libhopsml_server.so (make setup, with g++), or train where no other user can connect: on a separate "
        "host, in a container or network namespace, or with a firewall for HOPSML_PORT_RANGE (docs/security.md)"
    )
    summary = (
        f"{', '.join(others[:5])} {'has' if len(others) == 1 else 'have'} processes on this machine, and "
        "TensorFlow's server "
    )
    summary += "accepts every connection on all interfaces: these users can read and write files with your rights"
    return warn("shared host", summary, remedy, others=list(others))


def addresses(facts: AddressFacts, needs: Needs) -> Finding:
    """Check that executors can reach the address which the driver announces."""
    known = {"hostname": facts.hostname, "local": list(facts.local), "announced": facts.announced, "from": facts.source}
    real = [address for address in facts.local if not ipaddress.ip_address(address).is_loopback]
    choose = "set SPARK_LOCAL_IP, or spark.driver.host in the profile, to an address that executors can reach"
    choose += f": {', '.join(real)}" if real else "; this machine has only loopback addresses"
    if not needs.spark:
        return ok("addresses", "loopback is sufficient, since workers are processes of this machine", **known)
    if facts.problem:
        return fail("addresses", f"the driver's address is unknown: {facts.problem}", choose, **known)
    told = f"executors connect to the driver at {facts.announced} (from {facts.source})"
    is_loopback = ipaddress.ip_address(facts.announced).is_loopback
    if is_loopback and needs.distributed:
        return warn("addresses", f"{told}: executors on other machines cannot reach it", choose, **known)
    if not is_loopback and facts.announced not in facts.local:
        return warn("addresses", f"{told}, but no interface of this machine has this address", choose, **known)
    others = [address for address in real if address != facts.announced]
    if others and not is_loopback:
        told += f"; it also has {', '.join(others)}: set SPARK_LOCAL_IP if executors can reach only that address"
    return ok("addresses", told, **known)


def executors_python(facts: PythonFacts, driver: tuple[int, int, int], needs: Needs) -> Finding:
    """Check that the executors' Python has the driver's minor version, which Spark requires."""
    known = {"asked": facts.asked, "from": facts.source, "version": facts.version, "has_hopsml": facts.has_hopsml}
    if not needs.spark:
        return ok("executors' python", "this interpreter, since workers are processes of this machine", **known)
    name = (
        f"{facts.asked} ({facts.source})" if facts.source != "default" else f"{facts.asked} (PYSPARK_PYTHON is not set)"
    )
    wanted = ".".join(map(str, driver[:2]))
    ship = (
        f"set PYSPARK_PYTHON to a Python {wanted} with hopsml on every node, or ship an environment with spark.archives"
    )
    if needs.distributed and facts.asked.startswith(("./", "../")):
        return ok(
            "executors' python",
            f"{name} is a relative path: it is shipped with the application, and cannot be checked here",
            **known,
        )
    if not needs.distributed and facts.source == "default":
        return ok("executors' python", "this interpreter, since executors run on this machine", **known)
    if facts.problem or not facts.version:
        status = Status.WARN if needs.distributed and os.path.isabs(facts.asked) else Status.FAIL
        return Finding(
            "executors' python", status, f"{name}: {facts.problem or 'does not print its version'}", ship, known
        )
    if parse_version(facts.version)[:2] != driver[:2]:
        return fail("executors' python", f"{name} is {facts.version}, the driver's is {wanted}", ship, **known)
    if not facts.has_hopsml:
        return Finding("executors' python", needs.status_if_missing(True), f"{name} does not have hopsml", ship, known)
    return ok("executors' python", f"{name}: {facts.version}, with hopsml", **known)


def _count(limit: int) -> str:
    """Format a limit, where a negative number means none."""
    return "unlimited" if limit < 0 else str(limit)
