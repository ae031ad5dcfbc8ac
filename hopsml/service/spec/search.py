"""Search block of a job: many trainings of one task's function, as ``hopsml.experiment.search`` runs them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, JsonValue, model_validator

from hopsml.errors import ArgumentError
from hopsml.search.space.space import Searchspace, check_filled
from hopsml.service.spec import limits
from hopsml.service.spec.fields import Duration, Name, SpecPart

SearcherName = Literal[
    "random", "grid", "differential_evolution", "tpe", "gp", "cmaes", "bohb", "asha", "hyperband", "none"
]  # fmt: skip
StopperName = Literal["none", "median", "asha", "hyperband", "pbt", "pb2"]


class Search(SpecPart):
    """Arguments of ``hopsml.experiment.search`` by the same names; ``task`` is the task whose function is tried."""

    space: dict[str, JsonValue] = Field(
        min_length=1,
        max_length=limits.PARAMETERS,
        description="Hyper-parameters by name: [low, high], [low, high, log], or [TYPE, region] and [TYPE, region, when] "
        "with the types of Searchspace: DOUBLE, INTEGER, LOGUNIFORM, LOGINTEGER, DISCRETE, CATEGORICAL.",
        examples=[{"lr": [0.0001, 0.1, "log"], "act": ["CATEGORICAL", ["relu", "gelu"]]}],
    )
    searcher: SearcherName = Field(
        default="tpe", description="Algorithm that proposes configurations.", examples=["random"]
    )
    searcher_args: dict[str, JsonValue] = Field(
        default={}, description="Arguments of the searcher, by name.", examples=[{"points": 5}]
    )
    stopper: StopperName = Field(
        default="none", description="Algorithm that ends trials early by their reports.", examples=["asha"]
    )
    stopper_args: dict[str, JsonValue] = Field(
        default={}, description="Arguments of the stopper, by name.", examples=[{"reduction_factor": 3}]
    )
    num_trials: int = Field(default=64, ge=1, le=limits.TRIALS, description="Number of configurations.", examples=[20])
    metric: str | None = Field(
        default=None,
        min_length=1,
        description="Key of the metric in results and reports; not needed for a single number.",
        examples=["accuracy"],
    )
    direction: Literal["max", "min"] = Field(
        default="max", description="Direction of better metrics.", examples=["max"]
    )
    deadline_s: Duration | None = Field(
        default=None,
        alias="deadline",
        description="Time after its start at which the search ends with its results so far.",
        examples=["8h"],
    )
    seed: int | None = Field(
        default=None, ge=0, lt=1 << 32, description="Seed of the searcher and the trials.", examples=[7]
    )
    task: Name | None = Field(
        default=None,
        description="Task whose function is tried; not needed if only one task has a function.",
        examples=["train"],
    )

    @model_validator(mode="after")
    def _space_can_be_searched(self) -> Self:
        """Raise ValueError if the search space is invalid or has too many nested values."""
        for name, given in self.space.items():
            nested = sum(isinstance(value, list | dict) for part in _parts(given) for value in part)
            if nested > limits.NESTED_VALUES:
                raise ValueError(
                    f"space: {name:.64} has {nested} lists or tables as values, and a parameter at most "
                    f"{limits.NESTED_VALUES}: give them names, and look these up in the function"
                )
        try:
            check_filled(searchspace(self.space))
        except ArgumentError as error:
            raise ValueError(f"space: {error}") from None
        return self


def _parts(given: JsonValue) -> list[list[JsonValue]]:
    """Return the lists of values in a parameter's definition: its region, and those of its conditions."""
    words = given if isinstance(given, list) else []
    regions = [*words, *(values for word in words if isinstance(word, dict) for values in word.values())]
    return [region for region in regions if isinstance(region, list)]


def searchspace(space: Mapping[str, Any]) -> Searchspace:
    """Return the Searchspace of a search block's ``space``. Raises ArgumentError (BoundsError) as Searchspace does."""
    return Searchspace(**{name: _typed(given) for name, given in space.items()})


def _typed(given: Any) -> Any:
    """Add the type to ``[low, high]`` and ``[low, high, log]``: an integer type for two integers."""
    if not isinstance(given, list) or not 2 <= len(given) <= 3 or given[2:] not in ([], ["log"]):
        return given
    low, high = given[:2]
    if not _is_number(low) or not _is_number(high):
        return given
    whole, logarithmic = isinstance(low, int) and isinstance(high, int), len(given) == 3
    kind = ("LOGINTEGER" if whole else "LOGUNIFORM") if logarithmic else ("INTEGER" if whole else "DOUBLE")
    return kind, [low, high]


def _is_number(value: object) -> bool:
    """Return True for numbers other than Booleans."""
    return isinstance(value, int | float) and not isinstance(value, bool)
