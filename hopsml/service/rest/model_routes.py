"""Routes of the models and servings of a project, for the web page; as its runs, all callers may see them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.routing import Route

from hopsml.service.browse import models, servings
from hopsml.service.browse.project import Project
from hopsml.service.rest.errors import JsonAnswer

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


async def list_models(request: Request) -> Response:
    """Return the models of the project: ``api/models``."""
    return JsonAnswer(await run_in_threadpool(models.list_models, _project_url(request)))


async def model(request: Request) -> Response:
    """Return a model with its versions: ``api/models/{name}``."""
    return JsonAnswer(await run_in_threadpool(models.model_detail, _project_url(request), request.path_params["name"]))


async def list_servings(request: Request) -> Response:
    """Return the servings of the project with their load: ``api/servings``."""
    return JsonAnswer(await run_in_threadpool(servings.list_servings, _project_url(request)))


def routes() -> list[Route]:
    """Return the routes, relative to the root of the application."""
    return [
        Route("/api/models", list_models),
        Route("/api/models/{name}", model),
        Route("/api/servings", list_servings),
    ]


def _project_url(request: Request) -> str:
    """Return the URL of the application's project."""
    project: Project = request.app.state.project
    return project.url
