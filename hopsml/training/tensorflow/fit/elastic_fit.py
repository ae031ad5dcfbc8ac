"""Keras 3's ``fit`` in a group that may change: commits, pauses, and continuation at the same sample.

A joining worker gets the counters of the others' callbacks. Otherwise ``EarlyStopping`` would stop some workers and not
others, and ``ReduceLROnPlateau`` would lower the rate on some only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hopsml.cluster.worker.context import current
from hopsml.errors import ArgumentError
from hopsml.training import collective
from hopsml.training.elastic import commits, elastic_state
from hopsml.training.elastic.commits import Snapshot
from hopsml.training.elastic.elastic_state import ReceivedState
from hopsml.training.elastic.sampler import Scaling
from hopsml.training.tensorflow.fit import feeds
from hopsml.training.tensorflow.fit.callbacks import (
    FitCheckpointer,
    FitHooks,
    Logs,
    append_epoch,
    prepend_history,
    record_training,
)

if TYPE_CHECKING:
    from hopsml.training.large_batch.schedules import BatchSizeSchedule

DECIDING = ("EarlyStopping", "ReduceLROnPlateau", "ModelCheckpoint", "BackupAndRestore")

State = tuple[str, Any]  # of one callback: the name of its class, and its counters


def read_counters(callbacks: Sequence[Any]) -> list[State]:
    """Return each callback's counters: its ``state_dict()``, or the plain attributes of Keras's own callbacks.

    Only Keras's callbacks that decide by their counters (``DECIDING``) are included.
    """
    return [(type(one).__name__, _counted(one)) for one in callbacks]


def restore_counters(callbacks: Sequence[Any], states: Sequence[State]) -> None:
    """Restore each callback's counters from those of its counterpart.

    The counterpart has the same position in the list and the same class.
    """
    for one, (kind, counted) in zip(callbacks, states, strict=False):
        if type(one).__name__ != kind:
            continue
        if _has_state_dict(one):
            one.load_state_dict(counted)
        elif _decides(one):
            vars(one).update(counted)


def _counted(callback: Any) -> Any:
    """Return the counters of one callback, empty if it has none."""
    if _has_state_dict(callback):
        return callback.state_dict()
    return {name: value for name, value in vars(callback).items() if _is_plain(value)} if _decides(callback) else {}


def _decides(callback: Any) -> bool:
    """Return True for a callback of Keras that decides by what it has counted."""
    return any(kind.__name__ in DECIDING for kind in type(callback).__mro__)


def _has_state_dict(callback: Any) -> bool:
    """Return True if a callback has ``state_dict`` and ``load_state_dict``."""
    return callable(getattr(callback, "state_dict", None)) and callable(getattr(callback, "load_state_dict", None))


def _is_plain(value: Any) -> bool:
    """Return True for a number or None, an array, or a list of arrays, such as the best weights."""
    import numpy as np

    if isinstance(value, list):
        return all(isinstance(one, np.ndarray) for one in value)
    return value is None or isinstance(value, (bool, int, float, np.generic, np.ndarray))


_fits = 0  # number of calls of ``fit`` in this process so far
_batches = 0  # number of batches that they have done
_given: ReceivedState | None = None  # on a joining worker: the state of the others, who are in a later call of ``fit``


class ElasticCallback(FitHooks):
    """Callback that makes ``fit`` elastic, as ``hopsml.elastic.State`` makes a loop.

    It is one of ``hopsml.tensorflow.callbacks()``. The model, its optimizer and the position in the data are
    committed to the memory of the worker's agent. After a loss or a change of the group ``fit`` continues from the
    newest commit, in the middle of an epoch if it was made there. The history that ``fit`` returns covers all epochs;
    metrics of an epoch during which the group changed are those of its rest, and other callbacks start from their
    initial state.

    With hopsml's own collective the loss of a worker, except the chief, ends no other process: ``fit`` continues in
    the present batch, of which the failed worker's share may not be trained on, and divides later batches among the
    remaining workers. A joining worker ends no process either: when training begins it trains on one batch by itself,
    whose results are discarded; between two batches of the others it receives their state, and the counters of their
    ``EarlyStopping``, ``ReduceLROnPlateau`` and ``ModelCheckpoint``. A user's callback that counts passes its
    counters on by ``state_dict()`` and ``load_state_dict()``.

    A function may call ``fit`` several times, always in the same order: calls that were complete are skipped.
    """

    def __init__(
        self,
        every: int | None = None,
        scaling: Scaling = "constant",
        reference_workers: int = 1,
        schedule: BatchSizeSchedule | None = None,
    ) -> None:
        """Create the callback for one or several calls of ``fit``.

        Args:
            every: batches between two commits; None: as often as costs at most 1 % of the time.
            scaling: "constant" keeps the global batch whatever the group's size; "linear" keeps each worker's batch,
                which is ``batch_size`` divided by ``reference_workers``, and the learning rate follows; see
                ``hopsml.elastic.Sampler``.
            reference_workers: number of workers for which ``batch_size`` and the learning rate are meant.
            schedule: number of workers to be requested at each epoch.
        """
        self._every, self._scaling, self._reference = every, scaling, reference_workers
        self._schedule = schedule
        self._state: elastic_state.State | None = None
        self._feed: feeds.Feed | None = None
        self._rate = _Rate()
        self._went_on = False
        self._workers = 1  # number of workers that the data is divided among
        self._companions: tuple[Any, ...] = ()  # all callbacks of this fit
        self._given: ReceivedState | None = None  # on a joining worker: state to take over at the first batch

    def set_companions(self, callbacks: tuple[Any, ...]) -> None:
        """Store all callbacks of this ``fit``; called when training begins."""
        self._companions = callbacks

    def on_train_begin(self, logs: Logs = None) -> None:
        """Restore the newest commit of this ``fit``, skip it if it was complete, or start it without a commit."""
        global _fits
        _fits += 1
        epochs = int((self.params or {}).get("epochs", 1))
        self._feed = feeds.create_feed(self.model, epochs, self._scaling, self._reference, feeds.order_seed())
        self._feed.between = self._between
        if self._feed.fixed:
            collective.forbid_joining(self._feed.fixed)
        self._state = elastic_state.State(model=self.model, fit=_fits, done=0, history={}, rate=None)
        self._state._progress = None  # ReportCallback sends the progress instead
        if _given is not None:
            self._come_to(_given, epochs)
            return
        committed, order = _committed()
        if committed is not None and committed > _fits:
            # The first commit of a later fit includes the results of this one.
            self._pass_over(epochs)
            return
        if committed is None or committed < _fits:
            self._begin_anew()
        else:
            self._go_on(order, epochs)
        if collective.expected_rank_and_size() is not None and self._state.done != epochs:
            self._join_others(epochs)

    def _pass_over(self, epochs: int) -> None:
        """Skip this ``fit``, which was complete."""
        self.model._initial_epoch, self._feed = epochs, None

    def _go_on(self, order: int, epochs: int) -> None:
        """Start from the newest commit, which is of this ``fit``."""
        assert self._feed is not None and self._state is not None
        self._feed.position.seed = order  # a continued run retains the order it began with
        self._state._begin(self._feed.position)
        self._feed.update_share()
        self._went_on = True
        self._rate = _Rate(self._state.rate)
        # A fit that was complete is not repeated, however it ended; with more epochs it continues.
        self.model._initial_epoch = epochs if self._state.done == epochs else self._feed.position.epoch

    def _join_others(self, epochs: int) -> None:
        """Train on one batch alone, so that the others need not wait for this worker's tracing; wait for admission."""
        import tensorflow as tf

        assert self._feed is not None and self._state is not None
        with contextlib.suppress(tf.errors.OutOfRangeError, StopIteration):  # raised for a share without samples
            self.model.train_function(self._feed.tracing_iterator())
        given = self._state._meet()
        if given is not None:
            collective.begin_separate_calls()  # Keras and callbacks reduce values that they reset before the first batch
            self._come_to(given, epochs)

    def _come_to(self, given: ReceivedState, epochs: int) -> None:
        """Continue a joining worker at the others' position; their state is taken over at the first batch."""
        global _given
        assert self._feed is not None and self._state is not None
        number, _ = _position_of(given.snapshot)
        if number != _fits:
            _given = given
            self._pass_over(epochs)
            return
        values, position = given.snapshot.values, given.snapshot.position
        _given, self._given = None, given
        self._feed.position.seed = int(position["seed"])
        self._feed.position.go_to(position)
        self._feed.update_share()
        self._state._sampler, self._state._restored = self._feed.position, True
        self._state.history, self._went_on = commits.unpickle(values["history"]), True
        self._rate = _Rate(commits.unpickle(values["rate"]))
        self.model._initial_epoch = self._feed.position.epoch

    def _between(self) -> None:
        """Wait between two batches for joining workers; on a joining worker, take over the others' state."""
        global _batches
        assert self._feed is not None and self._state is not None
        if self._given is not None:
            given, self._given = self._given, None
            collective.end_separate_calls()
            self._state._take_up(given)
            restore_counters(self._companions, given.beside)
            _batches = self._state.batches
            return
        self._state.rate = self._rate.base
        self._state._meet(beside=lambda: read_counters(self._companions))

    def _begin_anew(self) -> None:
        """Start without a commit: from the values given, or from a checkpoint of a run of fixed size."""
        assert self._feed is not None and self._state is not None
        context = current()
        self._feed.update_share()
        self._state._sampler = self._feed.position
        self._state._restored = True
        self._state._batches = _batches
        self.model._initial_epoch = 0
        left = context is not None and (context.resume_checkpoint if _fits == 1 else context.resume_fits) is not None
        if left:
            checkpointer = FitCheckpointer(_fits, self.model)
            checkpointer.restore_latest()
            self.model._initial_epoch = checkpointer.next_epoch()
            self._state.history = checkpointer.notes.get("history", {})
            self._went_on = bool(self._state.history)

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Commit after the validation and callbacks of the previous epoch, so that it counts as done."""
        if self._feed is None or self._state is None:
            return
        record_training()
        self._workers = self._feed.position.world_size
        self._restore_history()
        self._feed.begin_epoch(epoch)
        if self._state.batches and self._given is None:
            self._commit()

    def _restore_history(self) -> None:
        """Restore the committed history once Keras has created a new one; done once."""
        if not self._went_on:
            return
        assert self._state is not None
        self._went_on = False
        prepend_history(self.model, self._state.history)

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Request the scheduled workers, and set the learning rate for the group's present size, with linear scaling."""
        if self._feed is None:
            return
        if self._schedule is not None:
            self._schedule.follow(self._feed.position)
        if self._scaling == "linear":
            self._rate.scale(self.model.optimizer, self._feed.position.learning_rate_scale)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Commit the state if a commit is due.

        The last batch of an epoch is committed after the epoch's validation.
        """
        global _batches
        if self._feed is None or self._state is None:
            return
        self._state._count(self._feed.advance(batch))
        _batches = self._state.batches
        if self._feed.position.world_size != self._workers:  # the next validation divides its data again, too
            self._workers, self.model._eval_epoch_iterator = self._feed.position.world_size, None
        if not self._feed.is_last(batch):
            self._commit()

    def on_test_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Report the progress of a validation to the driver, so that it is not taken for a standstill."""
        if self._state is not None:
            self._state._tell_progress()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Add the epoch's metrics to the history that is committed."""
        if self._state is not None and self._feed is not None:
            self._state.history = append_epoch(self._state.history, logs)

    def on_train_end(self, logs: Logs = None) -> None:
        """Commit that this ``fit`` is complete, so that a restarted function skips it."""
        global _batches
        self.model._initial_epoch = 0  # for the model's next fit
        if self._feed is None or self._state is None:
            return
        self._restore_history()
        self._state.done, self._state.rate = int((self.params or {}).get("epochs", 1)), self._rate.base
        if self._state._writer is not None and self._state._writer.written >= self._state.batches:
            self._state._count(1)  # so that this commit is newer than that of the last batch
        self._state._finish()
        _batches = self._state.batches

    def _implements_test_batch_hooks(self) -> bool:
        """Return True, because the hooks of test batches report progress."""
        return True

    def _commit(self) -> None:
        """Commit the state if a commit is due."""
        assert self._state is not None
        self._state.rate = self._rate.base
        self._state.commit(every=self._every)


def _committed() -> tuple[int | None, int]:
    """Return the number of the ``fit`` that the commit belongs to (None without a commit), and the seed of its order."""
    content = commits.newest_commit(current())
    return (None, 0) if content is None else _position_of(commits.decode(content))


def _position_of(snapshot: Snapshot) -> tuple[int, int]:
    """Return the ``fit`` of a snapshot and the seed of its order; raise ArgumentError for another kind of loop's."""
    values = snapshot.values
    if "fit" not in values:
        raise ArgumentError(
            f"the state to go on from holds the values {sorted(values)}: it was committed by a loop with "
            "hopsml.elastic.State, not by fit(); go on with the same loop"
        )
    return int(commits.unpickle(values["fit"])), int(snapshot.position["seed"])


class _Rate:
    """Learning rate without the group's factor; it follows changes made by the user's callbacks."""

    def __init__(self, base: float | None = None) -> None:
        self.base, self._set = base, None if base is None else -1.0

    def scale(self, optimizer: Any, factor: float) -> None:
        """Set the optimizer's rate to base times ``factor``; raise ArgumentError if it has a schedule."""
        if not hasattr(optimizer.learning_rate, "assign"):
            raise ArgumentError(
                'scaling="linear" sets the learning rate, but the optimizer follows a schedule of its own: give it a number'
            )
        present = float(optimizer.learning_rate.numpy())
        if self.base is None or (self._set is not None and self._set >= 0 and present != self._set):
            self.base = present
        optimizer.learning_rate.assign(self.base * factor)
        self._set = float(optimizer.learning_rate.numpy())
