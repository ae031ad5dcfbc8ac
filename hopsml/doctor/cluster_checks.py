"""Checks of the profile and of services beyond this machine; pure functions from facts to a finding."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hopsml.core.profiles import Profile
from hopsml.doctor.checks import Finding, Needs, fail, ok, warn
from hopsml.doctor.services import HdfsFacts, MasterFacts, StoreFacts, YarnFacts
from hopsml.storage import urls

GIB = 1 << 30
SLOW_S = 2.0
SKEW_WARN_S, SKEW_FAIL_S = 10.0, 240.0  # Kerberos rejects a skew from 300 s on
EARLIEST_S = 1_735_689_600  # 1 January 2025: an earlier clock is not set

_REMEDIES = {
    "StorageUnavailable": "start it, or correct the address: fs.defaultFS in HADOOP_CONF_DIR, or HOPSML_PROJECT_URL",
    "StorageTimeout": "it accepts connections and does not answer: look at the NameNode's log and its garbage collection",
    "SafeMode": "wait until the NameNode has its DataNodes (hdfs dfsadmin -safemode get)",
    "PermissionRefused": "give this user the right to write there, or let HOPSML_PROJECT_URL name another place",
    "QuotaExceeded": "delete old runs (hopsml runs rm), or raise the quota (hdfs dfsadmin -setSpaceQuota)",
    "ArgumentError": "correct the setting that the message names",
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
            "profile", problem, "hopsml profiles lists those that there are; --profile or HOPSML_PROFILE names one"
        )
    missing = sorted(path for path, is_there in existing.items() if not is_there)
    facts = {"name": loaded.name, "master": loaded.master, "deploy_mode": loaded.deploy_mode}
    if missing:
        return fail(
            "profile", f"{loaded.name}: it ships {', '.join(missing)}, which is not there", "correct conf/", **facts
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


def store(facts: StoreFacts, needs: Needs) -> Finding:
    """Check that run directories can be written at the project's URL, and that executors see the same storage."""
    known = {"url": facts.url, "probed": facts.probed, "seconds": round(facts.seconds, 3)}
    if facts.problem:
        remedy = _REMEDIES.get(facts.kind, "let HOPSML_PROJECT_URL name a store that can be written")
        return fail("project store", f"{facts.url}: {facts.problem}", remedy, kind=facts.kind, **known)
    where = "" if facts.probed == facts.url else f" (not there yet; {facts.probed} can be written)"
    told = f"{facts.url}{where}: written, read and deleted in {facts.seconds:.2f} s"
    if needs.distributed and urls.split(facts.url)[0] in ("", "file"):
        remedy = "let HOPSML_PROJECT_URL name shared storage (hdfs://...), unless every node mounts this folder"
        return warn("project store", f"{told}; but executors on other machines do not see this disk", remedy, **known)
    if facts.seconds > SLOW_S:
        remedy = "look at the NameNode's and the DataNodes' load; training does not wait for the store, ends of runs do"
        return warn("project store", told, remedy, **known)
    return ok("project store", told, **known)


def hdfs(facts: HdfsFacts, needs: Needs) -> Finding:
    """Check that the HDFS of the Hadoop configuration responds and has space."""
    known = {"conf_dir": facts.conf_dir, "default_fs": facts.default_fs, "total_bytes": facts.total_bytes}
    if not facts.default_fs:
        what = f"{facts.conf_dir} names no HDFS in fs.defaultFS" if facts.conf_dir else "no Hadoop configuration"
        if not needs.yarn:
            return ok("hdfs", f"{what}; profile {needs.profile} does without", **known)
        return fail("hdfs", what, "let HADOOP_CONF_DIR name the folder with the cluster's core-site.xml", **known)
    if facts.problem:
        remedy = _REMEDIES.get(facts.kind, "look at the NameNode's log")
        return fail("hdfs", f"{facts.default_fs}: {facts.problem}", remedy, kind=facts.kind, **known)
    told = f"{facts.default_fs} answers in {facts.seconds:.2f} s"
    if facts.total_bytes:
        free = facts.total_bytes - facts.used_bytes
        told += f", {free / GIB:.1f} of {facts.total_bytes / GIB:.1f} GiB not used"
        if free < facts.total_bytes * 0.05:
            return warn("hdfs", told, "delete what is not needed (hopsml runs rm), or add DataNodes", **known)
    return ok("hdfs", told, **known)


def yarn(facts: YarnFacts, needs: Needs) -> Finding:
    """Check that the ResourceManager of the Hadoop configuration responds and has nodes."""
    known = {
        "addresses": list(facts.addresses),
        "nodes": facts.nodes,
        "memory_mb": facts.memory_mb,
        "cores": facts.cores,
    }
    missing = needs.missing(needs.yarn)
    if not facts.addresses:
        if not needs.yarn:
            return ok("yarn", f"not configured; profile {needs.profile} does without", **known)
        return fail(
            "yarn", "no ResourceManager is configured", "let HADOOP_CONF_DIR name a folder with yarn-site.xml", **known
        )
    if facts.status in (401, 403):
        remedy = "kinit, then ask with curl --negotiate; spark-submit itself uses the RPC port"
        return warn("yarn", f"it answers, but not to us: {facts.problem}", remedy, **known)
    if not facts.answered:
        remedy = "start the ResourceManager, or correct yarn.resourcemanager.webapp.address in yarn-site.xml"
        return Finding("yarn", missing, f"no ResourceManager answers: {facts.problem}", remedy, known)
    size = f"{facts.nodes} nodes, {facts.cores} cores, {facts.memory_mb / 1024:.1f} GiB"
    told = f"{facts.answered}, version {facts.version}: {size}"
    if facts.nodes == 0:
        remedy = "start NodeManagers; yarn node -list -all shows why known ones do not count (UNHEALTHY: a full disk)"
        return Finding("yarn", missing, told, remedy, known)
    if facts.pending:
        remedy = "runs will wait for them: use another queue (spark.yarn.queue), or raise start_timeout"
        return warn("yarn", f"{told}; {facts.pending} applications wait already", remedy, **known)
    return ok("yarn", told, **known)


def spark_master(facts: MasterFacts) -> Finding:
    """Check that a standalone Spark master accepts connections."""
    if facts.answered:
        return ok("spark master", f"{facts.answered} accepts connections", master=facts.master)
    remedy = "start it (sbin/start-master.sh), or let HOPSML_SPARK_MASTER name the right one"
    return fail("spark master", "; ".join(facts.problems), remedy, master=facts.master)


def clock(now_s: float, skews: Mapping[str, float]) -> Finding:
    """Compare this machine's clock with those of the services.

    Args:
        now_s: this machine's time, seconds since 1970.
        skews: the service's clock minus this machine's in seconds, by service.
    """
    facts = {"skew_s": {name: round(skew_s, 1) for name, skew_s in skews.items()}}
    remedy = "let both machines keep time (chrony or systemd-timesyncd; timedatectl shows the state)"
    if now_s < EARLIEST_S:
        return fail("clock", "this machine's clock is years behind", remedy, **facts)
    worst = max(skews, key=lambda name: abs(skews[name]), default=None)
    if worst is None:
        return ok("clock", "set; there is no service to compare it with", **facts)
    told = f"{worst} is {abs(skews[worst]):.0f} s {'ahead of' if skews[worst] > 0 else 'behind'} this machine"
    if abs(skews[worst]) >= SKEW_FAIL_S:
        return fail("clock", f"{told}: Kerberos and certificates refuse that", remedy, **facts)
    if abs(skews[worst]) >= SKEW_WARN_S:
        return warn("clock", told, remedy, **facts)
    return ok("clock", f"within {max(1.0, abs(skews[worst])):.0f} s of {', '.join(sorted(skews))}", **facts)
