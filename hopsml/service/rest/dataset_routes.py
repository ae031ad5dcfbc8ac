"""Routes of the data sets that job files name, below ``/api/v1/datasets``.

The list is for all. Files of a data set are for users with a job that names it, operators and administrators, and only
below the stores that the administrator has named (``browse/datasets.py``).
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from hopsml.core.states import Lifecycle
from hopsml.errors import ArgumentError, HopsmlError, PathNotFound, PermissionRefused
from hopsml.service.browse import datasets, tables
from hopsml.service.jobs import JobService
from hopsml.service.rest import file_answers
from hopsml.service.rest.code_routes import FILE_CONTENT, PICTURE, TABLE, FilePath
from hopsml.service.rest.errors import JsonAnswer
from hopsml.service.rest.job_routes import TheCaller, TheJobs, require_role
from hopsml.service.store import notes
from hopsml.service.store.accounts import Caller, Role

router = APIRouter(prefix="/api/v1")


class DatasetJobAnswer(BaseModel):
    """A job that names a data set."""

    id: str
    owner: str
    state: Lifecycle
    submitted_s: float
    name: str = Field(description="Name of the data set in the job file; empty for the field ``dataset``.")


class DatasetAnswer(BaseModel):
    """A data set, with the jobs that name it."""

    url: str
    count: int = Field(description="Number of jobs that use it.")
    living: int = Field(description="Number of these jobs that have not ended.")
    jobs: list[DatasetJobAnswer] = Field(description=f"The newest {notes.SHOWN} of them.")


class DatasetsAnswer(BaseModel):
    """Data sets, the most recently used first."""

    datasets: list[DatasetAnswer]


class DatasetSizeAnswer(BaseModel):
    """Size of a data set."""

    files: int
    bytes: int
    is_complete: bool = Field(description="False if it has more files than were counted.")


class DatasetDetailAnswer(DatasetAnswer):
    """A data set with its size, if the caller may look at its files."""

    size: DatasetSizeAnswer | None = Field(description="Null if its files are not shown.")
    why: str = Field(description="Why its files are not shown; empty if they are.")


@router.get("/datasets")
def list_datasets(jobs: TheJobs) -> DatasetsAnswer:
    """Return the data sets that the job files of the newest jobs name."""
    return DatasetsAnswer.model_validate({"datasets": notes.dataset_uses(jobs.store)}, from_attributes=True)


DatasetUrl = Annotated[str, Query(min_length=1, max_length=4000, description="The data set, as a job file names it.")]


@router.get("/datasets/detail")
def dataset(url: DatasetUrl, jobs: TheJobs, caller: TheCaller) -> DatasetDetailAnswer:
    """Return one data set with its newest jobs and its size."""
    use = notes.dataset_use(jobs.store, url)
    if use is None:
        raise _unknown(url)
    size, why = None, ""
    try:
        size = datasets.size(_readable(url, jobs, caller))
    except HopsmlError as error:  # the jobs are shown in any case
        why = str(error)
    told = DatasetAnswer.model_validate(use, from_attributes=True).model_dump()
    shown = None if size is None else DatasetSizeAnswer.model_validate(size, from_attributes=True)
    return DatasetDetailAnswer(**told, size=shown, why=why)


def _unknown(url: str) -> PathNotFound:
    """Return the error for a data set that no job names."""
    return PathNotFound(f"no job names the data set {url[:200]}; the list of data sets has those that jobs name")


def _readable(url: str, jobs: JobService, caller: Caller) -> str:
    """Return the URL under which the server reads a data set for a caller.

    Raises:
        PathNotFound: No job names it.
        PermissionRefused: The caller may not look at its files.
    """
    require_role(caller, Role.USER)
    own = caller.user if caller.role < Role.OPERATOR else None
    if notes.dataset_use(jobs.store, url, own) is None:
        if own is None or notes.dataset_use(jobs.store, url) is None:
            raise _unknown(url)
        raise PermissionRefused(
            f"no job of {caller.user} names the data set {url[:200]}; its files are shown to users whose jobs use it, to "
            "operators and to administrators"
        )
    return datasets.readable_url(url, jobs.dataset_stores)


def _root(url: DatasetUrl, jobs: TheJobs, caller: TheCaller) -> str:
    """Return the URL of the data set that the query names, if the caller may look at its files."""
    return _readable(url, jobs, caller)


TheDataset = Annotated[str, Depends(_root)]


@router.get("/datasets/files", response_class=Response, responses=FILE_CONTENT)
async def dataset_files(request: Request, root: TheDataset) -> Response:
    """Return the files of a data set."""
    return await dataset_file(request, root, "")


@router.get("/datasets/files/{path:path}", response_class=Response, responses=FILE_CONTENT)
async def dataset_file(request: Request, root: TheDataset, path: FilePath) -> Response:
    """Return the entries of a folder of a data set, or send a file as a download."""
    url, entries = await run_in_threadpool(datasets.located, root, path)
    if not path:
        return JsonAnswer({"path": "", "entries": entries})
    return await file_answers.folder_or_download(request, url, path, entries)


@router.get("/datasets/images/{path:path}", response_class=Response, responses=PICTURE)
async def dataset_image(root: TheDataset, path: FilePath) -> Response:
    """Send a picture of a data set for an image element."""
    return await file_answers.picture((await run_in_threadpool(datasets.located, root, _named(path)))[0])


@router.get("/datasets/tables/{path:path}", response_class=Response, responses=TABLE)
def dataset_table(root: TheDataset, path: FilePath) -> Response:
    """Return the schema and the first rows of a CSV or Parquet file of a data set."""
    return JsonAnswer(tables.read_first_rows(datasets.located(root, _named(path))[0]))


def _named(path: str) -> str:
    """Return the path of a file. Raises ArgumentError if there is none."""
    if not path.strip("/"):
        raise ArgumentError("the address names no file; take one from the list of the data set's files")
    return path
