"""ASGI application of ``hopsml ui``: all routes, behind one token."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool

from hopsml.service.browse.changes import Changes
from hopsml.service.browse.project import Project
from hopsml.service.rest import page_files, run_routes
from hopsml.service.rest.access import Guarded, one_token
from hopsml.service.rest.errors import HANDLERS
from hopsml.service.rest.event_stream import Broadcaster, events_route
from hopsml.service.rest.project_feed import ProjectFeed

if TYPE_CHECKING:
    from starlette.types import ASGIApp


def application(project: Project, token: str, broadcaster: Broadcaster | None = None) -> ASGIApp:
    """Return the application that displays the runs of a project.

    Args:
        project: The project.
        token: The token that requests must have.
        broadcaster: Event stream of the project's changes; None to create one.
    """
    told = broadcaster or Broadcaster(ProjectFeed(Changes(project)))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        # not read again if the process that serves it has just read it
        await run_in_threadpool(project.runs.refresh, run_routes.STALE_S)
        yield
        await told.end()

    routes = [events_route(), *run_routes.routes(), *page_files.routes()]
    app = Starlette(routes=routes, exception_handlers=HANDLERS, lifespan=lifespan)
    app.state.project, app.state.broadcaster = project, told
    return Guarded(app, one_token(token), token)
