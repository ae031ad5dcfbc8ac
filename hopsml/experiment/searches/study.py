"""Optuna study of a search, for its plots and for analysis with optuna."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hopsml.core import extras
from hopsml.errors import ArgumentError
from hopsml.search.algorithms import random
from hopsml.search.metric import name_of
from hopsml.search.space.parameter import Choice, Integers, Interval, LogIntegers, Parameter
from hopsml.search.space.space import Searchspace

if TYPE_CHECKING:
    import optuna

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
    """Return a plotly figure of a kind in ``PLOTS``; raises ArgumentError for others, or if plotly is missing."""
    optuna = _optuna()
    if kind not in PLOTS:
        raise ArgumentError(f"plot({kind!r}): there is no such plot; there are {', '.join(sorted(PLOTS))}")
    try:
        optuna.visualization.is_available()
        draw = getattr(optuna.visualization, PLOTS[kind])
        takes_name = kind not in ("intermediate_values", "timeline")
        figure = draw(
            study, **({"target_name": name_of(metric)} if takes_name and "target" in options else {}), **options
        )
        return in_any_theme(figure)
    except ImportError as error:
        raise ArgumentError(f"plots need plotly ({error}): {extras.install('search')}") from error


_INK, _GRID = "#727983", "rgba(128,128,128,0.25)"  # readable on white and on black


def in_any_theme(figure: Any) -> Any:
    """Make the background of a plotly figure transparent, its text and lines visible in light and dark themes."""
    clear = "rgba(0,0,0,0)"
    axis = {"gridcolor": _GRID, "zerolinecolor": _GRID, "linecolor": _GRID}
    figure.update_layout(template="none", paper_bgcolor=clear, plot_bgcolor=clear, font={"color": _INK})
    figure.update_xaxes(**axis)
    figure.update_yaxes(**axis)
    return figure


def _optuna() -> Any:
    try:
        return random.optuna()
    except ModuleNotFoundError as error:
        raise ArgumentError(f"studies and plots need optuna: {extras.install('search')}") from error


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
