"""ASGI application of ``hopsml server``: jobs, and the project's runs as ``hopsml ui`` displays them."""

from __future__ import annotations

import time
from itertools import chain
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Security
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from starlette.routing import Route

from hopsml import __version__
from hopsml.core.metrics import Meter
from hopsml.service.browse.project import Project
from hopsml.service.jobs import JobService
from hopsml.service.rest import (
    code_routes,
    dataset_routes,
    job_models,
    job_routes,
    job_run_routes,
    model_routes,
    page_files,
    run_routes,
    service_routes,
)
from hopsml.service.rest.access import TokenMiddleware
from hopsml.service.rest.audited import AuditMiddleware
from hopsml.service.rest.errors import HANDLERS, JsonAnswer
from hopsml.service.rest.event_stream import Streams, events_route
from hopsml.service.rest.limited import Limits, MetricsMiddleware, RateLimitMiddleware
from hopsml.service.rest.sign_in_routes import SignInRoutes
from hopsml.service.store.accounts import AuditLog, Tokens
from hopsml.service.store.notes import Notes

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Scope, Send

    from hopsml.service.sign_in import Provider

REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": job_models.RefusalAnswer, "description": "What is wrong, and what helps."}
    for status in ("4XX", "5XX")
}
_ROUTERS = (
    job_run_routes.router,  # before the others, as /jobs/events is not a job
    job_routes.router,
    code_routes.router,
    dataset_routes.router,
    service_routes.router,
    service_routes.metrics_router,
)


def service_application(
    jobs: JobService,
    project: Project,
    streams: Streams,
    name: str,
    limits: Limits | None = None,
    provider: Provider | None = None,
) -> ASGIApp:
    """Create the application of the server; its caller starts and ends ``jobs`` and ``streams``.

    Args:
        jobs: The job service.
        project: The project whose runs are displayed.
        streams: Event streams of the server.
        name: Name of the service, for its cookies.
        limits: Rate limits; None for the defaults.
        provider: Provider of sign-in; None if only tokens are accepted.
    """
    app = api_application()
    app.router.routes += [events_route(), *run_routes.routes(), *model_routes.routes(), *page_files.routes()]
    app.state.jobs, app.state.project = jobs, project
    app.state.broadcaster, app.state.streams = streams.project, streams
    tokens, limits, app.state.notes = Tokens(jobs.store), limits or Limits(), Notes(jobs.store)
    door = SignInRoutes(provider, jobs.store, name, limits.refuse_if_frequent) if provider is not None else None
    app.state.signs_in = door is not None

    async def refuse(scope: Scope, send: Send) -> bool:
        return await limits.refuse_if_frequent(scope, send) or (
            door is not None and await door.show_sign_in_page(scope, send)
        )

    limited = RateLimitMiddleware(app, limits)
    guarded = TokenMiddleware(limited, lambda token: tokens.caller(token, time.time()), name, refuse, door)
    app.state.requests = Meter()
    routes = chain(app.routes, *(router.routes for router in _ROUTERS))
    app.state.addresses = [route for route in routes if isinstance(route, Route)]
    templates = {route.endpoint: route.path for route in app.state.addresses}
    return MetricsMiddleware(AuditMiddleware(guarded, AuditLog(jobs.store)), app.state.requests, templates)


def api_application() -> FastAPI:
    """Create the application of the API routes alone, with their OpenAPI document at ``/api/v1/openapi.json``."""
    app = FastAPI(
        title="hopsml job service",
        version=__version__,
        openapi_url="/api/v1/openapi.json",
        docs_url=None,  # its page would load scripts from other hosts
        redoc_url=None,
        redirect_slashes=False,  # its redirects would be wrong behind a proxy that adds a path
        responses=REFUSALS,
        dependencies=[
            Security(HTTPBearer(auto_error=False, description="A token of the store; browsers send a cookie."))
        ],
    )
    for kind, handler in HANDLERS.items():
        app.add_exception_handler(kind, handler)
    app.add_exception_handler(RequestValidationError, _on_wrong)
    for router in _ROUTERS:
        app.include_router(router)
    return app


async def _on_wrong(request: Request, error: Any) -> Response:
    """Answer a request with invalid values: status 422, and all mistakes at once."""
    said = [_told(problem, "secrets" in request.url.path) for problem in error.errors()[:20]]
    remedy = "correct it; /api/v1/openapi.json describes all values"
    return JsonAnswer({"error": "; ".join(said), "remedy": remedy}, status_code=422)


def _told(problem: Any, is_secret: bool) -> str:
    """Describe an invalid value by its name and the value itself, which is omitted for a secret."""
    name = ".".join(str(step)[:80] for step in problem["loc"][1:] or problem["loc"])
    given = problem.get("input")
    shown = f" {given!r:.80}" if isinstance(given, str | int | float) and not is_secret else ""
    return f"{name}{shown}: {problem['msg'].replace('Input should be', 'it must be')}"
