"""What an engine (YARN, this machine) shows of the applications that were handed to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hopsml.states import Lifecycle


@dataclass(frozen=True, slots=True)
class SlotsAnswer:
    """What a driver says of its slots: it has heard that it may have ``told``, and ``held`` is the most that it has."""

    told: int
    held: int


@dataclass(frozen=True, slots=True)
class SeenApplication:
    """``state``: STARTING, RUNNING, FINISHED, FAILED, or STOPPED where somebody has killed it."""

    id: str
    state: Lifecycle
    diagnostics: str = ""
    containers: int | None = None  # that run now, the driver's among them; None: the engine does not count them
    answer: SlotsAnswer | None = None  # None: its driver has not said anything yet


@dataclass(frozen=True, slots=True)
class Sight:
    """One look. ``applications``: by the tag of their launch, the oldest first; None where the engine does not answer.

    ``submitting``: tags of submissions that are under way in this process. ``refused``: tag -> why one has failed.
    """

    applications: Mapping[str, tuple[SeenApplication, ...]] | None
    submitting: frozenset[str] = frozenset()
    refused: Mapping[str, str] = field(default_factory=dict)


def strays(sight: Sight, living: Mapping[str, str]) -> Iterable[str]:
    """Ids of applications that bear our tag, run, and belong to no launch that may.

    ``living``: tag -> id of its application ("" while none is known) of each launch that may run. Of two applications
    with one tag the older one stays.
    """
    for tag, applications in (sight.applications or {}).items():
        known = living.get(tag)
        for position, application in enumerate(applications):
            mine = known is not None and (application.id == known if known else position == 0)
            if not mine and not application.state.is_final:
                yield application.id


def over(sight: Sight, living: Mapping[str, str]) -> Iterable[str]:
    """Return the tags of launches that have ended, or were refused, and whose end is stored.

    ``living``: as for ``strays``, after the jobs were advanced by this snapshot.
    """
    ended = (
        tag
        for tag, applications in (sight.applications or {}).items()
        if all(application.state.is_final for application in applications)
    )
    return [tag for tag in {*ended, *sight.refused} - sight.submitting if tag not in living]
