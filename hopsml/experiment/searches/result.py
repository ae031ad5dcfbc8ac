"""Results of a search: the best trial, all trials as a table (Parquet, pandas), plots and analysis by optuna."""

from __future__ import annotations

import io
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hopsml.cluster.driver import run_texts
from hopsml.cluster.shared.plain import as_json
from hopsml.core import extras, redact
from hopsml.errors import ArgumentError
from hopsml.experiment.ending import unrecorded_text
from hopsml.notebook import html, view
from hopsml.search.algorithms import random
from hopsml.search.metric import METRIC, differing_reports, name_of
from hopsml.search.space.parameter import Choice, Integers, Interval, LogIntegers, Parameter
from hopsml.search.space.space import Searchspace
from hopsml.storage import urls
from hopsml.tracking import listing

if TYPE_CHECKING:
    import optuna


PARAMS, METRICS = "params_", "metrics_"
_FIRST = (
    "number", "trial_id", "state", "value", "step", "seconds", "attempts", "failures", "lost", "parent", "error",
)  # fmt: skip


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return columns by name: facts of each trial, ``params_<name>``, ``metrics_<name>`` of its outputs.

    A column holds numbers, Booleans or texts of one kind; columns of several kinds, lists and dicts are converted to
    text.
    """
    params = _names(row["config"] for row in rows)
    metrics = _names(row["outputs"] for row in rows if isinstance(row.get("outputs"), dict))
    metrics = [name for name in metrics if name != "log"]
    table: dict[str, list[Any]] = {name: [row.get(name) for row in rows] for name in _FIRST}
    table |= {PARAMS + name: _uniform([row["config"].get(name) for row in rows]) for name in params}
    for name in metrics:
        table[METRICS + name] = _uniform([_output(row, name) for row in rows])
    return table


def rows_as_parquet(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the bytes of a Parquet file with the table."""
    import pyarrow
    import pyarrow.parquet

    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns(rows)), sink)
    return sink.getvalue()


def rows_as_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return the table as a pandas ``DataFrame``; imports pandas."""
    import pandas

    return pandas.DataFrame(columns(rows))


def outputs_of(row: Mapping[str, Any], metric: str) -> dict[str, Any]:
    """Return a trial's outputs as the dict that the predecessor returned, in which a number is called "metric".

    For a trial that has returned nothing, as a stopped one, it has the last reported value of ``metric``.
    """
    outputs = row.get("outputs")
    if outputs is None:
        return {name_of(metric): row["value"]}
    return dict(outputs) if isinstance(outputs, dict) else {METRIC: outputs}


def search_summary(rows: Iterable[Mapping[str, Any]], metric: str) -> dict[str, Any]:
    """Return the predecessor's ``.summary.json``: every combination that has ended, with its outputs."""
    return {
        "combinations": [
            {"parameters": as_json(row["config"]), "outputs": as_json(outputs_of(row, metric))}
            for row in rows
            if row["state"] in ("completed", "stopped", "failed")
        ]
    }


def _output(row: Mapping[str, Any], name: str) -> Any:
    outputs = row.get("outputs")
    return outputs.get(name) if isinstance(outputs, dict) else None


def _names(dicts: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(str(name) for one in dicts for name in one))


def _uniform(values: list[Any]) -> list[Any]:
    plain = [as_json(value) for value in values]
    kinds = {type(value) for value in plain if value is not None}
    if kinds <= {int, float}:
        return [float(value) if value is not None and float in kinds else value for value in plain]
    if len(kinds) == 1 and kinds <= {bool, str}:
        return plain
    return [value if value is None or isinstance(value, str) else json.dumps(value) for value in plain]


PLOTS = {
    "contour": "plot_contour",
    "edf": "plot_edf",
    "intermediate_values": "plot_intermediate_values",
    "optimization_history": "plot_optimization_history",
    "parallel_coordinate": "plot_parallel_coordinate",
    "parallel_coordinates": "plot_parallel_coordinate",
    "param_importances": "plot_param_importances",
    "rank": "plot_rank",
    "slice": "plot_slice",
    "timeline": "plot_timeline",
}


def study_of(
    rows: Sequence[Mapping[str, Any]],
    curves: Mapping[int, Sequence[tuple[int, float]]],
    space: Searchspace | None,
    direction: str,
    name: str,
) -> optuna.Study:
    """Return an in-memory optuna study with every trial that has ended, and with the values that it reported.

    A stopped trial that reached the last step of all trials counts as complete: stoppers also end trials with good
    values at their last step.
    """
    optuna = _optuna()
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(direction="maximize" if direction == "max" else "minimize", study_name=name)
    finally:
        optuna.logging.set_verbosity(verbosity)
    known = space.parameters if space is not None else {}
    seen = _values(rows)
    last = max((step for curve in curves.values() for step, _ in curve), default=0)
    for row in rows:
        if row["state"] in ("completed", "stopped", "failed"):
            study.add_trial(_trial(optuna, row, curves.get(row["number"], ()), known, seen, last))
    return study  # type: ignore[no-any-return] # optuna is loaded where it is used


def plot(study: optuna.Study, kind: str, metric: str, **options: Any) -> Any:
    """Return a plotly figure of a kind in ``PLOTS``; raises ArgumentError for others, or if plotly is missing.

    ``metric`` names the values of the option ``target``; ``options`` are those of optuna's plot function.
    """
    optuna = _optuna()
    if kind not in PLOTS:
        raise ArgumentError(f"plot({kind!r}): there is no such plot; the plots are {', '.join(sorted(PLOTS))}")
    try:
        optuna.visualization.is_available()
        draw = getattr(optuna.visualization, PLOTS[kind])
        takes_name = kind not in ("intermediate_values", "timeline")
        figure = draw(
            study, **({"target_name": name_of(metric)} if takes_name and "target" in options else {}), **options
        )
        return make_transparent(figure)
    except ImportError as error:
        raise ArgumentError(f"plots need plotly ({error}): {extras.install_command('search')}") from error


_INK, _GRID = "#727983", "rgba(128,128,128,0.25)"  # readable on white and on black


def make_transparent(figure: Any) -> Any:
    """Make the background of a plotly figure transparent, its text and lines visible in light and dark themes."""
    clear = "rgba(0,0,0,0)"
    axis = {"gridcolor": _GRID, "zerolinecolor": _GRID, "linecolor": _GRID}
    figure.update_layout(template="none", paper_bgcolor=clear, plot_bgcolor=clear, font={"color": _INK})
    figure.update_xaxes(**axis)
    figure.update_yaxes(**axis)
    return figure


def _optuna() -> Any:
    try:
        return random.import_optuna()
    except ModuleNotFoundError as error:
        raise ArgumentError(f"studies and plots need optuna: {extras.install_command('search')}") from error


def _trial(
    optuna: Any,
    row: Mapping[str, Any],
    curve: Sequence[tuple[int, float]],
    known: Mapping[str, Parameter],
    seen: Mapping[str, list[Any]],
    last: int,
) -> Any:
    states = {
        "completed": optuna.trial.TrialState.COMPLETE,
        "stopped": optuna.trial.TrialState.PRUNED,
        "failed": optuna.trial.TrialState.FAIL,
    }
    state = states[row["state"]]
    if state == optuna.trial.TrialState.PRUNED and any(step == last for step, _ in curve):
        state = optuna.trial.TrialState.COMPLETE
    if state == optuna.trial.TrialState.COMPLETE and row["value"] is None:
        state = optuna.trial.TrialState.FAIL
    config = {str(name): _label(known.get(name), value) for name, value in row["config"].items()}
    return optuna.trial.create_trial(
        state=state,
        value=row["value"] if state != optuna.trial.TrialState.FAIL else None,
        params=config,
        distributions={name: _distribution(optuna, known.get(name), seen[name]) for name in config},
        intermediate_values={int(step): float(value) for step, value in curve if math.isfinite(value)},
        user_attrs={"number": row["number"], "trial_id": row["trial_id"], "error": row["error"] or ""},
    )


def _values(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    seen: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row["config"].items():
            seen.setdefault(str(name), []).append(value)
    return seen


def _distribution(optuna: Any, parameter: Parameter | None, seen: Sequence[Any]) -> Any:
    """Return a parameter's distribution in the space; for others (Maggy's ``budget``), one of the tried values."""
    kinds = optuna.distributions
    match parameter:
        case Integers():
            return kinds.IntDistribution(parameter.low, parameter.high, log=isinstance(parameter, LogIntegers))
        case Interval():
            return kinds.FloatDistribution(parameter.low, parameter.high, log=parameter.logarithmic)
        case Choice():
            return kinds.CategoricalDistribution(tuple(dict.fromkeys(_label(parameter, v) for v in parameter.values)))
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in seen):
        return kinds.FloatDistribution(float(min(seen)), float(max(seen)))
    return kinds.CategoricalDistribution(tuple(dict.fromkeys(_label(None, value) for value in seen)))


def _label(parameter: Parameter | None, value: Any) -> Any:
    """Return a value as optuna's category: text, number, Boolean or None; anything else by its name or ``repr``."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    name = getattr(value, "__qualname__", None)
    return repr(value) if name is None else str(name)


@dataclass(frozen=True)
class BestTrial:
    """Best of the trials that have ended; ``metrics``: its function's outputs."""

    number: int
    trial_id: str
    config: dict[str, Any]
    value: float
    step: int | None
    metrics: dict[str, Any] = field(repr=False)
    run_dir: str  # URL of its folder

    @property
    def logdir(self) -> str:
        """URL of the files that the trial wrote to ``tensorboard.logdir()``, among them its TensorBoard events."""
        return urls.join(self.run_dir, "events")

    @property
    def log(self) -> str:
        """URL of what the trial has printed."""
        return urls.join(self.run_dir, "output.log")


class SearchResult(tuple[str, dict[str, Any], dict[str, Any]]):
    """Outcome of a search; unpacks as the predecessor's: ``best_dir, best_config, best_outputs = result``.

    ``best_dir`` has the files that the best trial wrote to its ``tensorboard.logdir()``: ``best_dir + "/model"``.

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
        notes: hints on how trials ended, such as that none has completed, and on returned values that differ from the
            last reports of their trials.
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
    notes: list[str]
    unrecorded: dict[str, str]

    def __new__(cls, best: BestTrial, **facts: Any) -> SearchResult:
        """Create a result; ``facts`` become its other attributes."""
        self = super().__new__(cls, (best.logdir, best.config, {**best.metrics, "log": best.log}))
        self.best, self.unrecorded, self.notes, self.curves = best, {}, [], {}
        for name, value in facts.items():
            setattr(self, name, value)
        self.notes = [*self.notes, *differing_trials(self.rows, self.curves, self.metric)]
        return self

    @property
    def config(self) -> dict[str, Any]:
        """Configuration of the best trial, by the names of the parameters."""
        return self.best.config

    @property
    def metrics(self) -> dict[str, Any]:
        """Outputs of the best trial's function."""
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
        return rows_as_frame(self.rows)

    @cached_property
    def study(self) -> optuna.Study:
        """All trials as an in-memory optuna study. Raises ArgumentError if optuna is missing."""
        return study_of(self.rows, self.curves, self.space, self.direction, self.run_id)

    def plot(self, kind: str = "optimization_history", **options: Any) -> Any:
        """Return a plotly figure of the trials, made by optuna.

        Args:
            kind: optimization_history, parallel_coordinates, param_importances, slice, contour, intermediate_values,
                edf, rank or timeline.
            **options: arguments of optuna's function, such as ``params=["lr"]``.
        """
        return plot(self.study, kind, self.metric, **options)

    def summary(self) -> str:
        """Return a summary for people: state, trials by state, best trial, errors by cause, notes, run directory.

        The last line is that of ``json``, so that a script can read it.
        """
        return "\n".join(
            [*listing.format_labelled([*self._warnings(), *self._facts(), *self._best(), *self._paths()]), self.json()]
        )

    def _warnings(self) -> list[tuple[str, str]]:
        return [("WARNING", unrecorded_text(self.unrecorded))] if self.unrecorded else []

    def _facts(self) -> list[tuple[str, str]]:
        """Return names and texts of state, counts and errors."""
        counts = ", ".join(f"{count} {name}" for name, count in self.counts.items() if count)
        why = "" if self.reason in ("", "complete") else f", ended by its {self.reason}"
        return [
            ("state", f"{self.state} after {self.seconds:.1f} s{why}"),
            ("trials", f"{len(self.rows)}: {counts}" if counts else str(len(self.rows))),
            *(("error", text) for text in errors_by_cause(self.rows)),
        ]

    def _best(self) -> list[tuple[str, str]]:
        """Return names and texts of the best trial's value, configuration and outputs."""
        metric, best = name_of(self.metric, self.best.metrics), self.best
        step = f", last report at step {best.step}" if best.step is not None else ""
        goal = "highest" if self.direction == "max" else "lowest"
        return [
            ("best trial", f"{best.number} ({best.trial_id}){step}"),
            (f"  {metric}", f"{listing.value_text(best.value)} ({goal})"),
            *((f"  {name}", listing.value_text(value)) for name, value in best.config.items()),
            *(
                (name, listing.value_text(value))
                for name, value in redact.arguments(best.metrics).items()
                if name not in (metric, "log")
            ),
            *(("note", note) for note in self.notes),
        ]

    def _paths(self) -> list[tuple[str, str]]:
        return [("run directory", self.run_dir), ("  best trial", self.best.run_dir), ("  events", self.logdir)]

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
        return listing.json_line(as_json(content), ascii_only=True)

    def _repr_html_(self) -> str:
        """Return the result as HTML, which a notebook shows if it is the value of a cell."""
        found = view.search_result_view(
            self.name,
            self.run_id,
            self.seconds,
            best=(self.config, redact.arguments(self.metrics)),
            trials=self.rows,
            metric=name_of(self.metric),
            direction=self.direction,
            facts=self._facts(),
            notes=[*(text for _, text in self._warnings()), *self.notes],
            paths=tuple((name.strip(), url) for name, url in self._paths()),
        )
        return html.render_result(found)

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
        metrics=outputs_of(row, metric),
        run_dir=url,
    )


_ERRORS = 3  # causes of errors in a summary


def errors_by_cause(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the errors of trials, the most frequent first, each with the number of its trials."""
    found = Counter(listing.short_text(str(row["error"]), 200) for row in rows if row.get("error"))
    texts = [f"{count} trial{'' if count == 1 else 's'}: {error}" for error, count in found.most_common(_ERRORS)]
    rest = sum(found.values()) - sum(count for _, count in found.most_common(_ERRORS))
    return [*texts, f"{rest} more with other errors"] if rest else texts


def differing_trials(
    rows: Sequence[Mapping[str, Any]], curves: Mapping[int, Sequence[tuple[int, float]]], metric: str
) -> list[str]:
    """Return a note on completed trials whose returned value differs from their last report; empty if there are none."""
    found = []
    for row in rows:
        if row["state"] == "completed" and (curve := curves.get(row["number"])):
            name = name_of(metric)
            if text := differing_reports({name: row["value"]}, {name: curve[-1][1]}):
                found.append(f"trial {row['number']}: {text}")
    others = len(found) - 1
    more = f" (as of {others} other trial{'s' * (others > 1)})" if others > 0 else ""
    return [found[0] + more] if found else []


def first_errors(rows: Sequence[Mapping[str, Any]], count: int = 3, told: str = "") -> str:
    """Return the errors of the first failed trials, for an error message whose first line is ``told``."""
    failed = [row for row in rows if row["error"]]
    lines = [
        f"  trial {row['number']} ({row['config']}): {'this error' if row['error'] in told else row['error']}"
        for row in failed[:count]
    ]
    more = f"\n  and {len(failed) - count} more" if len(failed) > count else ""
    return "\n".join(lines) + more


def remedy_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the remedy for the first error that has a known one; "" if there is none."""
    remedies = (run_texts.remedy(str(row["error"]), "", "the workers' machines") for row in rows if row["error"])
    return next((f"Remedy: {remedy}" for remedy in remedies if remedy), "")
