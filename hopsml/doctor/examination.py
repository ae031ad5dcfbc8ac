"""Execution of all probes in parallel, each on a thread that can be abandoned, and then of all checks.

Checks of the profile and of services beyond this machine are pure functions from facts to a finding.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import hopsml
from hopsml.cluster.agent.preflight import other_users
from hopsml.cluster.worker import server_guard
from hopsml.core import profiles, settings
from hopsml.core.profiles import Profile
from hopsml.core.variables import SETTINGS
from hopsml.core.versions import HADOOP, versions_text
from hopsml.doctor import checks, facts, kerberos
from hopsml.doctor.checks import Finding, Needs, Status, fail, ok, warn
from hopsml.doctor.facts import HdfsFacts, StoreFacts, YarnFacts
from hopsml.errors import ArgumentError
from hopsml.storage import urls
from hopsml.submission import spark_start
from hopsml.submission.spark_start import MasterFacts
from hopsml.tracking import provenance

GIB = 1 << 30
SLOW_S = 2.0
SKEW_WARN_S, SKEW_FAIL_S = 10.0, 240.0  # Kerberos rejects a skew from 300 s on
EARLIEST_S = 1_735_689_600  # 1 January 2025: an earlier clock is not set

_REMEDIES = {
    "StorageUnavailable": "start the service, or correct its address: fs.defaultFS in HADOOP_CONF_DIR, or "
    "HOPSML_PROJECT_URL",
    "StorageTimeout": "the service accepts connections, but does not answer; check the log and the garbage "
    "collection of the NameNode",
    "SafeMode": "wait until DataNodes have registered with the NameNode (hdfs dfsadmin -safemode get)",
    "PermissionRefused": "give this user write permission, or set HOPSML_PROJECT_URL to another folder",
    "QuotaExceeded": "delete old runs (hopsml runs rm), or raise the quota (hdfs dfsadmin -setSpaceQuota)",
    "ArgumentError": "correct the setting in the message",
}


def check_profile(loaded: Profile | None, problem: str, existing: Mapping[str, bool]) -> Finding:
    """Check that the profile can be loaded and that the local files that it ships exist.

    Args:
        loaded: the profile; None if it cannot be loaded.
        problem: why it cannot be loaded.
        existing: whether each local file that it ships exists, by path.
    """
    if loaded is None:
        return fail(
            "profile", problem, "choose a profile with --profile or HOPSML_PROFILE; `hopsml profiles` lists them"
        )
    missing = sorted(path for path, is_there in existing.items() if not is_there)
    facts = {"name": loaded.name, "master": loaded.master, "deploy_mode": loaded.deploy_mode}
    if missing:
        return fail(
            "profile", f"{loaded.name}: it ships {', '.join(missing)}, which does not exist", "correct conf/", **facts
        )
    return ok("profile", f"{loaded.name}: master {loaded.master}", **facts)


def shipped_files(loaded: Profile) -> list[str]:
    """Return the local files that the profile's settings name, which must exist on this machine."""
    found: list[str] = []
    for key in (
        "spark.yarn.dist.files",
        "spark.files",
        "spark.submit.pyFiles",
        "spark.archives",
        "spark.yarn.dist.archives",
    ):
        for item in loaded.spark.get(key, "").split(","):
            path = item.strip().partition("#")[0]
            if path and "://" not in path and not path.startswith("local:"):
                found.append(path)
    script = loaded.spark.get("spark.executor.resource.gpu.discoveryScript", "")
    if loaded.master.startswith("local") and Path(script).is_absolute():
        found.append(script)
    return found


def check_store(facts: StoreFacts, needs: Needs) -> Finding:
    """Check that run directories can be written at the project's URL, and that executors see the same storage."""
    known = {"url": facts.url, "probed": facts.probed, "seconds": round(facts.seconds, 3)}
    if facts.problem:
        remedy = _REMEDIES.get(facts.kind, "set HOPSML_PROJECT_URL to a writable store")
        return fail("project store", f"{facts.url}: {facts.problem}", remedy, kind=facts.kind, **known)
    where = "" if facts.probed == facts.url else f" (does not exist yet; {facts.probed} is writable)"
    told = f"{facts.url}{where}: a file was written, read and deleted in {facts.seconds:.2f} s"
    if needs.distributed and urls.split(facts.url)[0] in ("", "file"):
        remedy = "set HOPSML_PROJECT_URL to shared storage (hdfs://...), unless every node mounts this folder"
        return warn("project store", f"{told}; but executors on other machines cannot read this disk", remedy, **known)
    if facts.seconds > SLOW_S:
        remedy = (
            "check the load of the NameNode and the DataNodes; training does not wait for the store, but runs end late"
        )
        return warn("project store", told, remedy, **known)
    return ok("project store", told, **known)


def check_hdfs(facts: HdfsFacts, needs: Needs) -> Finding:
    """Check that the HDFS of the Hadoop configuration responds and has space."""
    known = {"conf_dir": facts.conf_dir, "default_fs": facts.default_fs, "total_bytes": facts.total_bytes}
    if not facts.default_fs:
        what = f"fs.defaultFS in {facts.conf_dir} is not an HDFS" if facts.conf_dir else "no Hadoop configuration"
        if not needs.yarn:
            return ok("hdfs", f"{what}; profile {needs.profile} does not need it", **known)
        return fail("hdfs", what, "set HADOOP_CONF_DIR to the folder with the cluster's core-site.xml", **known)
    if facts.problem:
        remedy = _REMEDIES.get(facts.kind, "check the log of the NameNode")
        return fail("hdfs", f"{facts.default_fs}: {facts.problem}", remedy, kind=facts.kind, **known)
    told = f"{facts.default_fs} answers in {facts.seconds:.2f} s"
    if facts.total_bytes:
        free = facts.total_bytes - facts.used_bytes
        told += f", {free / GIB:.1f} of {facts.total_bytes / GIB:.1f} GiB not used"
        if free < facts.total_bytes * 0.05:
            return warn("hdfs", told, "delete old runs (hopsml runs rm), or add DataNodes", **known)
    return ok("hdfs", told, **known)


def check_yarn(facts: YarnFacts, needs: Needs) -> Finding:
    """Check that the ResourceManager of the Hadoop configuration responds and has nodes."""
    known = {
        "addresses": list(facts.addresses),
        "nodes": facts.nodes,
        "memory_mb": facts.memory_mb,
        "cores": facts.cores,
    }
    missing = needs.status_if_missing(needs.yarn)
    if not facts.addresses:
        if not needs.yarn:
            return ok("yarn", f"not configured; profile {needs.profile} does not need it", **known)
        return fail(
            "yarn", "no ResourceManager is configured", "set HADOOP_CONF_DIR to a folder with yarn-site.xml", **known
        )
    if facts.status == 401:
        remedy = (
            "run kinit if it requires Kerberos, or ask for access; hopsml follows and ends applications by this service"
        )
        return Finding("yarn", missing, f"it answers, but refuses this user: {facts.problem}", remedy, known)
    if not facts.answered:
        remedy = "start the ResourceManager, or correct yarn.resourcemanager.webapp.address in yarn-site.xml"
        return Finding("yarn", missing, f"no ResourceManager answers: {facts.problem}", remedy, known)
    size = f"{facts.nodes} nodes, {facts.cores} cores, {facts.memory_mb / 1024:.1f} GiB"
    told = f"{facts.answered}, version {facts.version}: {size}"
    if facts.version and HADOOP.verdict(facts.version) != "works":
        told += f"; this Hadoop has not been tried (supported: {versions_text(HADOOP.supported)})"
    if facts.nodes == 0:
        remedy = (
            "start NodeManagers; yarn node -list -all shows the state of known nodes (UNHEALTHY often means a "
            "full disk)"
        )
        return Finding("yarn", missing, told, remedy, known)
    if facts.pending:
        remedy = "runs wait for these applications; use another queue (spark.yarn.queue), or raise start_timeout"
        return warn("yarn", f"{told}; {facts.pending} applications are waiting", remedy, **known)
    return ok("yarn", told, **known)


def driver_logs(facts: YarnFacts) -> Finding:
    """Check that a NodeManager answers, from which logs of drivers in cluster mode are read."""
    if not facts.node:
        return ok("driver logs", "no NodeManager to ask")
    if facts.node_problem:
        told = f"the NodeManager at {facts.node} does not return logs of drivers: {facts.node_problem}"
        remedy = (
            "allow connections to its web port from here, with a valid ticket if it requires Kerberos; without them "
        )
        return warn("driver logs", told, remedy + "use deploy mode client, or read logs after the end", node=facts.node)
    return ok("driver logs", f"the NodeManager at {facts.node} answers", node=facts.node)


def check_spark_master(facts: MasterFacts) -> Finding:
    """Check that a standalone Spark master accepts connections."""
    if facts.answered:
        return ok("spark master", f"{facts.answered} accepts connections", master=facts.master)
    remedy = "start it (sbin/start-master.sh), or correct HOPSML_SPARK_MASTER"
    return fail("spark master", "; ".join(facts.problems), remedy, master=facts.master)


def check_clock(now_s: float, skews: Mapping[str, float]) -> Finding:
    """Compare this machine's clock with those of the services.

    Args:
        now_s: this machine's time, seconds since 1970.
        skews: the service's clock minus this machine's in seconds, by service.
    """
    facts = {"skew_s": {name: round(skew_s, 1) for name, skew_s in skews.items()}}
    remedy = "synchronise the clocks of both machines (chrony or systemd-timesyncd; timedatectl shows the state)"
    if now_s < EARLIEST_S:
        return fail("clock", "the clock of this machine is years behind", remedy, **facts)
    worst = max(skews, key=lambda name: abs(skews[name]), default=None)
    if worst is None:
        return ok("clock", "set, but there is no service to compare it with", **facts)
    told = f"{worst} is {abs(skews[worst]):.0f} s {'ahead of' if skews[worst] > 0 else 'behind'} this machine"
    if abs(skews[worst]) >= SKEW_FAIL_S:
        return fail("clock", f"{told}; Kerberos and certificates fail with such a difference", remedy, **facts)
    if abs(skews[worst]) >= SKEW_WARN_S:
        return warn("clock", told, remedy, **facts)
    return ok("clock", f"within {max(1.0, abs(skews[worst])):.0f} s of {', '.join(sorted(skews))}", **facts)


LIMIT_S = 25.0


@dataclass(frozen=True)
class Gathered:
    """Facts that one probe has found, or the problem that prevented it."""

    facts: Any = None
    problem: str = ""


@dataclass(frozen=True)
class Examination:
    """Report with all findings, in display order; ``seconds`` is the duration of the examination."""

    profile: str
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def status(self) -> Status:
        """Worst status among the findings."""
        present = {finding.status for finding in self.findings}
        return next((status for status in (Status.FAIL, Status.WARN) if status in present), Status.OK)


def examine(
    profile_name: str | None = None, limit_s: float = LIMIT_S, workers: int = checks.USUAL_WORKERS
) -> Examination:
    """Run all probes, for at most ``limit_s`` seconds, and evaluate their facts for the profile.

    Args:
        profile_name: name of the profile; None: the selected one.
        limit_s: deadline of the probes, in seconds.
        workers: number of workers of the largest group.
    """
    began = time.monotonic()
    loaded, problem = _profile(profile_name)
    needs = Needs.of_profile(loaded) if loaded is not None else Needs()
    looks = gather(_looks(loaded, needs), limit_s)
    findings = _judge(loaded, problem, needs, looks, workers)
    return Examination(needs.profile, tuple(findings), time.monotonic() - began)


def gather(looks: Mapping[str, Callable[[], Any]], limit_s: float) -> dict[str, Gathered]:
    """Run each probe on its own thread; a probe that has not ended after ``limit_s`` seconds is abandoned."""
    done: dict[str, Gathered] = {}

    def work(name: str, look: Callable[[], Any]) -> None:
        try:
            done[name] = Gathered(look())
        except Exception as error:  # noqa: BLE001 one look that breaks must not hide the others
            done[name] = Gathered(problem=str(error) or type(error).__name__)

    threads = [
        threading.Thread(target=work, args=item, name=f"hopsml-doctor-{item[0]}", daemon=True) for item in looks.items()
    ]
    deadline = time.monotonic() + limit_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return {name: done.get(name, Gathered(problem=f"no answer within {limit_s:g} s")) for name in looks}


def _profile(name: str | None) -> tuple[profiles.Profile | None, str]:
    """Return the profile, or None and the reason why it cannot be loaded."""
    try:
        return profiles.load(name), ""
    except ArgumentError as error:
        return None, str(error)


def _looks(loaded: profiles.Profile | None, needs: Needs) -> dict[str, Callable[[], Any]]:
    """Return the probes that apply to the profile, by the name of their finding."""
    conf = loaded.spark if loaded is not None else {}
    preset = loaded.environment if loaded is not None else {}
    packages = provenance.packages()
    looks: dict[str, Callable[[], Any]] = {
        "java": spark_start.find_java,
        "spark": partial(facts.find_spark, packages),
        "frameworks": lambda: packages,
        "gpus": facts.probe_gpus,
        "limits": facts.limits,
        "scratch": facts.probe_scratch,
        "ports": facts.probe_ports,
        "shared host": other_users,
        "addresses": lambda: facts.find_addresses(
            conf.get("spark.driver.host", ""), os.environ.get("SPARK_LOCAL_IP") or preset.get("SPARK_LOCAL_IP", "")
        ),
        "project store": lambda: facts.probe_store(_project_url(loaded)),
        "hdfs": facts.probe_hdfs,
        "yarn": facts.probe_yarn,
        "kerberos": kerberos.look,
    }
    keytab, principal = conf.get("spark.kerberos.keytab", ""), conf.get("spark.kerberos.principal", "")
    if keytab or principal:
        looks["keytab"] = partial(kerberos.keytab, keytab, principal)
    if keytab or principal or _requires_kerberos():
        looks["kdc"] = partial(kerberos.kdc, principal)
    if needs.spark:
        looks["executors' python"] = partial(facts.probe_executors_python, conf.get("spark.pyspark.python", ""))
    if needs.master.startswith("spark://"):
        looks["spark master"] = partial(spark_start.probe_spark_master, needs.master)
    return looks


def _requires_kerberos() -> bool:
    """Return True if Hadoop's configuration requires Kerberos; other probes report one that cannot be read."""
    try:
        return settings.is_kerberized()
    except ArgumentError:
        return False


def _project_url(loaded: profiles.Profile | None) -> str:
    """Return the project's URL that runs under the profile use."""
    if loaded is not None and loaded.store and not SETTINGS.project_url:
        return loaded.store.rstrip("/")
    return settings.project_url()


def _judge(
    loaded: profiles.Profile | None, problem: str, needs: Needs, looks: Mapping[str, Gathered], workers: int
) -> list[Finding]:
    """Run the checks on the probes' facts, and return their findings."""
    packages = looks["frameworks"].facts
    judges: dict[str, Callable[[Any], Finding]] = {
        "java": lambda seen: checks.java(seen, _installed_spark(looks), needs),
        "spark": lambda seen: checks.spark(seen, packages, needs, facts.python_version()),
        "executors' python": lambda seen: checks.executors_python(seen, facts.python_version(), needs),
        "frameworks": lambda seen: checks.frameworks(seen, os.environ),
        "gpus": lambda seen: checks.gpus(seen.gpus, seen.has_driver, packages),
        "limits": lambda seen: checks.limits(
            seen, len(looks["gpus"].facts.gpus) if looks["gpus"].facts else 0, workers
        ),
        "scratch": checks.scratch,
        "ports": checks.ports,
        "shared host": lambda seen: checks.shared_host(seen, server_guard.are_servers_guarded()),
        "addresses": lambda seen: checks.addresses(seen, needs),
        "project store": lambda seen: check_store(seen, needs),
        "hdfs": lambda seen: check_hdfs(seen, needs),
        "yarn": lambda seen: check_yarn(seen, needs),
        "spark master": check_spark_master,
        "keytab": kerberos.check_keytab,
        "kdc": kerberos.check_kdc,
    }
    shipped = shipped_files(loaded) if loaded is not None else []
    findings = [
        check_profile(loaded, problem, {path: Path(path).exists() for path in shipped}),
        checks.python(facts.python_version()),
    ]
    for name, judge in judges.items():
        if name in looks:
            look = looks[name]
            findings.append(unanswered_finding(name, look, needs) if look.problem else judge(look.facts))
    findings += _of_several(looks, needs, loaded)
    findings.append(check_clock(time.time(), _skews(looks)))
    return findings


def _of_several(looks: Mapping[str, Gathered], needs: Needs, loaded: Profile | None) -> list[Finding]:
    """Return the findings of probes that have several."""
    seen = looks["kerberos"]
    spark = loaded.spark if loaded is not None else {}
    login = spark.get("spark.kerberos.keytab", ""), spark.get("spark.kerberos.principal", "")
    found = (
        [unanswered_finding("kerberos", seen, needs)] if seen.problem else kerberos.findings(seen.facts, needs, *login)
    )
    return found + ([driver_logs(looks["yarn"].facts)] if needs.yarn and looks["yarn"].facts else [])


def _installed_spark(looks: Mapping[str, Gathered]) -> str:
    """Return the version of pyspark; empty if it is not installed or unknown."""
    found = looks["spark"].facts if "spark" in looks else None
    return found.pyspark if found is not None else ""


def unanswered_finding(name: str, look: Gathered, needs: Needs) -> Finding:
    """Return the finding for a probe that raised or did not end: as severe as if what it probes were missing."""
    needed = {"hdfs": needs.yarn, "yarn": needs.yarn, "java": needs.spark, "spark": needs.spark, "gpus": False}
    remedy = "correct the setting in the message; if a service did not answer, check that service"
    return Finding(name, needs.status_if_missing(needed.get(name, True)), look.problem, remedy)


def _skews(looks: Mapping[str, Gathered]) -> dict[str, float]:
    """Return the clock skews that probes have measured, in seconds, by service."""
    names = {"project store": "the project store", "yarn": "the ResourceManager", "kdc": "the KDC"}
    seen = {names[name]: looks[name].facts.skew_s for name in names if name in looks and looks[name].facts is not None}
    return {name: skew_s for name, skew_s in seen.items() if skew_s is not None}


def as_dict(report: Examination) -> dict[str, Any]:
    """Return the report as JSON values, for ``--json``."""
    return {
        "hopsml": hopsml.__version__,
        "profile": report.profile,
        "status": report.status.value,
        "seconds": round(report.seconds, 3),
        "checks": [
            {
                "name": finding.name,
                "status": finding.status.value,
                "summary": finding.summary,
                "remedy": finding.remedy,
                "facts": finding.facts,
            }
            for finding in report.findings
        ],
    }
