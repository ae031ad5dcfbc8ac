"""Training state that can be committed and restored, and the loop that survives changes of the group.

It implements ``hopsml.elastic.State``.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, overload

from hopsml.cluster.shared.worker_events import Committed
from hopsml.cluster.worker.context import current
from hopsml.errors import ArgumentError, ArgumentTypeError
from hopsml.training import collective
from hopsml.training.elastic import commits, reconfiguration
from hopsml.training.elastic.commits import CommitPace, CommitWriter, Snapshot, writer_of
from hopsml.training.elastic.sampler import Sampler
from hopsml.training.messages import ProgressSender
from hopsml.training.torch import state_tensors
from hopsml.training.torch.state_tensors import PREFIX as TENSORS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hopsml.cluster.worker.context import CommitPort
    from hopsml.training.data.batch_reader import Batch, BatchReader
    from hopsml.training.data.dataset import Dataset

_OWN = (
    *("_context", "_port", "_writer", "_sampler", "_batches", "_restored", "_progress"),
    *("_pace", "_divided", "_has_written", "_hold_s", "_committed_at", "_left_at", "_loop", "_later", "_is_noted"),
)
AUTOMATIC_SHARE = 0.01  # fraction of the training's time that automatic commits may take
_BESIDE = ""  # key of additional data in a snapshot for joining workers; no value of a State has this name
_LOOP = "loop"  # key in the position: index of the function's loop to which the position belongs

_looping: tuple[CommitPort, State] | None = None  # this process's State whose loops are counted


@dataclass(frozen=True)
class ReceivedState:
    """State received by a joining worker, with the additional data sent with it."""

    snapshot: Snapshot
    beside: Any


class State:
    """Named values that make up a training: models, optimizers, variables, plain Python values.

        state = hopsml.elastic.State(model=model, optimizer=optimizer, losses=[])
        for batch in state.resume(data):
            ...
            state.losses = [*state.losses, loss]
            state.commit(every=10)        # or commit(): as often as costs at most 1 % of the time

    A commit is stored in the memory of the worker's agent and outlives the worker. ``resume`` starts from the newest
    commit that any surviving agent holds, else from the newest checkpoint of the run (or of the run that it resumes),
    else from the values as they were given. Outside of a run, or in a run without failures, it is a plain loop.

    With hopsml's own collective (``implementation="hopsml"``, ``hopsml.all_reduce``) the loss of a worker, except the
    chief, ends no other process: the others continue inside the step they are in, with their present values. The
    failed worker's share of that step's batch may not be trained on; from the next step on the shares are those of
    the new group. A joining worker ends no process either: it starts from the newest commit and trains on one batch
    by itself, whose results are discarded; between two batches the others send it the chief's values. Data that must
    be the same on all ranks therefore belongs in the values, or must be computed from ``batches``: a joining worker
    does not have what a loop has counted in other variables.

    A loop that runs to its end commits once more, and the last commit of a run that finishes becomes a checkpoint
    before the run is recorded as FINISHED, within the time allowed for copying the run's files to its store. A note
    reports a failure to do so. A loop that is left early (``break``) must call ``commit`` itself to retain its
    results.

    A function has one State, and any number of loops over ``resume``, always in the same order, each with its own
    Sampler. A restarted function skips the loops that were complete: they yield no batch. The values are those of the
    commit from the first loop on. They are set again when the loop begins to which the commit belongs, whatever the
    function has assigned in between.

    A value is a TensorFlow or Keras object (build a model before; an optimizer gets its variables here), a dict, list
    or tuple of such objects, an object with ``state_dict`` and ``load_state_dict``, or anything that can be pickled.
    Names must not be those of methods. A compiled model includes its optimizer, but not its metrics.
    """

    def __init__(self, **values: Any) -> None:
        """Create a state of named values.

        Args:
            **values: the values by name.

        Raises:
            ArgumentError: a name is that of a method, or an object has no variables yet.
        """
        for name in values:
            if name.startswith("_") or hasattr(type(self), name):
                raise ArgumentError(f"State(): the name '{name}' is reserved; choose another name")
        self.__dict__.update(_values=values, **dict.fromkeys(_OWN))
        self._context = current()
        self._port = self._context.commits if self._context is not None else None
        self._writer = writer_of(self._port) if self._port is not None else None
        self._sampler: Sampler | BatchReader | None = None
        self._batches: int = 0
        self._loop: int = 0  # index of the current loop among the function's loops, from 1
        self._later: Snapshot | None = None  # restored snapshot that belongs to a later loop
        self._restored: bool = False
        self._divided: bool | None = None
        self._pace = CommitPace()
        self._has_written = self._is_noted = False
        self._hold_s: float = 0.0
        self._committed_at = time.monotonic()
        self._left_at: float | None = None  # when the last call of commit ended
        self._progress: ProgressSender | None = ProgressSender()  # None: a callback reports instead
        self._variables()  # raises now for a value that could not be committed

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_values"][name]
        except KeyError:
            raise AttributeError(f"this State has no value '{name}'; it has: {', '.join(self._values)}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._values:
            self._values[name] = value
        elif name in self.__dict__:
            self.__dict__[name] = value
        else:
            raise AttributeError(
                f"this State has no value '{name}'; pass it when the State is created: State({name}=...)"
            )

    @property
    def batches(self) -> int:
        """Number of global batches done since the beginning of the run, over all generations of the group."""
        return self._batches

    # ------------------------------------------------------------------------------------------ the loop

    @overload
    def resume(self, data: Sampler) -> Iterator[NDArray[np.int64]]: ...

    @overload
    def resume(self, data: Dataset) -> Iterator[Batch]: ...

    def resume(self, data: Sampler | Dataset) -> Iterator[Any]:
        """Yield this worker's batches from the present position of the training on; call it on every rank.

        Args:
            data: a ``Sampler`` over all samples, which yields indices, or a data set of ``hopsml.data``, which yields
                rows.

        Raises:
            ArgumentError: the state to continue from belongs to another training, or the function has looped over
                another State before.
        """
        self._claim_loops()
        self._loop += 1
        with _opened(data) as batches:
            self._begin(batches)
            while self._has_batches(batches):
                batch = batches.next_batch()
                self._batches += 1
                yield batch
                self._tell_progress()
                self._meet_newcomers()
        if self._later is None:
            self._finish()

    def _claim_loops(self) -> None:
        """Register this State as the only one whose loops are counted; raise ArgumentError for a second one.

        A commit holds the values of one State; those of the other would be lost.
        """
        global _looping
        if self._port is None:
            return
        if _looping is None or _looping[0] is not self._port:
            _looping = (self._port, self)
        elif _looping[1] is not self:
            raise ArgumentError(
                "resume(): this function has already resumed another State, with the values "
                f"{', '.join(_looping[1]._values)}, but a commit contains one State; put all values into one State, "
                "and call its resume(...) several times"
            )

    def _has_batches(self, data: Sampler | BatchReader) -> bool:
        """Divide the remaining data among the present group; return True if this loop has a batch to do."""
        if self._later is not None:
            return False
        data.join(*collective.rank_and_size())
        return not data.is_exhausted

    def _meet_newcomers(self) -> None:
        """Wait at a pause for joining workers; on a joining worker, take over the state of the others."""
        if (given := self._meet()) is not None:
            self._take_up(given)

    def _meet(self, beside: Callable[[], Any] = tuple) -> ReceivedState | None:
        """Wait between two batches at a pause for joining workers; on a joining worker, return the received state.

        Returns:
            The received state on a joining worker; None on all others, and if there is no pause.
        """
        generation = collective.pause_generation()
        if generation is None:
            return None
        joins = collective.expected_rank_and_size() is not None
        room = reconfiguration.allocate_buffer(len(self._found() or b"")) if joins else None
        group = collective.wait_for_joining_workers(generation, self._batches)
        if group is None:
            return None
        if group.rank == 0:
            snapshot = self._snapshot()
            reconfiguration.broadcast_state(
                group, replace(snapshot, values=snapshot.values | {_BESIDE: pickle.dumps(beside())})
            )
            return None
        received = reconfiguration.receive_state(group, room)
        if received is None:
            return None
        values = dict(received.values)
        return ReceivedState(beside=commits.unpickle(values.pop(_BESIDE)), snapshot=replace(received, values=values))

    def _take_up(self, given: ReceivedState) -> None:
        """Continue from the others' state as a joining worker; results of the batch done alone are discarded."""
        self._take(given.snapshot, adopts=given.snapshot.position.get(_LOOP, 1) <= self._loop)
        self._drop_held_gradients()

    def _drop_held_gradients(self) -> None:
        """Drop gradients of a discarded batch that wait for the next one."""
        if self._trackables():
            from hopsml.training.tensorflow.distribution import gradient_hooks

            gradient_hooks.drop_withheld_gradients()

    def _begin(self, data: Sampler | BatchReader) -> None:
        """Assign this worker's share of ``data``, and restore the values and the position in the data."""
        self._sampler = data
        data.join(*collective.rank_and_size())
        self._restore()
        if self._later is not None and self._later.position.get(_LOOP) == self._loop:
            self._take(self._later)

    def _count(self, batches: int) -> None:
        """Count batches as done, for loops other than ``resume``, such as Keras's."""
        self._batches += batches
        self._tell_progress()

    def _tell_progress(self) -> None:
        """Report the progress to the agent and the driver."""
        if self._port is not None:
            self._port.slots.progress = self._batches
        if self._sampler is not None and self._progress is not None:
            left = self._sampler.batches_left
            if left is not None:
                self._progress.send_progress(self._batches, self._batches + left)

    def _finish(self) -> None:
        """Commit the end of the loop, so that it is not repeated if another worker fails later."""
        if self._writer is None or collective.expected_rank_and_size() is not None:
            return
        self._writer.wait_written()  # a commit in the slot may not be announced yet
        if self._batches > self._writer.written:
            self._writer.write(self._snapshot())
            self._writer.wait_written()

    # ------------------------------------------------------------------------------------------ commits

    def commit(self, every: int | None = None) -> bool:
        """Commit the present state if a commit is due; call it once for each batch, after the step.

        If the group is about to change, the worker commits in any case and continues no further. A run of fixed size
        (``num_workers=``) stores no commits, and a note reports this at the first call: start it with
        ``min_workers=``.

        Args:
            every: batches from one commit to the next; the first one is made after the first batch, so that a joining
                worker can start from it. None: as often as delays the training by at most 1 % of its time.

        Returns:
            True if a commit was made.

        Raises:
            ArgumentError: a value cannot be pickled; the error names it.
            OSError: there is not enough space for the commit.
        """
        if every is not None and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
            raise ArgumentError(f"commit(every={every!r}): it must be a number of batches, 1 or more")
        if self._writer is None:
            self._note_no_commits()
            return False
        if collective.expected_rank_and_size() is not None or self._later is not None:
            return False
        self._see_batch(self._writer)
        parks = self._port is not None and self._port.slots.must_pause
        due = parks or self._is_due(every)
        if self._is_divided():
            due = state_tensors.any_worker_due(due)
        if not due:
            return False
        self._write(self._writer)
        if parks:
            self._stand_still()
        return True

    def _note_no_commits(self) -> None:
        """Publish a note at the first commit that it is not stored: there will be no checkpoint to resume from."""
        context = self._context
        if self._is_noted or context is None or not context.is_chief:
            return
        self._is_noted = True
        with_servers = "a run with parameter servers" if context.spec.group.relaunches else "a run of fixed size"
        where = "a trial" if context.trial is not None else with_servers
        remedy = (
            "write the checkpoints of a trial into trial.checkpoint_dir, or make the trial elastic with "
            "workers_per_trial=(1, 2)"
            if context.trial is not None
            else "start it with min_workers= (the same number as max_workers= keeps the size)"
        )
        if context.trial is None and context.spec.framework == "tensorflow":
            remedy += ", or write checkpoints with hopsml.tensorflow.Checkpointer or hopsml.tensorflow.callbacks()"
        context.note(
            f"State.commit() stores nothing in {where}: there is no checkpoint for an evaluator, and none from which the "
            f"run can be resumed. Remedy: {remedy}"
        )

    def _is_divided(self) -> bool:
        """Return True if torch's tensors are divided between workers (``fully_shard``); checked once."""
        if self._divided is None:
            self._divided = "torch" in sys.modules and state_tensors.have_divided_parameters(self._values.values())
        return self._divided

    def _see_batch(self, writer: CommitWriter) -> None:
        """Measure the duration of a batch, and with it the cost of writing a commit in the background."""
        now = time.monotonic()
        if self._left_at is not None:
            self._pace.record_batch(now - self._left_at, None if writer.is_busy else writer.writing_s)
        self._left_at = now

    def _write(self, writer: CommitWriter) -> None:
        """Write a commit in the mode that costs less, and record its cost."""
        began, at_once, self._has_written = time.monotonic(), self._pace.is_synchronous, True
        writer.write(self._snapshot(), at_once=at_once)
        self._committed_at = self._left_at = time.monotonic()
        self._hold_s = self._committed_at - began
        self._pace.record_commit(at_once, self._hold_s)

    def _is_due(self, every: int | None) -> bool:
        """Return True if a commit is due by the number of batches or by the cost of commits."""
        if every is not None:
            return self._batches % every == 0 or self._is_first()
        if self._writer is None or self._writer.is_busy:
            return False
        held_s = max(self._hold_s, self._pace.cost_s)
        return time.monotonic() - self._committed_at >= held_s / AUTOMATIC_SHARE

    def _is_first(self) -> bool:
        """Return True if no agent holds a commit from which a joining worker could start."""
        return not self._has_written and self._port is not None and self._port.newest < 0

    def _stand_still(self) -> None:
        """Wait to be ended by the agent: the group is about to change, and this process has made its commit."""
        assert self._writer is not None and self._port is not None
        self._writer.wait_written()
        self._port.slots.progress = self._batches
        self._port.announce(Committed(self._batches, parked=True))
        threading.Event().wait()

    def _snapshot(self) -> Snapshot:
        """Return the present values and the position in the data as a snapshot."""
        arrays, trackables = {}, self._trackables()
        if trackables:
            from hopsml.training.tensorflow import state_variables

            arrays = state_variables.read_values(state_variables.collect_variables(trackables))
        plain = {}
        for name, value in self._values.items():
            if name in trackables:
                continue
            if state_tensors.has_state_dict(value):
                value, tensors = state_tensors.split_object_state(name, value)
                arrays |= tensors
            plain[name] = _pickled(name, value)
        position = self._sampler.position() if self._sampler is not None else {}
        if self._loop > 1:
            position[_LOOP] = self._loop
        return Snapshot(self._batches, arrays, plain, position)

    # ------------------------------------------------------------------------------------------ going on

    def _restore(self) -> None:
        """Set the values from the commit or checkpoint to continue from, if there is one; once for each process."""
        if self._restored:
            return
        self._restored = True
        content = self._found()
        if content is None:
            return
        self._take(commits.decode(content))

    def _take(self, snapshot: Snapshot, adopts: bool = False) -> None:
        """Set the values from a snapshot; raise ArgumentError if it belongs to another training."""
        self._check(snapshot)
        tensors = {key: array for key, array in snapshot.arrays.items() if key.startswith(TENSORS)}
        if variables := {key: array for key, array in snapshot.arrays.items() if key not in tensors}:
            from hopsml.training.tensorflow import state_variables

            state_variables.assign(self._variables(), variables, adopts)
        for name, pickled in snapshot.values.items():
            value = commits.unpickle(pickled)
            if state_tensors.has_state_dict(self._values[name]):
                state_tensors.load_split_state(self._values[name], value, tensors)
            else:
                self._values[name] = value
        self._batches, self._later = snapshot.step, None
        if self._sampler is not None and snapshot.position:
            self._find_place(self._sampler, snapshot)
        self._tell_progress()

    def _find_place(self, data: Sampler | BatchReader, snapshot: Snapshot) -> None:
        """Go to the snapshot's position in the data if it belongs to the present loop."""
        loop = int(snapshot.position.get(_LOOP, 1))
        if loop > self._loop > 0:
            self._later = snapshot
            data.pass_over()
        elif loop < self._loop:  # on a joining worker: the others have just completed the previous loop
            data.rewind()
        else:
            data.go_to(snapshot.position)

    def _found(self) -> memoryview | None:
        """Return the stored commit that this process continues from."""
        return commits.newest_commit(self._context)

    def _check(self, snapshot: Snapshot) -> None:
        """Raise ArgumentError if a snapshot does not hold the same plain values as this State."""
        plain = set(self._values) - set(self._trackables())
        if plain != set(snapshot.values):
            raise ArgumentError(
                f"the stored state has the values {sorted(snapshot.values)}, but this State has {sorted(plain)}; use "
                "the same values"
            )

    # ------------------------------------------------------------------------------------------ what is in it

    def _trackables(self) -> dict[str, Any]:
        """Return the values that TensorFlow tracks, by name."""
        if "tensorflow" not in sys.modules:
            return {}
        from hopsml.training.tensorflow import state_variables

        return {name: value for name, value in self._values.items() if state_variables.is_trackable(name, value)}

    def _variables(self) -> dict[str, Any]:
        """Return the TensorFlow variables of all values."""
        trackables = self._trackables()
        if not trackables:
            return {}
        from hopsml.training.tensorflow import state_variables

        return state_variables.collect_variables(trackables)


def _opened(data: Sampler | Dataset) -> contextlib.AbstractContextManager[Sampler | BatchReader]:
    """Return a context manager for the batches of ``data``; raise ArgumentTypeError for other types."""
    if isinstance(data, Sampler):
        return contextlib.nullcontext(data)
    if not hasattr(data, "reader"):
        raise ArgumentTypeError(
            f"resume(): {data!r:.80} is a {type(data).__name__}, which has no position from which training can "
            "continue; pass a Sampler over the indices of its samples, or a data set of hopsml.data"
        )
    return contextlib.closing(data.reader())


def _pickled(name: str, value: Any) -> bytes:
    """Return a value pickled; raise ArgumentError with its name if it cannot be."""
    try:
        return pickle.dumps(value, protocol=5)
    except Exception as error:
        raise ArgumentError(
            f"State: the value '{name}' ({type(value).__name__}) cannot be committed: {type(error).__name__}: "
            f"{error}; store plain values instead, or remove it from the State"
        ) from error
