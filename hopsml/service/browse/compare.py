"""Comparison of up to 200 runs: differences of their settings, curves of one metric, and its values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from hopsml.errors import ArgumentError
from hopsml.search.metric import is_batch_metric, is_misspelt, unknown_metric_hint
from hopsml.service.browse.metrics import CHIEF, Metrics, Series
from hopsml.service.browse.project import Project, convert_type_errors
from hopsml.service.browse.run_list import RunRow, displayed_value, row_of
from hopsml.tracking import catalog
from hopsml.tracking.compare import differences

MOST_RUNS = 200
LONGEST_VALUE = 300  # characters
_NOT_OF_INTEREST = (
    "result",
    "machine",
    "variables",
)  # sections that differ between any two runs, or that the curves display


class Setting(msgspec.Struct, frozen=True):
    """One entry that differs between runs, with its values in the order of the runs; None if a run lacks it."""

    section: str
    name: str
    values: list[Any]


class RunValues(msgspec.Struct, frozen=True):
    """Values of one metric of one run.

    Attributes:
        last: Last value.
        lowest: Lowest value.
        highest: Highest value.
        at_step: Value at the requested step.
    """

    last: float | None
    lowest: float | None
    highest: float | None
    at_step: float | None


class RunComparison(msgspec.Struct, frozen=True):
    """Result of a comparison of runs.

    Attributes:
        runs: Rows of the runs.
        settings: Entries that differ.
        tags: Metrics that any of the runs has reported.
        tag: The metric that is compared.
        curves: Its curves, in the order of the runs; None for a run without it.
        values: Its values, in the order of the runs.
    """

    runs: list[RunRow]
    settings: list[Setting]
    tags: list[str]
    tag: str
    curves: list[Series | None]
    values: list[RunValues]


def compare_runs(
    project: Project, run_ids: Sequence[str], tag: str = "", step: float | None = None, most: int = 1000
) -> RunComparison:
    """Compare runs by their settings and one metric.

    Args:
        project: The project of the runs.
        run_ids: Ids of the runs; duplicates are ignored.
        tag: The metric; if no run has it, the metric that most runs have.
        step: Step at which values are compared; None for no step.
        most: Most points of a curve.

    Raises:
        ArgumentError: There are no or too many runs, the metric is misspelt, or the records of one are malformed.
        PathNotFound: A run does not exist.
    """
    ids = list(dict.fromkeys(run_ids))
    if not 1 <= len(ids) <= MOST_RUNS:
        raise ArgumentError(f"{len(ids)} runs are to be compared: choose 1 to {MOST_RUNS} in the list of runs")
    with ThreadPoolExecutor(catalog.PARALLEL_READS, thread_name_prefix="hopsml-read-run") as pool:
        stored = list(pool.map(lambda one: _read(project, one), ids))
        # The cached data of one run may be dropped for the next: 200 runs need not fit into memory together.
        tags = _tags(pool.map(lambda one: project.metrics(one).tags(), ids))
        if tag not in tags and any(is_misspelt(tag, known) for known in tags):
            raise ArgumentError(f"no run has reported the metric {tag!r:.80} {unknown_metric_hint(tag, tags)}")
        chosen = tag if tag in tags else next(iter(tags), "")
        read = list(pool.map(lambda one: _of_run(project.metrics(one), chosen, step, most), ids))
    return RunComparison(
        runs=[_row(run) for run in stored],
        settings=_settings(stored),
        tags=tags,
        tag=chosen,
        curves=[curve for curve, _ in read],
        values=[values for _, values in read],
    )


def _read(project: Project, run_id: str) -> catalog.StoredRun:
    """Read the records of a run. Raises ArgumentError for malformed ones."""
    with convert_type_errors(run_id):
        return catalog.read(project.directory(run_id))


def _row(run: catalog.StoredRun) -> RunRow:
    """Return the row of a run whose records can be compared with others. Raises ArgumentError for malformed ones."""
    with convert_type_errors(run.run_id):
        differences(run, run)
        return row_of(run)


def _of_run(reader: Metrics, tag: str, step: float | None, most: int) -> tuple[Series | None, RunValues]:
    """Return the curve and the values of one run's metric."""
    curve = next((one for one in reader.series([tag], most) if one.source == CHIEF), None)
    return curve, _values(reader, tag, step)


def _tags(of_runs: Iterable[list[tuple[str, str, int]]]) -> list[str]:
    """Return the metrics that any run has reported, those of most runs first, those within epochs last."""
    counts: dict[str, int] = {}
    for known in of_runs:
        for tag, source, _ in known:
            if source == CHIEF:
                counts[tag] = counts.get(tag, 0) + 1
    return sorted(counts, key=lambda tag: (is_batch_metric(tag), -counts[tag], tag))


def _values(reader: Metrics, tag: str, step: float | None) -> RunValues:
    """Return last, lowest and highest value of a metric, and its value at a step."""
    found = reader.summary(tag)
    at_step = None if step is None else reader.at_step(tag, step)
    return RunValues(None, None, None, at_step) if found is None else RunValues(*found, at_step)


def _settings(stored: Sequence[catalog.StoredRun]) -> list[Setting]:
    """Return the entries in which any run differs from the first one, with the values of all runs."""
    first, others = stored[0], stored[1:]
    known: dict[tuple[str, str], list[Any]] = {}
    for place, other in enumerate(others, 1):
        for found in differences(first, other):
            if found.section in _NOT_OF_INTEREST:
                continue
            values = known.setdefault(
                (found.section, found.name), [displayed_value(found.left, LONGEST_VALUE)] * len(stored)
            )
            values[place] = displayed_value(found.right, LONGEST_VALUE)
    order = list(dict.fromkeys(["arguments", "specification", "run", "code", "inputs", *(key[0] for key in known)]))
    keys = sorted(known, key=lambda key: (order.index(key[0]), key[1]))
    return [Setting(section, name, known[section, name]) for section, name in keys]
