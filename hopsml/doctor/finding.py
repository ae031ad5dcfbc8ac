"""The result of a check, and what checks must know of the profile."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from hopsml.profiles import Profile


class Status(str, enum.Enum):
    """Severity. WARN: runs will work, or some will; FAIL: runs under this profile will not."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """The result of one check; ``remedy`` is given whenever the status is not OK, ``facts`` is for ``--json``."""

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
    """What runs under a profile depend on: decides whether something missing is a failure."""

    profile: str = "local"
    spark: bool = False
    yarn: bool = False
    distributed: bool = False  # executors on other machines
    master: str = "none"

    @classmethod
    def of(cls, profile: Profile) -> Needs:
        """What runs under ``profile`` need."""
        return cls(
            profile=profile.name,
            spark=profile.uses_spark,
            yarn=profile.master.startswith("yarn"),
            distributed=profile.uses_spark and not profile.master.startswith("local"),
            master=profile.master,
        )

    def missing(self, needed: bool) -> Status:
        """The status of something that is missing: FAIL if the profile needs it, else WARN."""
        return Status.FAIL if needed else Status.WARN


def ok(name: str, summary: str, /, **facts: Any) -> Finding:
    """A finding without a problem."""
    return Finding(name, Status.OK, summary, facts=facts)


def warn(name: str, summary: str, remedy: str, /, **facts: Any) -> Finding:
    """A finding under which some runs, or all, will still work."""
    return Finding(name, Status.WARN, summary, remedy, facts)


def fail(name: str, summary: str, remedy: str, /, **facts: Any) -> Finding:
    """A finding under which runs of this profile will not work."""
    return Finding(name, Status.FAIL, summary, remedy, facts)
