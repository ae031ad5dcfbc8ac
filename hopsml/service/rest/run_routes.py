"""Routes of runs for the web page, and the ASGI application of ``hopsml ui``: these routes, behind one token."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.routing import Route

from hopsml.service.browse import compare, files, logs, run_list, tables
from hopsml.service.browse.logs import LogPage, LogQuery
from hopsml.service.browse.metrics import slow_ranks
from hopsml.service.browse.project import Changes, Project
from hopsml.service.rest import file_answers, model_routes, page_files
from hopsml.service.rest.access import TokenMiddleware, single_token_check
from hopsml.service.rest.errors import HANDLERS, JsonAnswer, optional_number, optional_whole_number, whole_number
from hopsml.service.rest.event_stream import Broadcaster, events_route
from hopsml.service.rest.feeds import ProjectFeed
from hopsml.service.rest.threads import DOWNLOADS

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp


STALE_S = 2.0  # seconds after which the list is read again if no listener follows changes
POINTS = 800  # points of a curve, unless the query names another number


async def runs(request: Request) -> Response:
    """Return a page of the list: ``api/runs?filter=&sort=started&order=descending&offset=0&limit=100``."""
    query, index = request.query_params, _project(request).runs
    await run_in_threadpool(index.refresh, STALE_S)
    notes = getattr(request.app.state, "notes", None)  # present in a job service only
    page = await run_in_threadpool(
        index.page,
        noted=await run_in_threadpool(notes.all) if notes is not None else run_list.NOTHING_NOTED,
        text=query.get("filter", ""),
        sort=query.get("sort", "started"),
        descending=query.get("order", "descending") != "ascending",
        offset=whole_number(request, "offset", 0, 0),
        limit=whole_number(request, "limit", 100, 1),
    )
    return JsonAnswer(page)


async def run(request: Request) -> Response:
    """Return the details of a run: ``api/runs/{id}?trial=``."""
    return JsonAnswer(await run_in_threadpool(_project(request).detail, *_named(request)))


async def metrics(request: Request) -> Response:
    """Return curves of a run: ``api/runs/{id}/metrics?tag=loss&tag=accuracy&points=800&trial=``.

    Without a tag, only the list of tags is returned.
    """
    reader = await run_in_threadpool(_project(request).metrics, *_named(request))
    tags, most = request.query_params.getlist("tag"), whole_number(request, "points", POINTS, 2)
    series = await run_in_threadpool(reader.series, tags, most)
    found = [{"tag": tag, "source": source, "count": count} for tag, source, count in reader.tags()]
    return JsonAnswer({"tags": found, "series": series})


async def slow(request: Request) -> Response:
    """Return the workers that others wait for, by their use in the last minute: ``api/runs/{id}/slow``."""
    reader = await run_in_threadpool(_project(request).metrics, *_named(request))
    return JsonAnswer({"marks": slow_ranks(reader.uses())})


async def log_lines(request: Request) -> Response:
    """Return log lines: ``api/runs/{id}/logs?rank=&level=&text=&offset=0&limit=200&find=&from=&backwards=&trial=``.

    A negative ``offset`` counts from the end; ``find`` returns the number of the next line with a text instead of
    lines.
    """
    query = request.query_params
    asked = LogQuery(optional_whole_number(request, "rank"), query.get("level", ""), query.get("text", ""))
    offset, limit = whole_number(request, "offset", 0), whole_number(request, "limit", 200, 0)
    begin, wanted = whole_number(request, "from", 0, 0), query.get("find", "")
    run_id, trial = _named(request)

    def answer() -> LogPage | dict[str, int | None]:
        view = _project(request).logs(run_id, asked, trial)
        if wanted:
            return {"line": view.find(wanted, begin, query.get("backwards", "") == "1")}
        return view.page(offset, limit)

    return JsonAnswer(await run_in_threadpool(answer))


async def log_zip(request: Request) -> Response:
    """Send all logs as a zip, which is created while it is sent: ``api/runs/{id}/logs.zip?trial=``."""
    directory = await run_in_threadpool(_project(request).directory, *_named(request))
    headers = {
        "content-disposition": f"attachment; filename*=UTF-8''{file_answers.quoted(directory.run_id)}-logs.zip",
        "cache-control": "no-store",
    }
    return StreamingResponse(DOWNLOADS.iterate(logs.zip_logs(directory, time.time())), 200, headers, "application/zip")


async def search(request: Request) -> Response:
    """Return the trials of a search: ``api/runs/{id}/search``."""
    return JsonAnswer(await run_in_threadpool(_project(request).search, request.path_params["id"]))


async def listed(request: Request) -> Response:
    """Return the entries of a folder, or send a file as a download: ``api/runs/{id}/files/{path}``."""
    run_id, trial = _named(request)
    path = request.path_params.get("path", "")
    url, entries = await run_in_threadpool(_project(request).files, run_id, path, trial)
    return await file_answers.folder_or_download(request, url, path, entries)


async def image(request: Request) -> Response:
    """Send a picture for an image element; opened as a page it is a download: ``api/runs/{id}/images/{path}``."""
    return await file_answers.picture(await run_in_threadpool(_project(request).file, *_named_file(request)))


async def table(request: Request) -> Response:
    """Return the first rows of a CSV or Parquet file: ``api/runs/{id}/tables/{path}``."""
    url = await run_in_threadpool(_project(request).file, *_named_file(request))
    return JsonAnswer(await run_in_threadpool(tables.read_first_rows, url))


async def profile_list(request: Request) -> Response:
    """Return the stored profiles, and the state of the newest request for one: ``api/runs/{id}/profiles``."""
    directory = await run_in_threadpool(_project(request).directory, request.path_params["id"])
    return JsonAnswer(await run_in_threadpool(files.stored_profiles, directory))


async def profile(request: Request) -> Response:
    """Return a profile as the boxes of a flame graph: ``api/runs/{id}/profiles/{name}``."""
    directory = await run_in_threadpool(_project(request).directory, request.path_params["id"])
    return JsonAnswer(await run_in_threadpool(files.read_flame_graph, directory, request.path_params["name"]))


async def comparison(request: Request) -> Response:
    """Compare runs by their curves of a metric: ``api/compare?run=A&run=B&tag=accuracy&step=&points=``."""
    query = request.query_params
    found = await run_in_threadpool(
        compare.compare_runs,
        _project(request),
        query.getlist("run"),
        query.get("tag", ""),
        optional_number(request, "step"),
        whole_number(request, "points", POINTS, 2),
    )
    return JsonAnswer(found)


async def about(request: Request) -> Response:
    """Return the project, whether the server runs jobs, and the caller: ``api/about``.

    The user and the role are "" if the server has no users.
    """
    project, jobs, caller = _project(request), hasattr(request.app.state, "jobs"), request.state.caller
    role = getattr(caller, "role", None)
    return JsonAnswer(
        {
            "project": project.name,
            "url": project.url,
            "columns": run_list.COLUMNS,
            "jobs": jobs,
            "user": getattr(caller, "user", ""),
            "role": role.name.lower() if role is not None else "",
            "signs_in": getattr(request.app.state, "signs_in", False),
        }
    )


def routes() -> list[Route]:
    """Return all routes of runs, relative to the root of the application."""
    return [
        Route("/api/about", about),
        Route("/api/runs", runs),
        Route("/api/compare", comparison),
        Route("/api/runs/{id}", run),
        Route("/api/runs/{id}/metrics", metrics),
        Route("/api/runs/{id}/slow", slow),
        Route("/api/runs/{id}/logs", log_lines),
        Route("/api/runs/{id}/logs.zip", log_zip),
        Route("/api/runs/{id}/search", search),
        Route("/api/runs/{id}/profiles", profile_list),
        Route("/api/runs/{id}/profiles/{name}", profile),
        Route("/api/runs/{id}/files", listed),
        Route("/api/runs/{id}/files/{path:path}", listed),
        Route("/api/runs/{id}/images/{path:path}", image),
        Route("/api/runs/{id}/tables/{path:path}", table),
    ]


def _project(request: Request) -> Project:
    """Return the project of the application."""
    project: Project = request.app.state.project
    return project


def _named(request: Request) -> tuple[str, str]:
    """Return the run that the path names, and the trial that the query names, "" for none."""
    return request.path_params["id"], request.query_params.get("trial", "")


def _named_file(request: Request) -> tuple[str, str, str]:
    """Return the run, path and trial of a request for a file."""
    run_id, trial = _named(request)
    return run_id, request.path_params["path"], trial


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
        await run_in_threadpool(project.runs.refresh, STALE_S)
        yield
        await told.end()

    listed = [events_route(), *routes(), *model_routes.routes(), *page_files.routes()]
    app = Starlette(routes=listed, exception_handlers=HANDLERS, lifespan=lifespan)
    app.state.project, app.state.broadcaster = project, told
    return TokenMiddleware(app, single_token_check(token), token)
