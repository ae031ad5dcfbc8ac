"""Routes of the code that a job was submitted with, below ``/api/v1/jobs/{job}/code``.

They are for the job's owner, operators and administrators: others see the job, its log and its job file, but no code.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from hopsml.service.browse import files, tables
from hopsml.service.rest import file_answers
from hopsml.service.rest.errors import JsonAnswer
from hopsml.service.rest.job_routes import TheCaller, TheJob, TheJobs, require_role
from hopsml.service.store.accounts import Role

router = APIRouter(prefix="/api/v1")
FILE_CONTENT: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {"application/json": {}, "application/octet-stream": {}},
        "description": "The entries of a folder, or a file.",
    },
    206: {"content": {"application/octet-stream": {}}, "description": "The part of a file that was asked for."},
}
PICTURE: dict[int | str, dict[str, Any]] = {200: {"content": {"image/*": {}}, "description": "The picture."}}
TABLE: dict[int | str, dict[str, Any]] = {200: {"content": {"application/json": {}}, "description": "Its first rows."}}
FilePath = Annotated[str, Path(max_length=4000, description="Path in it.")]


def _root(row: TheJob, jobs: TheJobs, caller: TheCaller) -> str:
    """Return the URL of the folder with a job's code. Raises PermissionRefused, and ServiceError if it was removed."""
    require_role(caller, Role.VIEWER if caller.user == row.owner else Role.OPERATOR)
    return jobs.workspaces.browsable_url(row.workspace)


TheCode = Annotated[str, Depends(_root)]


@router.get("/jobs/{job}/code/files", response_class=Response, responses=FILE_CONTENT)
async def code(request: Request, root: TheCode) -> Response:
    """Return the entries of the folder with a job's code."""
    return await code_file(request, root, "")


@router.get("/jobs/{job}/code/files/{path:path}", response_class=Response, responses=FILE_CONTENT)
async def code_file(request: Request, root: TheCode, path: FilePath) -> Response:
    """Return the entries of a folder of a job's code, or send a file as a download."""
    url = files.path_below(root, path)
    return await file_answers.folder_or_download(request, url, path, await run_in_threadpool(files.entries, url))


@router.get("/jobs/{job}/code/images/{path:path}", response_class=Response, responses=PICTURE)
async def code_image(root: TheCode, path: FilePath) -> Response:
    """Send a picture of a job's code for an image element."""
    return await file_answers.picture(files.path_below(root, path))


@router.get("/jobs/{job}/code/tables/{path:path}", response_class=Response, responses=TABLE)
def code_table(root: TheCode, path: FilePath) -> Response:
    """Return the first rows of a CSV or Parquet file of a job's code."""
    return JsonAnswer(tables.read_first_rows(files.path_below(root, path)))
