"""Result of a check, and the requirements of a profile that checks depend on."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from hopsml.core.profiles import Profile


class Status(str, enum.Enum):
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
    def of(cls, profile: Profile) -> Needs:
        """Return the requirements of runs under ``profile``."""
        return cls(
            profile=profile.name,
            spark=profile.uses_spark,
            yarn=profile.master.startswith("yarn"),
            distributed=profile.uses_spark and not profile.master.startswith("local"),
            master=profile.master,
        )

    def missing(self, needed: bool) -> Status:
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
