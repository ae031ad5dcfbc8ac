"""Route of the data sets that job files name, below ``/api/v1``."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, Field

from hopsml.core.states import Lifecycle
from hopsml.service.rest.job_routes import TheJobs
from hopsml.service.store import datasets

router = APIRouter(prefix="/api/v1")


class DatasetJobAnswer(BaseModel):
    """A job that names a data set."""

    id: str
    owner: str
    state: Lifecycle
    submitted_s: float


class DatasetAnswer(BaseModel):
    """A data set, with the jobs that name it."""

    url: str
    count: int = Field(description="How many jobs name it.")
    living: int = Field(description="How many of them are not over.")
    jobs: list[DatasetJobAnswer] = Field(description=f"The newest {datasets.SHOWN} of them.")


class DatasetsAnswer(BaseModel):
    """Data sets, the most recently used first."""

    datasets: list[DatasetAnswer]


@router.get("/datasets")
def listed(jobs: TheJobs) -> DatasetsAnswer:
    """Return the data sets that the job files of the newest jobs name."""
    return DatasetsAnswer.model_validate({"datasets": datasets.uses(jobs.store)}, from_attributes=True)
