"""Public verbs: functions that start trainings, searches and evaluations on the executors of one application.

    collective_all_reduce(train, num_workers=4)      one group, synchronous data-parallel training
    parameter_server(train, num_workers=4, num_ps=2) a chief, workers, and servers that hold the variables
    mirrored(train)                                  one worker with all GPUs of its executor
    launch(train, {"lr": [0.1, 0.01]})               one worker for each combination
    torch(train, ...), jax(train, ...)               the same group for other frameworks
    distributed(train, ...)                          and for any: ranks, addresses, functions to exchange values
    search(train, space, num_trials=64)              the best of many configurations, on all executors at once
    grid_search, random_search, differential_evolution            the predecessor's searches
    evaluate(function, run)                          each checkpoint of a run, during its training or afterwards
    rerun(run)                                       repeat a recorded run and compare the results
    resume(run)                                      continue a run that has not finished
    tune_communication(train)                        the fastest way to reduce its gradients, for runs with tuned=True
    with recorded("etl") as run: ...                 record work of the driver itself
    spark()                                          the session whose DataFrames a training can use: data={"rows": df}

They block and return a ``Result``. ``torch.submit(train, ...)``, likewise ``submit`` of ``collective_all_reduce``,
``jax``, ``distributed``, ``parameter_server`` and ``mirrored``, ``submit`` (that of ``collective_all_reduce``),
``submit_search`` and ``submit_evaluation`` return a handle instead. ``shutdown`` releases all slots before the program
ends.
"""

from __future__ import annotations

from hopsml.core import refused_names
from hopsml.experiment.applications import shutdown, spark
from hopsml.experiment.collective import (
    collective_all_reduce,
    distributed,
    jax,
    mirrored,
    parameter_server,
    submit,
    torch,
)
from hopsml.experiment.evaluations import continue_evaluation, evaluate, submit_evaluation
from hopsml.experiment.launch import launch
from hopsml.experiment.predecessor import (
    Direction,
    begin,
    differential_evolution,
    end,
    evolutionary_search,
    grid_search,
    horovod,
    random_search,
)
from hopsml.experiment.recorded import Recorded, recorded
from hopsml.experiment.repeat import Rerun, rerun, resume
from hopsml.experiment.result import Result
from hopsml.experiment.run import Run
from hopsml.experiment.search import continue_search, search, submit_search
from hopsml.experiment.searches.handle import SearchRun
from hopsml.experiment.searches.result import SearchResult
from hopsml.experiment.tuning import Tuning, tune_communication
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
    "Tuning",
    "begin",
    "collective_all_reduce",
    "continue_evaluation",
    "continue_search",
    "differential_evolution",
    "distributed",
    "end",
    "evaluate",
    "evolutionary_search",
    "grid_search",
    "horovod",
    "jax",
    "launch",
    "mirrored",
    "parameter_server",
    "random_search",
    "recorded",
    "rerun",
    "resume",
    "search",
    "shutdown",
    "spark",
    "submit",
    "submit_evaluation",
    "submit_search",
    "torch",
    "tune_communication",
]


def __getattr__(name: str) -> object:
    raise refused_names.missing_attribute_error(__name__, name, __all__)


def __dir__() -> list[str]:
    return list(__all__)
