"""Results of a benchmark: figures, each with a goal, as a Markdown table and as JSON; pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.spread import Spread, paired_ratios, spread_of

GOALS = {
    "step.ratio_n2": 1.02,
    "step.ratio_n4": 1.02,
    "launch.cold_ratio": 0.95,
    "launch.warm_ratio": 0.25,
    "launch.submit_ratio": 0.45,
    "memory.agent_mb": 60.0,
    "memory.fork_server_private_mb": 200.0,
    "memory.coordinator_mb": 100.0,
    "checkpoint.stall_ratio": 1.01,
    "checkpoint.hold_100mb_ms": 20.0,
    "teardown.orphans": 0.0,
    "recovery.worker_ratio": 0.4,
    "recovery.peer_ratio": 0.25,
    "recovery.executor_ratio": 0.6,
    "recovery.grow_s": 1.0,
    "recovery.steps_lost_over_commit": 1.0,
    "commit.hold_100mb_ms": 20.0,
    "scale.form_1024_s": 0.3,
    "scale.heartbeat_core_share": 0.15,
    "collective.gloo_ratio": 1.0,
    "collective.tf_ratio": 0.5,
    "collective.fp16_ratio": 0.6,
    "collective.step_ratio_n2": 0.5,
    "collective.step_ratio_n4": 0.5,
    "collective.cnn_ratio_n2": 0.65,
    "network.fp16_ratio_1gbit": 0.6,
    "network.fp16_ratio_10gbit": 0.6,
    "collective.foreign_peers": 0.0,
    "collective.merge_ratio": 0.8,
    "collective.horovod_ratio": 0.8,
    "collective.model_error": 0.15,
    "collective.auto_ratio": 1.03,
    "collective.reform_s": 0.2,
    "collective.recovery_ratio": 0.06,
    "collective.grow_pause_s": 0.3,
    "torch.step_ratio": 1.02,
    "jax.step_ratio": 1.02,
    "torch.warm_ratio": 0.25,
    "torch.recovery_ratio": 0.25,
    "torch.recovery_torchft_ratio": 0.25,
    "ps.step_ratio": 1.02,
    "ps.recovery_s": 3.0,
    "evaluator.stall_ratio": 1.02,
    "roll.failed_requests": 0.0,
    "data.noop_ratio": 2.0,
    "data.first_batch_s": 1.0,
    "data.parquet_ratio": 0.5,
    "data.stall_share": 0.02,
    "large_batch.lost_points": 0.5,
    "large_batch.resizing_sigma": 1.0,
    "large_batch.lars_error": 1e-5,
    "large_batch.lamb_error": 1e-5,
    "large_batch.optimizer_ratio": 1.5,
    "service.wait_ratio": 1.5,
    "service.longest_ratio": 1.2,
    "service.trace_s": 60.0,
    "service.pass_ms_10k": 200.0,
    "service.recover_s": 5.0,
    "service.list_ms": 200.0,
    "service.compare_ms": 1000.0,
    "service.page_kb": 150.0,
    "service.first_paint_ms": 300.0,
    "service.sampler_core_share": 0.001,
    "service.sampler_step_ratio": 1.002,
    "search.local_ray_ratio": 0.62,
    "search.ray_ratio": 1.0,
    "search.asha_ratio": 0.6,
}  # upper bounds; figures that are neither here nor below are shown for comparison
AT_LEAST = {
    "large_batch.plain_lost_points": 2.0,
    "collective.efficiency_n2": 0.85,
    "collective.hidden_share": 0.9,
    "service.submits_per_s": 100.0,
    "predict.rows_ratio": 1.5,
    "data.tfos_array_ratio": 50.0,
    "data.tfos_wide_ratio": 30.0,
    "data.cache_tf_gb_s": 2.0,
    "data.cache_numpy_gb_s": 3.0,
    "data.plugin_read_ratio": 0.8,
    "data.plugin_write_ratio": 0.8,
    "data.plugin_small_ratio": 0.5,
    "data.secure_write_ratio": 0.9,
    "data.secure_read_ratio": 0.9,
    "serving.throughput_ratio": 1.2,
    "serving.bare_ratio": 0.3,
    "search.utilisation_16": 0.97,
    "search.short_trials_per_s": 19.0,
    "search.forked_trials_per_s": 15.0,
    "search.dispatches_per_s_512": 2000.0,
    **{
        f"search.quality.{searcher}": 0.45
        for searcher in ("random", "sobol", "grid", "differential_evolution", "tpe", "gp", "cmaes")
    },
}


@dataclass(frozen=True)
class Figure:
    """One measured figure: ``value`` (median or worst), the middle half from ``low`` to ``high``, over ``n`` rounds.

    ``peer`` names what it was compared with; ``ratio`` is hopsml's value over the peer's, None without a peer.
    """

    name: str
    value: float
    unit: str
    n: int
    low: float
    high: float
    peer: str = ""
    ratio: float | None = None

    @property
    def goal(self) -> float | None:
        """The largest value allowed, or the smallest if ``is_floor``; None without a goal."""
        return GOALS.get(self.name, AT_LEAST.get(self.name))

    @property
    def is_floor(self) -> bool:
        """True if the goal is a lower bound."""
        return self.name in AT_LEAST

    @property
    def reached(self) -> bool:
        """True if the goal is met, or there is none."""
        if self.goal is None:
            return True
        return self.value >= self.goal if self.is_floor else self.value <= self.goal

    def as_json(self) -> dict[str, Any]:
        """Return all fields except the name."""
        return {
            "value": self.value,
            "unit": self.unit,
            "n": self.n,
            "low": self.low,
            "high": self.high,
            "peer": self.peer,
            "ratio": self.ratio,
        }


def measured(name: str, values: Sequence[float], unit: str, peer: str = "", of_peer: Sequence[float] = ()) -> Figure:
    """Return a figure in ``unit``; with the peer's values of the same rounds, also its ratio to them."""
    spread = spread_of(values)
    ratio = spread_of(paired_ratios(values, of_peer)).median if of_peer else None
    return _figure(name, spread, unit, peer, ratio)


def worst_of(name: str, values: Sequence[float], unit: str) -> Figure:
    """Return a figure whose value is the largest round, for limits that no round may exceed."""
    return replace(measured(name, values, unit), value=max(values))


def ratio_of(name: str, ours: Sequence[float], theirs: Sequence[float], peer: str) -> Figure:
    """Return a figure that is a ratio: the median over the rounds of hopsml's value over the peer's."""
    spread = spread_of(paired_ratios(ours, theirs))
    return _figure(name, spread, "ratio", peer, spread.median)


def _figure(name: str, spread: Spread, unit: str, peer: str, ratio: float | None) -> Figure:
    digits = 3 if unit in ("s", "ratio", "share") else 2
    value, low, high = (round(number, digits) for number in (spread.median, spread.low, spread.high))
    return Figure(name, value, unit, spread.n, low, high, peer, None if ratio is None else round(ratio, 3))


@dataclass
class Report:
    """All figures of a run of the benchmarks, with the notes that explain them."""

    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=dict)

    def add(self, other: Report) -> None:
        """Append the figures and notes of another benchmark."""
        self.figures += other.figures
        self.notes += other.notes

    def note_of(self, who: str) -> Callable[[str], None]:
        """Return a function that adds a note on a failure of ``who``: the first and last line of its message."""

        def note(text: str) -> None:
            lines = text.strip().splitlines() or [""]
            self.notes.append(f"{who} failed: {lines[0][:200]} ... {lines[-1][:200]}")

        return note

    def as_json(self) -> str:
        """Return JSON: ``{"figures": {name: {...}}, "notes": [...], "machine": {...}}``."""
        figures = {figure.name: figure.as_json() for figure in self.figures}
        return json.dumps({"figures": figures, "notes": self.notes, "machine": self.machine}, indent=1) + "\n"

    def table(self) -> str:
        """Return a Markdown table with the notes; figures with a goal come first."""
        return "\n".join([*_table(self.figures), *(f"- {note}" for note in self.notes)])


def _table(figures: Iterable[Figure]) -> list[str]:
    lines = ["| figure | measured | middle half | n | goal | beside |", "|---|---|---|---|---|---|"]
    for figure in sorted(figures, key=lambda figure: figure.goal is None):
        goal = (
            ""
            if figure.goal is None
            else f"{'≥' if figure.is_floor else '≤'} {figure.goal:g} {'reached' if figure.reached else 'MISSED'}"
        )
        beside = figure.peer
        if figure.ratio is not None and figure.unit != "ratio":
            beside = f"{figure.ratio:.2f} × {figure.peer}"
        unit = "" if figure.unit == "ratio" else f" {figure.unit}"
        spread = f"{figure.low:g} to {figure.high:g}"
        lines.append(f"| {figure.name} | {figure.value:g}{unit} | {spread} | {figure.n} | {goal} | {beside} |")
    return lines
