"""Profiles of a run's workers: their list, the newest request, and flame graphs."""

from __future__ import annotations

import msgspec

from hopsml.errors import ArgumentError
from hopsml.service.browse import files, places
from hopsml.service.browse.flame import FlameGraph, flame_graph
from hopsml.storage import mailbox, urls
from hopsml.storage.filesystem import for_url
from hopsml.storage.mailbox import ProfileRequest
from hopsml.storage.run_dir import RunDir

MOST_BYTES = 32 << 20  # most bytes of a profile that is read as a whole


class ProfileList(msgspec.Struct, frozen=True):
    """Profiles of a run.

    Attributes:
        wish: The newest request for a profile, with its state; None if there is none.
        profiles: The stored profiles, the newest first.
    """

    wish: ProfileRequest | None
    profiles: list[files.Entry]


def listed(directory: RunDir) -> ProfileList:
    """Return the profiles and the newest request of a run. Raises StorageError."""
    found = mailbox.kept_profiles(directory)
    entries = [files.Entry(one.name, False, one.length, one.modified_s) for one in found]
    return ProfileList(mailbox.read_profile_request(directory), entries)


def drawn(directory: RunDir, name: str) -> FlameGraph:
    """Return the flame graph of one profile. Raises PathNotFound, and ArgumentError if it cannot be drawn."""
    places.checked_name(name, "profile")
    ending = mailbox.ENDINGS["speedscope"]
    if not name.endswith(ending):
        raise ArgumentError(f"profile={name[:80]!r}: only *{ending} are drawn here; download it")
    url = places.below(directory, urls.join("profiles", name))
    if (length := files.length(url)) is None or length > MOST_BYTES:
        raise ArgumentError(f"profile={name[:80]!r}: it is larger than {MOST_BYTES >> 20} MiB; download it")
    return flame_graph(for_url(url).read_bytes(url))
