"""The verbs a user calls; each one is a plan over the same agents.

    collective_all_reduce(train, num_workers=4)      one group, synchronous data-parallel training
    launch(train, {"lr": [0.1, 0.01]})               one worker for each combination
    search(train, space, num_trials=64)              the best of many configurations, on all executors at once
    grid_search, random_search, differential_evolution            the predecessor's searches
    rerun(run)                                       once more, and whether the same came of it
    resume(run)                                      go on with a run that has not finished
    with recorded("etl") as run: ...                 what the driver does itself

They block and return a ``Result``; ``submit`` and ``submit_search`` give a handle instead, and every blocking verb is
``submit(...).result()``. ``shutdown`` gives everything back before the program's end.
"""

from __future__ import annotations

from hopsml.experiment.applications import shutdown
from hopsml.experiment.collective import collective_all_reduce, submit
from hopsml.experiment.launch import launch
from hopsml.experiment.older_names import begin, end, horovod, instead_of
from hopsml.experiment.predecessor import (
    Direction,
    differential_evolution,
    evolutionary_search,
    grid_search,
    random_search,
)
from hopsml.experiment.recorded import Recorded, recorded
from hopsml.experiment.repeat import Rerun, rerun, resume
from hopsml.experiment.result import Result
from hopsml.experiment.run import Run
from hopsml.experiment.search import continue_search, search, submit_search
from hopsml.experiment.searches.handle import SearchRun
from hopsml.experiment.searches.result import SearchResult
from hopsml.search.space.space import Searchspace

__all__ = [
    "Direction",
    "Recorded",
    "Rerun",
    "Result",
    "Run",
    "SearchResult",
    "SearchRun",
    "Searchspace",
    "begin",
    "collective_all_reduce",
    "continue_search",
    "differential_evolution",
    "end",
    "evolutionary_search",
    "grid_search",
    "horovod",
    "launch",
    "random_search",
    "recorded",
    "rerun",
    "resume",
    "search",
    "shutdown",
    "submit",
    "submit_search",
]


def __getattr__(name: str) -> object:
    raise instead_of(name, __all__)
