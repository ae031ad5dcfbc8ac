"""Evaluator that runs in parallel with a training and evaluates each complete checkpoint of another run once.

The result of a checkpoint is one small file in the evaluated run, ``evaluations/step-000000120.json``, written once
and atomically: after an evaluator was killed, another one continues where the files end. A named evaluation has its
files in a folder of that name. The next checkpoint, the best one, and whether the training has stopped improving are
functions of these files. A run whose driver has exited without ending it will have no further checkpoint, so the
evaluation ends there as well. TensorBoard shows the results as the run ``evaluation`` of that training, or
``evaluation/NAME``: its event files are written without TensorFlow, as records in TFRecord's format (length, its masked
CRC-32C, the bytes, theirs), each a protocol buffer ``Event``; the first contains the version. Fields are by their numbers in
TensorBoard's ``event.proto`` and ``summary.proto``.
"""

from __future__ import annotations

import math
import shutil
import struct
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import google_crc32c
import msgspec

from hopsml.cluster.shared.spec import FIRST_EVALUATION, Evaluation
from hopsml.cluster.worker.context import WorkerContext
from hopsml.cluster.worker.returned import plain
from hopsml.core import suggestions
from hopsml.errors import ArgumentError, PathExists, PathNotFound, StorageError
from hopsml.storage import checkpoints, mailbox, urls
from hopsml.storage.filesystem import for_url
from hopsml.storage.run_dir import RunDir, parse_step_name, step_name, to_json
from hopsml.tracking import catalog

VERSION = b"brain.Event:2"
_MASK = 0xA282EAD8  # added so that a checksum of data that contains checksums remains reliable
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5  # kinds of fields on the wire


def encode_scalar_events(values: Mapping[str, Any], step: int, time_s: float) -> bytes:
    """Return an event file with the numbers among some values at one step; ``time_s`` is seconds since 1970."""
    numbers = {
        name: value for name, value in values.items() if isinstance(value, int | float) and not isinstance(value, bool)
    }
    wall_time = _key(1, _EIGHT_BYTES) + struct.pack("<d", time_s)
    summary = b"".join(_bytes(1, _scalar(name, float(value))) for name, value in numbers.items())
    events = [wall_time + _bytes(3, VERSION), wall_time + _key(2, _VARINT) + _varint(step) + _bytes(5, summary)]
    return b"".join(map(_record, events))


def _scalar(tag: str, value: float) -> bytes:
    try:
        packed = struct.pack("<f", value)
    except OverflowError:  # beyond a 32-bit float
        packed = struct.pack("<f", math.copysign(math.inf, value))
    return _bytes(1, tag.encode()) + _key(2, _FOUR_BYTES) + packed


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _masked_crc(length) + data + _masked_crc(data)


def _key(field: int, kind: int) -> bytes:
    return _varint(field << 3 | kind)


def _bytes(field: int, data: bytes) -> bytes:
    return _key(field, _BYTES) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def _masked_crc(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF)


LOOK_S = 1.0  # seconds between two polls for checkpoints
SILENT_S = 60.0  # seconds without a heartbeat after which a driver counts as lost; drivers send one every ten seconds
AWAY_S = 600.0  # seconds for which an unavailable store is tolerated
WITHOUT_CHECKPOINTS = (
    "write checkpoints in fit() by callbacks=hopsml.tensorflow.callbacks(), in a loop by "
    "hopsml.tensorflow.Checkpointer or, with min_workers=, by commit() of a hopsml.elastic.State"
)
# Prefix and suffix of an event file's name; the step is between them.
_EVENTS, _OURS = "events.out.tfevents.", ".evaluation"


class CheckpointEvaluation(msgspec.Struct, frozen=True):
    """Result of one checkpoint: its metrics, or the reason why it could not be evaluated."""

    step: int
    metrics: dict[str, Any] = {}
    seconds: float = 0.0
    problem: str = ""


# Builds the decoder here, so that threads may convert at the same time (tests/integration/core/test_decoders.py).
msgspec.convert({"step": 0}, CheckpointEvaluation)


# ------------------------------------------------------------------------------------------ pure


def next_checkpoint_step(steps: Sequence[int], judged: Collection[int], order: str) -> int | None:
    """Return the step of the checkpoint to evaluate next; None if all are evaluated.

    Args:
        steps: steps of the complete checkpoints.
        judged: steps already evaluated.
        order: "oldest" or "newest" first.
    """
    left = sorted(set(steps) - set(judged))
    return None if not left else left[-1 if order == "newest" else 0]


def best_result(judgements: Collection[CheckpointEvaluation], asked: Evaluation) -> CheckpointEvaluation | None:
    """Return the result with the best value of the metric, the earliest of equals; None if no value is a number."""
    sign = 1 if asked.direction == "max" else -1
    known = [(sign * value, -one.step, one) for one in judgements if (value := _value(one, asked)) is not None]
    return max(known, key=lambda entry: entry[:2])[2] if known else None


def stagnates(judgements: Collection[CheckpointEvaluation], asked: Evaluation) -> bool:
    """Return True if ``patience`` checkpoints after the best one have been evaluated and none was better."""
    best = best_result(judgements, asked)
    behind = [one for one in judgements if best is not None and one.step > best.step and not one.problem]
    return asked.patience is not None and len(behind) >= asked.patience


def missing_metric_message(judgements: Collection[CheckpointEvaluation], asked: Evaluation) -> str:
    """Build the error message for evaluated checkpoints that all lack the requested metric; "" if one has it."""
    judged = [one for one in judgements if not one.problem]
    if not judged or best_result(judged, asked) is not None:
        return ""
    names = sorted({name for one in judged for name in one.metrics})
    others = [name for name in names if name != asked.metric]
    nearest = next(iter([*suggestions.similar_names(asked.metric, others, least=0.5), *others]), "")
    remedy = (
        f"pass metric={nearest!r} (--metric {nearest})" if others
        else "check why it is NaN or infinite" if names
        else "return a dict with that number"
    )  # fmt: skip
    stops = "" if asked.patience is None else f", and patience={asked.patience} has no effect"
    return (
        f"no evaluated checkpoint has a finite value of the metric {asked.metric!r}; they have: "
        f"{', '.join(names) or 'nothing'}. So there is no best checkpoint{stops}; {remedy}"
    )


def nothing_evaluated_reason(judgements: Collection[CheckpointEvaluation], run: str) -> str:
    """Return why no checkpoint of an ended run was evaluated; "" if one was."""
    if not judgements:
        return f"{run} has no complete checkpoint, so nothing was evaluated: {WITHOUT_CHECKPOINTS}"
    if all(one.problem for one in judgements):
        first = min(judgements, key=lambda one: one.step)
        return (
            f"none of the {len(judgements)} checkpoints of {run} could be read, so nothing was evaluated; that of step "
            f"{first.step}: {first.problem}"
        )
    return ""


def reported_values(
    judgement: CheckpointEvaluation, judgements: Collection[CheckpointEvaluation], asked: Evaluation
) -> dict[str, Any]:
    """Return the reported values of a checkpoint: its metrics, and ``best_step``.

    ``best_step`` is the step of the best evaluated checkpoint up to this one.
    """
    best = best_result([one for one in judgements if one.step <= judgement.step], asked)
    return {**({} if best is None else {"best_step": best.step}), **judgement.metrics}


def _value(one: CheckpointEvaluation, asked: Evaluation) -> float | None:
    """Return the compared metric of a result; None if it is missing or not finite."""
    value = one.metrics.get(asked.metric)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def is_driver_lost(lives: bool | None, sign_s: float | None, quiet_s: float) -> bool:
    """Return True if the driver of a run without an end has exited.

    Args:
        lives: True if its process lives; None where only its own machine could find out.
        sign_s: seconds since its newest heartbeat was first seen; None if there is none yet.
        quiet_s: seconds since its run directory changed.
    """
    if lives is False:
        return True
    return catalog.infer_unended_state(lives, quiet_s) == catalog.LOST if sign_s is None else sign_s >= SILENT_S


# ------------------------------------------------------------------------------------------ on the store


class EvaluationStore:
    """Files of one named evaluation of a run: their location, and how to read them."""

    def __init__(self, run: RunDir, name: str = FIRST_EVALUATION) -> None:
        self.run, self.name = run, name
        below = () if name == FIRST_EVALUATION else (name,)
        self.folder = urls.join(run.evaluations, *below)
        self.events = urls.join(run.events, "evaluation", *below)  # TensorBoard's event files
        self.evaluator_json = urls.join(self.folder, "evaluator.json")  # run and function of the newest evaluator

    def read_evaluator_record(self) -> dict[str, Any]:
        """Return the record of the newest evaluator, empty if there was none; raise StorageError if unreadable."""
        try:
            return dict(self.run.read_json(self.evaluator_json))
        except PathNotFound:
            return {}

    def read_results(self) -> list[CheckpointEvaluation]:
        """Return the stored results in order of their steps; raise StorageError if they cannot be read."""
        names = [one for one in _names(self.folder) if parse_step_name(one.removesuffix(".json")) is not None]
        read = [self.run.read_json(urls.join(self.folder, name)) for name in sorted(names)]
        return [msgspec.convert(one, CheckpointEvaluation) for one in read]


def function_name(function: Callable[..., Any]) -> str:
    """Return the name by which a function is identified in the evaluator's record."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))


# ------------------------------------------------------------------------------------------ in the evaluator's process


def send_note(context: WorkerContext, text: str) -> None:
    """Send a note of the run to the driver, and print it to the evaluator's log."""
    print(f"hopsml: {text}", flush=True)
    context.note(text)


class DriverWatch:
    """Detector of the exit of a run's driver; its methods raise StorageError if the store is unavailable."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._sign: dict[str, Any] | None = None
        self._heard_s = time.monotonic()

    def is_lost(self) -> bool:
        """Return True if the driver has exited, by its process and its heartbeat.

        The age of a heartbeat counts from when it was first seen here.
        """
        sign = self._newest_sign()
        now = time.monotonic()
        if sign != self._sign:
            self._sign, self._heard_s = sign, now
        lives = catalog.is_driver_alive(self._run.read_run().get("driver_process") or {})
        quiet_s = time.time() - catalog.last_change_s(self._run) if sign is None else 0.0
        return is_driver_lost(lives, None if sign is None else now - self._heard_s, quiet_s)

    def _newest_sign(self) -> dict[str, Any] | None:
        """Return the driver's newest heartbeat; None before the first."""
        try:
            return self._run.read_json(self._run.driver_json)
        except PathNotFound:
            return None


def play(function: Callable[..., Any], arguments: Mapping[str, Any], context: WorkerContext) -> dict[str, Any]:
    """Call ``function(folder, **arguments)`` for each complete checkpoint until the run has ended and none is left.

    Args:
        function: returns a number or a dict of numbers for a checkpoint's folder.
        arguments: further keyword arguments.
        context: the evaluator's own context.

    Returns:
        The counts ``evaluated`` and ``skipped``, and ``best_step`` with the metrics of the best checkpoint, if there
        is one.
    """
    evaluator = Evaluator(function, arguments, context)
    answered_s = time.monotonic()
    while True:
        try:
            if evaluator.evaluate_due():
                break
            answered_s = time.monotonic()
        except StorageError as error:  # the training continues during an outage of the store, and so does its evaluator
            if evaluator.is_calling or time.monotonic() - answered_s > AWAY_S:
                raise
            print(f"hopsml: the evaluation waits until the store is available: {error}", flush=True)
        time.sleep(LOOK_S)
    if problem := nothing_evaluated_reason(evaluator.judgements, evaluator.asked.run):
        send_note(context, problem)
    best = best_result(evaluator.judgements, evaluator.asked)
    skipped = [one.step for one in evaluator.judgements if one.problem]
    found = {"evaluated": len(evaluator.judgements) - len(skipped), "skipped": len(skipped)}
    return {**found, **({"best_step": best.step, **best.metrics} if best is not None else {})}


class Evaluator:
    """Polling of one run for complete checkpoints, and their evaluation."""

    def __init__(self, function: Callable[..., Any], arguments: Mapping[str, Any], context: WorkerContext) -> None:
        self._function, self._arguments, self._context = function, arguments, context
        assert context.spec.evaluation is not None
        self.asked = context.spec.evaluation
        self._run = RunDir(self.asked.run, context.spec.storage_timeout_s)
        self._facts = EvaluationStore(self._run, self.asked.name)
        self._watch = DriverWatch(self._run)
        self._best_written: CheckpointEvaluation | None = None
        self._failed: dict[int, float] = {}  # steps whose checkpoint could not be read, with the version that failed
        self._has_warned = False
        self.is_calling = False  # while True, an error comes from the user's function
        self._run.write_json(self._facts.evaluator_json, {"run": context.run_url, "function": function_name(function)})
        self.judgements = self._facts.read_results()
        self._shown = {step for name in _names(self._facts.events) if (step := _step_shown(name)) is not None}

    def evaluate_due(self) -> bool:
        """Evaluate all checkpoints that are due; return True if no further one can appear."""
        # Read first, so that all checkpoints of an ended run are visible below.
        ended = self._run.read_status() is not None
        # Read again, because the run may have ended a moment ago.
        lost = not ended and self._watch.is_lost() and self._run.read_status() is None
        self._reopen()
        while (
            step := next_checkpoint_step(self._complete(), [one.step for one in self.judgements], self.asked.order)
        ) is not None:
            self._note(self._judge(step))
        self._write_best()
        self._write_events()
        self._warn()
        if lost:
            send_note(
                self._context,
                f"the driver of {self._run.url} has exited without ending the run, so evaluation ends; if the run is "
                "resumed, call evaluate() again for its new checkpoints",
            )
        return ended or lost

    def _warn(self) -> None:
        """Report once that no result has the compared metric, so that there is no best checkpoint."""
        if not self._has_warned and (said := missing_metric_message(self.judgements, self.asked)):
            self._has_warned = True
            send_note(self._context, said)

    def _complete(self) -> list[int]:
        """Return the steps of complete checkpoints that have no result yet."""
        source = self._run.checkpoints
        judged = {one.step for one in self.judgements}
        return [
            step
            for step in checkpoints.steps(source)
            if step not in judged and checkpoints.is_complete(urls.join(source, step_name(step)))
        ]

    def _reopen(self) -> None:
        """Evaluate again each step whose checkpoint was corrupt or deleted, and has been committed again since."""
        for one in [one for one in self.judgements if one.problem]:
            version = self._version(one.step)
            if version and version != self._failed.get(one.step):
                self._failed[one.step] = version
                self.judgements.remove(one)

    def _version(self, step: int) -> float:
        """Return the time of a step's complete checkpoint, by the store's clock; 0 if there is none."""
        url = urls.join(self._run.checkpoints, step_name(step))
        try:
            manifest = urls.join(url, checkpoints.MANIFEST)
            return for_url(url).status(manifest).modified_s if checkpoints.is_complete(url) else 0.0
        except PathNotFound:
            return 0.0

    def _judge(self, step: int) -> CheckpointEvaluation:
        """Fetch a checkpoint and call the user's function for it."""
        folder = self._context.work_dir.parent / "evaluated" / step_name(step)
        began, version = time.monotonic(), self._version(step)
        shutil.rmtree(folder, ignore_errors=True)  # left by an evaluator that was killed
        try:
            checkpoints.fetch(self._run.checkpoints, step, folder)
        except (
            PathNotFound,
            checkpoints.CorruptCheckpoint,
        ) as error:  # its run retains a few checkpoints only, and has deleted this one in between
            self._failed[step] = version
            return CheckpointEvaluation(step, problem=str(error))
        self.is_calling = True
        try:
            value = self._function(folder, **self._arguments)
            self.is_calling = False
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return CheckpointEvaluation(step, _metrics(value), time.monotonic() - began)

    def _note(self, judgement: CheckpointEvaluation) -> None:
        """Store a result once, report it to the driver, and cancel a training that no longer improves."""
        name = urls.join(self._facts.folder, f"{step_name(judgement.step)}.json")
        try:
            is_second = judgement.step in self._failed and not judgement.problem
            for_url(name).write_bytes(name, to_json(msgspec.to_builtins(judgement)), overwrite=is_second)
        except PathExists:  # another evaluator was faster: its result counts
            self.judgements = self._facts.read_results()
            return
        self.judgements.append(judgement)
        if not judgement.problem:
            self._context.send(
                {"step": judgement.step, "metrics": reported_values(judgement, self.judgements, self.asked)}
            )
        self._write_best()
        self._write_events()
        if stagnates(self.judgements, self.asked) and self._run.read_status() is None:
            why = f"early stopping: {self.asked.patience} checkpoints had no better value"
            mailbox.write_cancel_request(self._run, why)

    def _write_best(self) -> None:
        """Write the best result if it has changed, or could not be written before."""
        best = best_result(self.judgements, self.asked)
        if best is not None and best != self._best_written:
            url = urls.join(self._facts.folder, "best.json")
            for_url(url).write_bytes(url, to_json(msgspec.to_builtins(best)))
            self._best_written = best

    def _write_events(self) -> None:
        """Write TensorBoard files for results that have none yet, also for those of an evaluator that was killed."""
        for one in self.judgements:
            if not one.problem and one.step not in self._shown:
                values = reported_values(one, self.judgements, self.asked)
                name = urls.join(self._facts.events, _event_name(one.step))
                for_url(name).write_bytes(name, encode_scalar_events(values, one.step, time.time()))
                self._shown.add(one.step)


def _event_name(step: int) -> str:
    """Return an event file's name in which the step is padded, so that names sort by step.

    TensorBoard reads files in the order of their names and treats a smaller step after a larger one as a restart.
    """
    return f"{_EVENTS}{step:020d}{_OURS}"


def _step_shown(name: str) -> int | None:
    """Return the step of an evaluator's event file by its name; None for any other file."""
    step = name.removeprefix(_EVENTS).removesuffix(_OURS)
    return int(step) if name == f"{_EVENTS}{step}{_OURS}" and step.isdecimal() else None


def _names(folder: str) -> list[str]:
    """Return the names in a folder, none if the folder does not exist."""
    try:
        return [entry.name for entry in for_url(folder).list_dir(folder)]
    except PathNotFound:
        return []


def _metrics(value: Any) -> dict[str, Any]:
    """Return the user function's value as metrics by name; raise ArgumentError for other types."""
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    found = plain(value)
    if isinstance(found, int | float):
        return {"metric": found}
    raise ArgumentError(
        f"the evaluating function returned {value!r:.80}, a {type(value).__name__}; it must return a number, or a dict of "
        "numbers"
    )
