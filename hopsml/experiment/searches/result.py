"""Results of a search: the best trial, all trials as a table, plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hopsml.cluster.driver import remedies
from hopsml.cluster.shared.plain import as_json
from hopsml.experiment.searches import study, table
from hopsml.search.space.space import Searchspace
from hopsml.storage import urls
from hopsml.tracking import strict_json

if TYPE_CHECKING:
    import optuna


@dataclass(frozen=True)
class BestTrial:
    """Best of the trials that have ended; ``metrics``: its function's outputs, with its log's URL."""

    number: int
    trial_id: str
    config: dict[str, Any]
    value: float
    step: int | None
    metrics: dict[str, Any] = field(repr=False)
    run_dir: str  # URL of its folder

    @property
    def logdir(self) -> str:
        """URL of the TensorBoard events of the trial."""
        return urls.join(self.run_dir, "events")


class SearchResult(tuple[str, dict[str, Any], dict[str, Any]]):
    """Outcome of a search; unpacks as the predecessor's: ``best_dir, best_config, best_outputs = result``.

    Attributes:
        best: the best trial.
        rows: the table of all trials, as a list of dicts.
        curves: step and value of each trial's reports, by number.
        space: the search space.
        run_id: id of the search.
        run_dir: URL of its run directory.
        name: name of the search.
        reason: why it ended: complete, deadline or budget.
        state: final state of the search.
        counts: numbers of trials by how they ended.
        seconds: duration of the search.
        direction: "max" or "min".
        metric: key of the searched metric.
        unrecorded: records that could not be written to storage, each with the reason; usually empty.
    """

    best: BestTrial
    rows: list[dict[str, Any]]
    curves: dict[int, list[tuple[int, float]]]
    space: Searchspace | None
    run_id: str
    run_dir: str
    name: str
    reason: str
    state: str
    counts: dict[str, int]
    seconds: float
    direction: str
    metric: str
    unrecorded: dict[str, str]

    def __new__(cls, best: BestTrial, **facts: Any) -> SearchResult:
        """Create a result; ``facts`` become its other attributes."""
        self = super().__new__(cls, (best.run_dir, best.config, best.metrics))
        self.best, self.unrecorded = best, {}
        for name, value in facts.items():
            setattr(self, name, value)
        return self

    @property
    def config(self) -> dict[str, Any]:
        """Configuration of the best trial, by the names of the parameters."""
        return self.best.config

    @property
    def metrics(self) -> dict[str, Any]:
        """Outputs of the best trial's function, with its log's URL."""
        return self.best.metrics

    @property
    def value(self) -> float:
        """Best value of the searched metric, that of ``best``."""
        return self.best.value

    @property
    def logdir(self) -> str:
        """URL below which TensorBoard finds the events of all trials."""
        return urls.parent(self.best.run_dir)

    @cached_property
    def trials(self) -> Any:
        """All trials as a pandas frame: number, state, value, step, seconds, ``params_*``, ``metrics_*``, others."""
        return table.frame(self.rows)

    @cached_property
    def study(self) -> optuna.Study:
        """All trials as an in-memory optuna study. Raises ArgumentError if optuna is missing."""
        return study.study_of(self.rows, self.curves, self.space, self.direction, self.run_id)

    def plot(self, kind: str = "optimization_history", **options: Any) -> Any:
        """Return a plotly figure of the trials, made by optuna.

        Args:
            kind: optimization_history, parallel_coordinates, param_importances, slice, contour, intermediate_values,
                edf, rank or timeline.
            **options: arguments of optuna's function, such as ``params=["lr"]``.
        """
        return study.plot(self.study, kind, self.metric, **options)

    def json(self, **more: Any) -> str:
        """Return one line of JSON for scripts: best value, configuration, counts, run directory, given entries."""
        content = {
            "best_value": self.value,
            "best_config": self.config,
            "best_trial": self.best.trial_id,
            "counts": self.counts,
            "reason": self.reason,
            "seconds": self.seconds,
            "run_id": self.run_id,
            "run_dir": self.run_dir,
            "state": self.state,
            **more,
        }
        return strict_json.dumps(as_json(content), ascii_only=True)

    def __repr__(self) -> str:
        done = ", ".join(f"{count} {name}" for name, count in self.counts.items() if count)
        return f"SearchResult(run_id={self.run_id!r}, value={self.value!r}, config={self.config!r}, trials: {done})"


def best_trial(row: Mapping[str, Any], run_url: str, folder: str, metric: str) -> BestTrial:
    """Return the best trial from its row of the table; ``folder``: the trial's, below the run directory."""
    url = urls.join(run_url, folder)
    return BestTrial(
        number=row["number"],
        trial_id=row["trial_id"],
        config=dict(row["config"]),
        value=row["value"],
        step=row["step"],
        metrics={**table.outputs_of(row, metric), "log": urls.join(url, "output.log")},
        run_dir=url,
    )


def first_errors(rows: Sequence[Mapping[str, Any]], count: int = 3) -> str:
    """Return the errors of the first failed trials, for an error message."""
    failed = [row for row in rows if row["error"]]
    lines = [f"  trial {row['number']} ({row['config']}): {row['error']}" for row in failed[:count]]
    more = f"\n  and {len(failed) - count} more" if len(failed) > count else ""
    return "\n".join(lines) + more


def remedy_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the remedy for the first error that has a known one; "" if there is none."""
    said = (remedies.remedy(str(row["error"]), "", "the workers' machines") for row in rows if row["error"])
    return next((f"Remedy: {remedy}" for remedy in said if remedy), "")
