"""The profiles of a run's workers: which there are, how the newest wish stands, and one of them to be drawn."""

from __future__ import annotations

import msgspec

from hopsml.errors import ArgumentError
from hopsml.service.browse import files, places
from hopsml.service.browse.flame import FlameGraph, flame_graph
from hopsml.storage import profile_request, urls
from hopsml.storage.filesystem import for_url
from hopsml.storage.profile_request import ProfileWish
from hopsml.storage.run_dir import RunDir

MOST_BYTES = 32 << 20  # of a profile that is read as a whole


class ProfileList(msgspec.Struct, frozen=True):
    """``wish``: the newest one, with its answer; ``profiles``: the newest first."""

    wish: ProfileWish | None
    profiles: list[files.Entry]


def listed(directory: RunDir) -> ProfileList:
    """What there is. Raises StorageError."""
    found = profile_request.kept(directory)
    entries = [files.Entry(one.name, False, one.length, one.modified_s) for one in found]
    return ProfileList(profile_request.read(directory), entries)


def drawn(directory: RunDir, name: str) -> FlameGraph:
    """One profile. Raises ArgumentError where it cannot be drawn, PathNotFound."""
    places.checked_name(name, "profile")
    ending = profile_request.ENDINGS["speedscope"]
    if not name.endswith(ending):
        raise ArgumentError(f"profile={name[:80]!r}: only *{ending} are drawn here; download it")
    url = places.below(directory, urls.join("profiles", name))
    if (length := files.length(url)) is None or length > MOST_BYTES:
        raise ArgumentError(f"profile={name[:80]!r}: it is larger than {MOST_BYTES >> 20} MiB; download it")
    return flame_graph(for_url(url).read_bytes(url))
