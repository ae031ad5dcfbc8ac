"""Execution of all probes in parallel, each on a thread that can be abandoned, and then of all checks."""

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
from hopsml.cluster.agent.preflight.measure import other_people
from hopsml.cluster.worker import server_guard
from hopsml.core import profiles, settings
from hopsml.core.variables import SETTINGS
from hopsml.doctor import checks, cluster_checks, facts, services
from hopsml.doctor.checks import Finding, Needs, Status
from hopsml.errors import ArgumentError
from hopsml.tracking import machine

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


def examine(profile_name: str | None = None, limit_s: float = LIMIT_S) -> Examination:
    """Run all probes, for at most ``limit_s`` seconds, and evaluate their facts for the profile.

    Args:
        profile_name: name of the profile; None: the selected one.
        limit_s: deadline of the probes, in seconds.
    """
    began = time.monotonic()
    loaded, problem = _profile(profile_name)
    needs = Needs.of(loaded) if loaded is not None else Needs()
    looks = gather(_looks(loaded, needs), limit_s)
    findings = _judge(loaded, problem, needs, looks)
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
    packages = machine.packages()
    looks: dict[str, Callable[[], Any]] = {
        "java": facts.java,
        "spark": partial(facts.spark, packages),
        "frameworks": lambda: packages,
        "gpus": facts.gpus,
        "limits": facts.limits,
        "scratch": facts.scratch,
        "ports": facts.ports,
        "shared host": other_people,
        "addresses": lambda: facts.addresses(
            conf.get("spark.driver.host", ""), os.environ.get("SPARK_LOCAL_IP") or preset.get("SPARK_LOCAL_IP", "")
        ),
        "project store": lambda: services.store(_project_url(loaded)),
        "hdfs": services.hdfs,
        "yarn": services.yarn,
    }
    if needs.spark:
        looks["executors' python"] = partial(facts.executors_python, conf.get("spark.pyspark.python", ""))
    if needs.master.startswith("spark://"):
        looks["spark master"] = partial(services.spark_master, needs.master)
    return looks


def _project_url(loaded: profiles.Profile | None) -> str:
    """Return the project's URL that runs under the profile use."""
    if loaded is not None and loaded.store and not SETTINGS.project_url:
        return loaded.store.rstrip("/")
    return settings.project_url()


def _judge(loaded: profiles.Profile | None, problem: str, needs: Needs, looks: Mapping[str, Gathered]) -> list[Finding]:
    """Run the checks on the probes' facts, and return their findings."""
    packages = looks["frameworks"].facts
    judges: dict[str, Callable[[Any], Finding]] = {
        "java": lambda seen: checks.java(seen, needs),
        "spark": lambda seen: checks.spark(seen, packages, needs),
        "executors' python": lambda seen: checks.executors_python(seen, facts.python_version(), needs),
        "frameworks": lambda seen: checks.frameworks(seen, os.environ),
        "gpus": lambda seen: checks.gpus(seen.gpus, seen.has_driver, packages),
        "limits": lambda seen: checks.limits(seen, len(looks["gpus"].facts.gpus) if looks["gpus"].facts else 0),
        "scratch": checks.scratch,
        "ports": checks.ports,
        "shared host": lambda seen: checks.shared_host(seen, server_guard.is_ready()),
        "addresses": lambda seen: checks.addresses(seen, needs),
        "project store": lambda seen: cluster_checks.store(seen, needs),
        "hdfs": lambda seen: cluster_checks.hdfs(seen, needs),
        "yarn": lambda seen: cluster_checks.yarn(seen, needs),
        "spark master": cluster_checks.spark_master,
    }
    shipped = cluster_checks.shipped_files(loaded) if loaded is not None else []
    findings = [
        cluster_checks.check_profile(loaded, problem, {path: Path(path).exists() for path in shipped}),
        checks.python(facts.python_version()),
    ]
    for name, judge in judges.items():
        if name in looks:
            look = looks[name]
            findings.append(unanswered(name, look, needs) if look.problem else judge(look.facts))
    findings.append(cluster_checks.clock(time.time(), _skews(looks)))
    return findings


def unanswered(name: str, look: Gathered, needs: Needs) -> Finding:
    """Return the finding for a probe that raised or did not end: as severe as if what it probes were missing."""
    needed = {"hdfs": needs.yarn, "yarn": needs.yarn, "java": needs.spark, "spark": needs.spark, "gpus": False}
    remedy = "correct the setting that the message names; where nothing answered, look at that service itself"
    return Finding(name, needs.missing(needed.get(name, True)), look.problem, remedy)


def _skews(looks: Mapping[str, Gathered]) -> dict[str, float]:
    """Return the clock skews that probes have measured, in seconds, by service."""
    names = {"project store": "the project store", "yarn": "the ResourceManager"}
    seen = {names[name]: looks[name].facts.skew_s for name in names if looks[name].facts is not None}
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
