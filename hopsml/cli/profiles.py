"""``hopsml profiles``: list the profiles of clusters."""

from __future__ import annotations


def profiles() -> None:
    """List the profiles of conf/ with their masters and descriptions."""
    from hopsml.core import profiles as known

    for name in known.names():
        profile = known.load(name)
        print(f"{name:16} {profile.master:28} {profile.description}")
