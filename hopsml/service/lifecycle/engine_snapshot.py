"""Snapshots of the applications that an engine (YARN, local processes) runs for the service."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hopsml.core.states import Lifecycle


@dataclass(frozen=True, slots=True)
class SlotsAnswer:
    """Answer of a driver to the number of slots that it was granted.

    Attributes:
        told: The number of slots that the driver received.
        held: The maximum number of slots that it holds.
    """

    told: int
    held: int


@dataclass(frozen=True, slots=True)
class SeenApplication:
    """Application as one poll of the engine returned it.

    ``state`` is STARTING, RUNNING, FINISHED, FAILED, or STOPPED if the application was killed.
    """

    id: str
    state: Lifecycle
    diagnostics: str = ""
    containers: int | None = None  # running containers, including the driver's; None: the engine does not count them
    answer: SlotsAnswer | None = None  # None: the driver has not answered yet


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """Applications in one engine snapshot, and the submissions of this process.

    Attributes:
        applications: Tag of a launch -> its applications, the oldest first; None if the engine does not answer.
        submitting: Tags of submissions that are in progress in this process.
        refused: Tag -> reason for which its submission failed.
    """

    applications: Mapping[str, tuple[SeenApplication, ...]] | None
    submitting: frozenset[str] = frozenset()
    refused: Mapping[str, str] = field(default_factory=dict)


def strays(sight: EngineSnapshot, living: Mapping[str, str]) -> Iterable[str]:
    """Yield the IDs of running applications with a tag of this service that belong to no permitted launch.

    Of two applications with the same tag, the older one is permitted.

    Args:
        sight: Snapshot of the engine.
        living: Tag -> application ID, "" if not known yet, of each launch that may run.
    """
    for tag, applications in (sight.applications or {}).items():
        known = living.get(tag)
        for position, application in enumerate(applications):
            mine = known is not None and (application.id == known if known else position == 0)
            if not mine and not application.state.is_final:
                yield application.id


def over(sight: EngineSnapshot, living: Mapping[str, str]) -> Iterable[str]:
    """Return the tags of launches that have ended, or were refused, and whose end is stored.

    Args:
        sight: Snapshot of the engine.
        living: As for ``strays``, after the jobs were advanced by this snapshot.
    """
    ended = (
        tag
        for tag, applications in (sight.applications or {}).items()
        if all(application.state.is_final for application in applications)
    )
    return [tag for tag in {*ended, *sight.refused} - sight.submitting if tag not in living]
