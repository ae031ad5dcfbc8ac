"""Outcome of a run: value for the program, effective settings, last records, and summaries as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hopsml.cluster.gang.elastic.health import WITHOUT_COMMITS
from hopsml.cluster.shared.plain import as_json, missing_metric_note, without_address
from hopsml.cluster.worker.collective_stats import PARAMETER_SERVERS
from hopsml.core import redact
from hopsml.errors import StorageError
from hopsml.experiment.ending import unrecorded_text
from hopsml.notebook import html, view
from hopsml.search.metric import METRIC, differing_reports, nan_values
from hopsml.storage import filesystem, urls
from hopsml.storage.run_dir import RunDir, parse_step_name
from hopsml.tracking import listing

_PATHS = {
    "scoped_allocator": "merged by TensorFlow's scoped allocator",
    "packs": "merged by concatenation (packs)",
    "collective": "merged by hopsml's collective",
}


def effective_settings(seen: Sequence[Mapping[str, int | str]], committed: bool | None = None) -> dict[str, Any]:
    """Return the effective settings to record, from what each training worker has observed.

    Args:
        seen: facts of each worker that trains.
        committed: True if a worker of an elastic run has ever committed its state; None for a run of fixed size.

    Returns:
        ``formed``: True if there was a group, None for commands, which are not observed. If True, ``by`` (its
        implementation) and ``why``, and for the gradients of a step their number, the number of
        collectives, and the path. If there was no group, or it reduced no gradients,
        ``trained_alone``: number of workers that passed gradients to a TensorFlow optimizer (either Keras, or
        TensorFlow 1) nevertheless, or to one of torch's, which ``trained_by`` states; of torch only if its group is
        hopsml's, which had no operation. Other frameworks, and updates by hand, are not observed.
    """
    elastic = {} if committed is None else {"committed": committed}
    return _group(seen) | elastic


def _group(seen: Sequence[Mapping[str, int | str]]) -> dict[str, Any]:
    trained = sum("trained" in one for one in seen)
    together = [one for one in seen if one.get("group")]
    if seen and all("command" in one for one in seen):
        return {"workers": len(seen), "formed": None, "trained_alone": 0}
    if len(seen) < 2 or not together:
        return {"workers": len(seen), "formed": False, "trained_alone": trained}
    chief = together[0]
    found = {"workers": len(seen), "formed": True, "by": chief["group"], "size": chief["size"]}
    found |= {name: chief[name] for name in ("why", "settings", "nccl") if name in chief}
    if "gradients" in chief:
        scope = chief["merge_scope"] or "all"
        found |= {"merge_scope": scope, **{name: chief[name] for name in ("path", "gradients", "collectives")}}
    elif "operations" in chief:
        found["operations"] = chief["operations"]
    elif trained and chief.get("trained") == "torch":
        found |= {} if "exchanged" in chief else {"trained_alone": trained, "trained_by": "torch"}
    elif trained:
        found["trained_alone"] = trained
    return found


def settings_warning(facts: Mapping[str, Any]) -> str:
    """Return a warning if group training or commits of an elastic run were requested but did not occur; else ""."""
    missing = "" if facts.get("committed", True) else f"nothing was committed in this elastic run. {WITHOUT_COMMITS}"
    return "; ".join(text for text in (_trained_apart(facts), missing) if text)


def _trained_apart(facts: Mapping[str, Any]) -> str:
    """Return a sentence for several workers that trained separately; "" if that was not observed.

    A function that does not train by TensorFlow has no reason to form its group: it may merge in another way
    (``hopsml.elastic``, torch, JAX), or have nothing to merge. One worker that trains while the others do not is
    intended, as with parameter servers.
    """
    if facts.get("trained_alone", 0) < 2:
        return ""
    alone = f"{facts['trained_alone']} workers trained separately"
    if facts.get("trained_by") == "torch":
        return (
            f"{alone}: no gradients were averaged, and the result is that of rank 0 only; call "
            "hopsml.torch.prepare(model) before the optimizer is made, or wrap the model by DistributedDataParallel"
        )
    if facts["formed"]:
        return (
            f"{alone}: a group was formed, but no gradients were merged in it, and the result is that of rank 0 "
            "only; build the model and its optimizer inside strategy.scope(); in your own training loop call "
            "strategy.run() as well"
        )
    return (
        f"{alone}: no TensorFlow group was formed, so no gradients were merged, and the result is that of rank 0 "
        "only; call hopsml.tensorflow.strategy() first in the training function, and build the model in its scope"
    )


def merging_text(facts: Mapping[str, Any]) -> str:
    """Return a description of how gradients were merged, in one line, from ``effective_settings``."""
    if facts["workers"] < 2:
        return "none: one worker"
    if facts["formed"] is None:
        return "unknown: the workers ran a command, whose groups are not observed"
    if not facts["formed"]:
        return "none: no framework formed a group"
    if facts["by"] == PARAMETER_SERVERS:
        workers = f"{facts['size']} worker{'s' if facts['size'] > 1 else ''}"
        return f"none: parameter servers, whose variables {workers} update independently"
    why = f", because {facts['why']}" if "why" in facts else ""
    why += f"; {facts['nccl']}" if "nccl" in facts else ""
    settings = f" ({facts['settings']})" if "settings" in facts else ""
    if "operations" in facts:
        return (
            f"a group of {facts['size']} by {facts['by']}{settings}{why}: {facts['operations']} operations of "
            "torch.distributed"
        )
    if "gradients" not in facts:
        if settings:
            return f"a group of {facts['size']} by {facts['by']}{settings}{why}"
        return f"a group of {facts['size']} by {facts['by']}{why}, in which no gradients were reduced by hopsml"
    gradients, collectives = facts["gradients"], facts["collectives"]
    how = "none merged" if collectives == gradients else _PATHS.get(facts["path"], facts["path"])
    operations = f"{collectives} collective{'' if collectives == 1 else 's'}"
    merged = f"merge scope {facts['merge_scope']}: {gradients} gradients in {operations}, {how}"
    return merged + settings + why


_NO_SPEED = "unknown: fewer than two steps were reported by hopsml.report"
_NOTHING = (METRIC, None)  # of a function that has returned nothing
_RECORDS = ("status.json", ".outputs.json")


class Result(tuple[str, Any]):
    """Outcome of a finished run; unpacks as the predecessor's pair: ``logdir, metrics = result``.

    Attributes:
        metrics: outputs of the chief's function; empty for several combinations. The pair's second element, as in the
            predecessor, has the log's path as well.
        runs: results of the single runs, of a launch of several combinations only.
        value: the value that the chief's function returned, with files by URL or path, without parts that cannot be
            pickled, which a note reports.
        logdir: URL of the TensorBoard events.
        run_dir: URL of the run directory.
        name: name of the run.
        metric_key: name of the metric that lists of runs show; None if it was not given.
        run_id: id of the run.
        state: final state of the run.
        workers: host, slot, state, step and metrics of each worker.
        ring_order: roles and task indices of the workers in ring order.
        given_ring_order: the argument ``ring_order`` of the run: hosts or ranks; empty without it.
        seconds: duration of the run.
        steps_per_second: steps per second between the chief's first and last report.
        in_force: effective settings: what the workers did together, and by which path gradients were merged. The
            attributes ``implementation`` and the like are the requested settings.
        losses: rank, step and cause of workers that were lost while the run continued, and the step of their replacement.
        unrecorded: records that could not be written to storage, each with the reason; usually empty.
    """

    metrics: dict[str, Any]  # empty for several combinations, where the pair's second element is None
    runs: list[Result]  # of several combinations
    value: Any
    logdir: str
    name: str = ""
    metric_key: str | None = None
    run_dir: str
    run_id: str
    state: str
    workers: list[dict[str, Any]]
    ring_order: list[str]
    given_ring_order: list[int | str]
    seconds: float
    steps_per_second: float
    implementation: str
    merge_scope: int | str | None
    scoped_allocator: bool | None
    tuned: bool | str
    in_force: dict[str, Any]  # effective settings; those above are the requested ones
    losses: list[dict[str, Any]]
    unrecorded: dict[str, str]

    def __new__(cls, logdir: str, metrics: dict[str, Any] | None, **facts: Any) -> Result:
        """Create a result; ``facts`` become its other attributes."""
        self = super().__new__(cls, (logdir, metrics))
        self.logdir, self.losses, self.unrecorded, self.given_ring_order = logdir, [], {}, []
        self.metrics = {name: value for name, value in (metrics or {}).items() if name != "log"}
        for name, value in facts.items():
            setattr(self, name, value)
        return self

    @property
    def log(self) -> str:
        """URL of what the chief has printed; empty for several combinations."""
        return str((self[1] or {}).get("log", ""))

    @property
    def notes(self) -> list[str]:
        """Hints: lost workers, a missing ``metric_key``, and returned values that are NaN or differ from reports.

        The returned values are the result.
        """
        reported = next(
            (worker.get("metrics") for worker in getattr(self, "workers", ()) if worker.get("rank") == 0), None
        )
        differing = differing_reports(self.metrics, reported or {})
        notes = (*listing.loss_texts(self.losses), self.missing_metric, differing, nan_values(self.metrics))
        return [note for note in notes if note]

    @property
    def missing_metric(self) -> str:
        """Note that ``metric_key`` is not among the returned values; "" if it is, or was not given."""
        return missing_metric_note(self.metric_key, self.metrics)

    @property
    def artifacts(self) -> list[str]:
        """URLs of the files that the function saved in its working folder, such as ``model.save("model.keras")``."""
        return [status.url for status in _files_below(RunDir(self.run_dir).artifacts)]

    def _shown(self) -> dict[str, Any]:
        """Return the metrics without secrets: what is printed goes to logs, pages and notebooks, as the record does."""
        return redact.arguments(self.metrics)

    def summary(self) -> str:
        """Return a summary for people: workers and slots, ring order, merge setting, speed, metrics, run directory.

        The last line is that of ``json``, so that a script can read it. For several combinations, the summary of each.
        """
        if several := getattr(self, "runs", None):
            summaries = [single.summary() for single in several]
            missing = [f"WARNING  {unrecorded_text(self.unrecorded)}"] if self.unrecorded else []
            return "\n\n".join([*summaries, *missing, f"run directory of all {len(several)}  {self.run_dir}"])
        warning = settings_warning(self.in_force)
        rows = [
            *([("WARNING", warning)] if warning else []),
            *([("WARNING", unrecorded_text(self.unrecorded))] if self.unrecorded else []),
            ("state", f"{self.state} after {self.seconds:.1f} s"),
            ("workers", f"{len(self.workers)}: " + ", ".join(_slot(worker) for worker in self.workers)),
            ("ring order", self._ring_order_text()),
            ("merging", merging_text(self.in_force)),
            ("speed", f"{self.steps_per_second:.1f} steps/s" if self.steps_per_second else _NO_SPEED),
            *(
                (name, listing.value_text(without_address(value)))
                for name, value in self._shown().items()
                if (name, value) != _NOTHING
            ),
            *(("note", note) for note in self.notes),
            ("run directory", self.run_dir),
            *_contents(RunDir(self.run_dir)),
            ("  result", ", ".join(name for name in _RECORDS if name not in self.unrecorded) or "not recorded"),
        ]
        return "\n".join([*listing.format_labelled(rows), self.json()])

    def _ring_order_text(self) -> str:
        """Return the workers in ring order, with the given order if there is one."""
        given = f", as given: {', '.join(map(str, self.given_ring_order))}" if self.given_ring_order else ""
        return " -> ".join(self.ring_order) + given

    def json(self, **more: Any) -> str:
        """Return one line of JSON for scripts: metrics, number of workers, run id, run directory, state and others.

        A loss that is NaN is the text "NaN" (``hopsml.tracking.listing.json_line``). For several combinations: ``runs``, a
        list of their objects, and id, directory and state of the whole.

        Args:
            **more: further entries.
        """
        if several := getattr(self, "runs", None):
            runs = [json.loads(single.json()) for single in several]
            whole = {"runs": runs, "run_id": self.run_id, "run_dir": self.run_dir, "state": self.state}
            return listing.json_line(as_json({**whole, **more}), ascii_only=True)
        content = {
            **self._shown(),
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
        return listing.json_line(as_json(content), ascii_only=True)

    def _repr_html_(self) -> str:
        """Return the result as HTML, which a notebook shows if it is the value of a cell."""
        paths = (("run directory", self.run_dir), ("events", self.logdir), ("log", self.log))
        if several := getattr(self, "runs", None):
            runs = [(single.run_id, single._shown()) for single in several]
            return html.render_result(view.launch_result_view(self.name, self.run_id, runs, paths[:1]))
        facts: dict[str, Any] = {"workers": len(self.workers)}
        facts |= {"steps per second": f"{self.steps_per_second:.1f}"} if self.steps_per_second else {}
        found = view.run_result_view(self.name, self.run_id, self.seconds, self._shown(), facts, paths)
        warnings = [settings_warning(self.in_force), unrecorded_text(self.unrecorded) if self.unrecorded else ""]
        return html.render_result(replace(found, notes=(*filter(None, warnings), *self.notes)))

    def __repr__(self) -> str:
        return (
            f"Result(run_id={self.run_id!r}, state={self.state!r}, metrics={self._shown()!r}, run_dir={self.run_dir!r})"
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


def _files(url: str) -> str:
    found = _files_below(url)
    kilobytes = sum(file.length for file in found) / 1000
    return f"{len(found)} files, {kilobytes:.0f} kB"


def _checkpoints(url: str) -> str:
    steps = sorted(step for file in _list(url) if (step := parse_step_name(urls.name(file.url))) is not None)
    return f"{len(steps)}, the last at step {steps[-1]}" if steps else "none"


def _names(directory: RunDir) -> str:
    names = [file.url.removeprefix(directory.artifacts).lstrip("/") for file in _files_below(directory.artifacts)]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _files_below(url: str) -> list[filesystem.FileStatus]:
    """Return all files of a folder, which need not exist."""
    return [file for file in filesystem.walk(url) if not file.is_dir] if filesystem.exists(url) else []


def _list(url: str) -> list[filesystem.FileStatus]:
    return filesystem.for_url(url).list_dir(url) if filesystem.exists(url) else []
