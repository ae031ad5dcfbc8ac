"""Outcome of a run: value for the program, contents of the run directory, and summaries as text and as JSON."""

from __future__ import annotations

import json
from typing import Any

from hopsml.cluster.shared.plain import as_json
from hopsml.errors import StorageError
from hopsml.experiment import last_records, training_summary
from hopsml.storage import filesystem, urls
from hopsml.storage.run_dir import RunDir, step_of
from hopsml.tracking import strict_json

_RECORDS = ("status.json", ".outputs.json")


class Result(tuple[str, Any]):
    """Outcome of a finished run; unpacks as the predecessor's pair: ``logdir, metrics = result``.

    Attributes:
        metrics: outputs of the chief's function, with the log's path; empty for several combinations.
        runs: results of the single runs, of a launch of several combinations only.
        value: the value that the chief's function returned, with files by URL or path, without parts that cannot be
            pickled, which a note reports.
        logdir: URL of the TensorBoard events.
        run_dir: URL of the run directory.
        run_id: id of the run.
        state: final state of the run.
        workers: host, slot, state, step and metrics of each worker.
        ring_order: roles and task indices of the workers in ring order.
        seconds: duration of the run.
        steps_per_second: steps per second between the chief's first and last report.
        in_force: effective settings: what the workers did together, and by which path gradients were merged. The
            attributes ``implementation`` and the like are the requested settings.
        unrecorded: records that could not be written to storage, each with the reason; usually empty.
    """

    metrics: dict[str, Any]  # empty for several combinations, where the pair's second element is None
    runs: list[Result]  # of several combinations
    value: Any
    logdir: str
    run_dir: str
    run_id: str
    state: str
    workers: list[dict[str, Any]]
    ring_order: list[str]
    seconds: float
    steps_per_second: float
    implementation: str
    merge_scope: int | str | None
    scoped_allocator: bool | None
    tuned: bool | str
    in_force: dict[str, Any]  # effective settings; those above are the requested ones
    unrecorded: dict[str, str]

    def __new__(cls, logdir: str, metrics: dict[str, Any] | None, **facts: Any) -> Result:
        """Create a result; ``facts`` become its other attributes."""
        self = super().__new__(cls, (logdir, metrics))
        self.logdir, self.metrics, self.unrecorded = logdir, metrics or {}, {}
        for name, value in facts.items():
            setattr(self, name, value)
        return self

    @property
    def artifacts(self) -> list[str]:
        """URLs of the files that the function saved in its working folder, such as ``model.save("model.keras")``."""
        return [status.url for status in _files_below(RunDir(self.run_dir).artifacts)]

    def summary(self) -> str:
        """Return a summary for people: workers and slots, ring order, merge setting, speed, metrics, run directory.

        The last line is that of ``json``, so that a script can read it. For several combinations, the summary of each.
        """
        if several := getattr(self, "runs", None):
            summaries = [single.summary() for single in several]
            missing = [f"WARNING  {last_records.words(self.unrecorded)}"] if self.unrecorded else []
            return "\n\n".join([*summaries, *missing, f"run directory of all {len(several)}  {self.run_dir}"])
        warning = training_summary.warning(self.in_force)
        rows = [
            *([("WARNING", warning)] if warning else []),
            *([("WARNING", last_records.words(self.unrecorded))] if self.unrecorded else []),
            ("state", f"{self.state} after {self.seconds:.1f} s"),
            ("workers", f"{len(self.workers)}: " + ", ".join(_slot(worker) for worker in self.workers)),
            ("ring order", " -> ".join(self.ring_order)),
            ("merging", training_summary.merging(self.in_force)),
            ("speed", f"{self.steps_per_second:.1f} steps/s" if self.steps_per_second else "no steps were reported"),
            *((name, _short(value)) for name, value in self.metrics.items() if name != "log"),
            ("run directory", self.run_dir),
            *_contents(RunDir(self.run_dir)),
            ("  result", ", ".join(name for name in _RECORDS if name not in self.unrecorded) or "not recorded"),
        ]
        width = max(len(name) for name, _ in rows)
        return "\n".join([*(f"{name:{width}}  {value}" for name, value in rows), self.json()])

    def json(self, **more: Any) -> str:
        """Return one line of JSON for scripts: metrics, number of workers, run id, run directory, state and others.

        A loss that is NaN is the text "NaN" (``hopsml.tracking.strict_json``). For several combinations: ``runs``, a
        list of their objects, and id, directory and state of the whole.

        Args:
            **more: further entries.
        """
        if several := getattr(self, "runs", None):
            runs = [json.loads(single.json()) for single in several]
            whole = {"runs": runs, "run_id": self.run_id, "run_dir": self.run_dir, "state": self.state}
            return strict_json.dumps(as_json({**whole, **more}), ascii_only=True)
        content = {
            **{name: value for name, value in self.metrics.items() if name != "log"},
            "workers": len(self.workers),
            "ring_order": self.ring_order,
            "in_force": self.in_force,
            "steps_per_second": round(self.steps_per_second, 2),
            "seconds": self.seconds,
            "run_id": self.run_id,
            "run_dir": self.run_dir,
            "state": self.state,
            **more,
        }
        return strict_json.dumps(as_json(content), ascii_only=True)

    def __repr__(self) -> str:
        return (
            f"Result(run_id={self.run_id!r}, state={self.state!r}, metrics={self.metrics!r}, run_dir={self.run_dir!r})"
        )


def _contents(directory: RunDir) -> list[tuple[str, str]]:
    """Return rows for the contents of the run directory; one with the error if storage does not respond."""
    try:
        return [
            ("  events", _files(directory.events)),
            ("  checkpoints", _checkpoints(directory.checkpoints)),
            ("  logs", _files(directory.logs)),
            *([("  artifacts", _names(directory))] if _files_below(directory.artifacts) else []),
        ]
    except StorageError as error:
        return [("  files", str(error))]


def _slot(worker: dict[str, Any]) -> str:
    gpus = ",".join(map(str, worker["gpu_indices"]))
    return (
        f"rank {worker['rank']} on {worker['host']} (executor {worker['executor']}, {f'GPU {gpus}' if gpus else 'CPU'})"
    )


def _short(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)[:100]


def _files(url: str) -> str:
    found = _files_below(url)
    kilobytes = sum(file.length for file in found) / 1000
    return f"{len(found)} files, {kilobytes:.0f} kB"


def _checkpoints(url: str) -> str:
    steps = sorted(step for file in _list(url) if (step := step_of(urls.name(file.url))) is not None)
    return f"{len(steps)}, the last at step {steps[-1]}" if steps else "none"


def _names(directory: RunDir) -> str:
    names = [file.url.removeprefix(directory.artifacts).lstrip("/") for file in _files_below(directory.artifacts)]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _files_below(url: str) -> list[filesystem.FileStatus]:
    """Return all files of a folder, which need not exist."""
    return [file for file in filesystem.walk(url) if not file.is_dir] if filesystem.exists(url) else []


def _list(url: str) -> list[filesystem.FileStatus]:
    return filesystem.for_url(url).list_dir(url) if filesystem.exists(url) else []
