"""Servings of a project for the web page, with the load that their supervisors publish."""

from __future__ import annotations

import time

import msgspec

from hopsml.core.states import Lifecycle
from hopsml.errors import StorageError
from hopsml.model import serving_load
from hopsml.model.serving_load import STALE_S, ServingLoad

MOST = 200  # servings that are returned
RUNNING, STOPPED, UNKNOWN = Lifecycle.RUNNING.value, Lifecycle.STOPPED.value, "UNKNOWN"


class ServingDetail(msgspec.Struct, frozen=True):
    """A serving.

    Attributes:
        name: Name of the serving.
        state: RUNNING, STOPPED (it publishes no load), or UNKNOWN (its last load is old, or a record cannot be read).
        why: Reason of an unknown state.
        model: Name of the model.
        requested: Version as the definition names it.
        profile: Profile of the cluster; empty for a single machine.
        creator: User who created the definition.
        created: Time of its creation, in seconds since 1970.
        load: Its load; None if it publishes none.
    """

    name: str
    state: str
    why: str = ""
    model: str = ""
    requested: str = ""
    profile: str = ""
    creator: str = ""
    created: float | None = None
    load: ServingLoad | None = None


class ServingList(msgspec.Struct, frozen=True):
    """Servings by name; ``is_cut`` is True if the project has more."""

    servings: list[ServingDetail]
    is_cut: bool


def list_servings(project: str, now_s: float | None = None) -> ServingList:
    """Return the servings of a project.

    Args:
        project: URL of the project.
        now_s: The time, in seconds since 1970; None for the present one.

    Raises:
        StorageError: The store cannot be read.
    """
    names, now = serving_load.serving_names(project), time.time() if now_s is None else now_s
    return ServingList([_detail(name, project, now) for name in names[:MOST]], len(names) > MOST)


def _detail(name: str, project: str, now_s: float) -> ServingDetail:
    """Return one serving; what cannot be read is explained."""
    try:
        served, load = serving_load.read_served_model(name, project), serving_load.read_load(name, project)
    except StorageError as error:
        return ServingDetail(name, UNKNOWN, str(error))
    if served is None:  # deleted at this moment
        return ServingDetail(name, UNKNOWN, "its definition was deleted")
    state, why = STOPPED, ""
    if load is not None:
        age_s = now_s - load.updated_s
        state = RUNNING if age_s <= STALE_S else UNKNOWN
        if state == UNKNOWN:
            why = f"its supervisor has published nothing for {age_s:.0f} s; `hopsml serve show {name}` asks its machine"
    return ServingDetail(
        name=name,
        state=state,
        why=why,
        model=served.model,
        requested=str(served.version),
        profile=served.profile,
        creator=served.creator,
        created=served.created.timestamp() if served.created is not None else None,
        load=load,
    )
