"""Reduction of optimizers' gradients over the group, by the strategy's settings.

Only values that an optimizer reduces are handled here; metrics, statistics, initial values and a user's own calls are
reduced as they are. State is stored for each list of variables that comes with gradients: another list, or another
kind of gradient for one of them, has separate buffers.
"""

from __future__ import annotations

import atexit
import itertools
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from hopsml.cluster.shared.spec import DEFAULT_POWERSGD_RANK, DEFAULT_TOPK, GradientSettings
from hopsml.cluster.worker import collective_stats
from hopsml.training.tensorflow.distribution import collective_ops
from hopsml.training.tensorflow.distribution.collective_ops import Transfer, Wire
from hopsml.training.tensorflow.distribution.compression import (
    Adasum,
    Compressor,
    NoCompression,
    PowerSgd,
    SparseRows,
    TopK,
    is_compressible,
    local_variable,
)

_WIRES: dict[str | None, Wire] = {"fp16": "float16", "bf16": "bfloat16"}
_slots = itertools.count()

Gradients = list[Any]
Apply = Callable[[Gradients], object]  # called with the group's gradients, of the variables of the call
Skip = Callable[[], object]
MakeTransfers = Callable[[Sequence[Transfer]], list[list[Any]]]


class ApplyTo(Protocol):
    """Function called with the group's gradients and their variables."""

    def __call__(self, gradients: Gradients, of: Sequence[Any]) -> object:
        """Apply ``gradients`` to the variables ``of``."""
        ...


def transfers_of_strategy(transfers: Sequence[Transfer]) -> list[list[Any]]:
    """Execute the transfers by the collectives of the strategy whose replica calls this."""
    replica = tf.distribute.get_replica_context()

    def received(one: Transfer) -> list[Any]:
        if one.kind == "rows":
            return [replica.all_gather(one.tensors[0], axis=0)]
        kinds = [tensor.dtype for tensor in one.tensors]
        sent = one.tensors if one.wire == "same" else [tf.cast(tensor, one.wire) for tensor in one.tensors]
        sums = replica.all_reduce(tf.distribute.ReduceOp.SUM, sent)
        return [tf.cast(tensor, kind) for tensor, kind in zip(sums, kinds, strict=True)]

    return [received(one) for one in transfers]


class GradientExchange:
    """Reduction of the gradients of all optimizers under one strategy."""

    def __init__(
        self,
        settings: GradientSettings,
        changes: bool,
        make_transfers: MakeTransfers = collective_ops.make_transfers,
    ) -> None:
        """Create the exchange for a strategy.

        Args:
            settings: the strategy's settings.
            changes: True if workers may join the group, which lack the state that others retain between steps.
            make_transfers: carries out the group's operations.
        """
        self.settings, self._changes, self._make_transfers = settings, changes, make_transfers
        self._lists: dict[tuple[Any, ...], _List] = {}
        self._of_optimizer: weakref.WeakKeyDictionary[Any, dict[int, _List]] = weakref.WeakKeyDictionary()
        self._held: list[_Held] = []
        if self.withholds_gradients:
            atexit.register(self._warn)

    @property
    def withholds_gradients(self) -> bool:
        """True if some steps apply nothing, or gradients other than those they were given."""
        return self.settings.double_buffering or self.settings.accumulate > 1

    def reduce(self, pairs: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Return pairs of gradient and variable, with gradients summed over the group; None stays None."""
        known = [pair for pair in pairs if pair[0] is not None]
        if not known:
            return list(pairs)
        gradients, variables = zip(*known, strict=True)
        reduced = iter(self._list(gradients, variables).reduce(list(gradients)))
        return [(None if gradient is None else next(reduced), variable) for gradient, variable in pairs]

    def step(
        self, optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any], apply: Apply, skip: Skip
    ) -> None:
        """Do one step of an optimizer: call ``apply`` with reduced gradients, or ``skip`` if there are none yet."""
        one = self._list(gradients, variables)
        self._of_optimizer.setdefault(optimizer, {})[id(one)] = one

        def travel(whole: Gradients) -> None:
            if not self.settings.double_buffering:
                apply(one.reduce(whole))
                return
            one.previous(apply, skip)
            one.begin(whole)

        if self.settings.accumulate == 1:
            travel(list(gradients))
            return
        one.add(gradients)
        complete = tf.equal(one.steps, self.settings.accumulate)
        tf.cond(complete, _true(lambda: travel(one.taken())), _true(skip))

    def has_ever_exchanged(self, optimizer: Any) -> bool:
        """Return True if an optimizer has passed gradients in any step; on a joining worker, one may never have done so."""
        return optimizer in self._of_optimizer

    def apply_withheld(self, optimizer: Any, apply: ApplyTo) -> None:
        """Reduce and apply the gradients that accumulation or double buffering has withheld so far for an optimizer.

        Called eagerly, outside of ``tf.function``, by all workers.
        """
        for one in list(self._of_optimizer.get(optimizer, {}).values()):
            apply_to = partial(apply, of=one.variables())
            if self.settings.accumulate > 1 and one.has_accumulated():
                whole = one.taken()
                if self.settings.double_buffering:
                    one.previous(apply_to, lambda: None)
                    one.begin(whole)
                else:
                    apply_to(one.reduce(whole))
            if self.settings.double_buffering:
                one.previous(apply_to, lambda: None)

    def reset(self) -> None:
        """Reset the state to that before the first step; called outside of functions.

        No gradients wait then, and compression has no remainders.
        """
        for one in self._lists.values():
            one.forget()

    def _list(self, gradients: Sequence[Any], variables: Sequence[Any]) -> _List:
        """Return the buffers for these variables and kinds of gradients, created on first use."""
        if self._make_transfers is collective_ops.make_transfers:  # others record it themselves
            collective_stats.record_reduction(len(gradients), 1, 0, "collective")
        collective_stats.record_settings(self.settings.description)
        kinds = tuple(_kind(gradient) for gradient in gradients)
        key = (tuple(variable._unique_id for variable in variables), kinds)
        if key not in self._lists:
            with tf.init_scope():
                self._lists[key] = _List(self.settings, kinds, variables, self._changes, self._make_transfers)
            self._held.append(self._lists[key].held)
            # The buffers of a model's gradients are released with the model.
            weakref.finalize(variables[0], self._lists.pop, key, None)
        return self._lists[key]

    def _warn(self) -> None:
        """Print at the end of the process that reduced gradients were not applied, if there are any."""
        if any(one.holds_something() for one in self._held):
            print(
                f"hopsml: gradients of the last step were not applied ({self.settings.description}): call "
                "hopsml.tensorflow.finish_updates(optimizer) after the loop, in all workers; fit() does it by itself"
            )


Kind = tuple[str, Any, Any]  # dense or sparse, type, type of the indices


def _kind(gradient: Any) -> Kind:
    """Return the kind of a gradient."""
    if isinstance(gradient, tf.IndexedSlices):
        return "sparse", gradient.dtype, gradient.indices.dtype
    return "dense", gradient.dtype, None


class _Held:
    """Remaining state of a list of gradients at the end of the process, when its variables may be deleted."""

    def __init__(self, slot: str) -> None:
        self.slot = slot
        self.steps: Any = None

    def holds_something(self) -> bool:
        """Return True if gradients that were reduced, or wait to be, were not applied."""
        return (self.steps is not None and int(self.steps) > 0) or collective_ops.has_transfers(f"{self.slot}/0")


class _List:
    """Gradients of a fixed list of variables, each of a fixed kind."""

    def __init__(
        self,
        settings: GradientSettings,
        kinds: Sequence[Kind],
        variables: Sequence[Any],
        changes: bool,
        make_transfers: MakeTransfers,
    ) -> None:
        self._make_transfers = make_transfers
        self._variables = [weakref.ref(variable) for variable in variables]
        self._changes = changes
        self.held = _Held(f"gradients-{next(_slots)}")
        self._ways = _ways(settings, kinds, variables, changes)
        self.steps: Any = None
        if settings.accumulate > 1:
            self.steps = self.held.steps = local_variable(0, "steps")
            self._sums = [_sum(kind, variable) for kind, variable in zip(kinds, variables, strict=True)]

    def variables(self) -> list[Any]:
        """Return the variables of these gradients."""
        return [reference() for reference in self._variables]

    def forget(self) -> None:
        """Reset the state; transfers in progress belong to another generation and are dropped by themselves."""
        for way, _ in self._ways:
            way.reset()
        if self.steps is not None:
            self.steps.assign(0)
            for one in self._sums:
                one.forget()

    # ---- transfers

    def reduce(self, gradients: Gradients) -> Gradients:
        """Return the group's gradients, reduced now."""
        return self._each(
            lambda way, given: way.combine_received(self._make_transfers(way.make_transfers(given))), gradients
        )

    def begin(self, gradients: Gradients) -> None:
        """Start the reduction of gradients during the next step."""

        def hold(way: Compressor, given: Gradients) -> Gradients:
            collective_ops.hold_transfers(f"{self.held.slot}/{self._number(way)}", way.make_transfers(given))
            return given

        self._each(hold, gradients)

    def previous(self, apply: Apply, skip: Skip) -> None:
        """Apply the gradients whose reduction was started last; call ``skip`` if there are none."""
        received, there = [], tf.constant(True)
        for way, _ in self._ways:
            of_way, has = collective_ops.collect_transfers(
                f"{self.held.slot}/{self._number(way)}", way.received_types()
            )
            received.append(of_way)
            there = tf.logical_and(there, has)

        def receive_and_apply() -> None:
            found: Gradients = [None] * len(self._variables)
            for (way, positions), of_way in zip(self._ways, received, strict=True):
                for position, gradient in zip(positions, way.combine_received(of_way), strict=True):
                    found[position] = gradient
            apply(found)

        tf.cond(there, _true(receive_and_apply), _true(skip))

    def _each(self, call: Callable[[Compressor, Gradients], Gradients], gradients: Gradients) -> Gradients:
        """Call a function for each compression method and its gradients; return the results in the original order."""
        results: Gradients = [None] * len(gradients)
        for way, positions in self._ways:
            given = [gradients[position] for position in positions]
            for position, result in zip(positions, call(way, given), strict=True):
                results[position] = result
        return results

    def _number(self, way: Compressor) -> int:
        """Return the index of a compression method."""
        return next(number for number, (one, _) in enumerate(self._ways) if one is way)

    # ---- accumulation of several steps

    def add(self, gradients: Sequence[Any]) -> None:
        """Add one step's gradients to the accumulated ones; if a member has accumulated none, all drop theirs."""
        goes_on = tf.constant(True)
        if self._changes:
            goes_on = tf.equal(self.steps, self._steps_of_all())
        for one, gradient in zip(self._sums, gradients, strict=True):
            one.add(gradient, goes_on)
        self.steps.assign(tf.where(goes_on, self.steps, 0) + 1)

    def _steps_of_all(self) -> Any:
        """Return the smallest number of accumulated steps of any member."""
        return collective_ops.all_reduce([self.steps.read_value()], "min", label="steps of all")[0]

    def taken(self) -> Gradients:
        """Return the mean of the accumulated gradients, which is that of their batches as one, and reset them."""
        steps = self.steps.read_value()
        means = [one.taken(steps) for one in self._sums]
        with tf.control_dependencies([steps]):
            self.steps.assign(0)
        return means

    def has_accumulated(self) -> bool:
        """Return True if all members have accumulated gradients that wait to be reduced."""
        return int(self._steps_of_all() if self._changes else self.steps) > 0


class _DenseSum:
    """Sum of a variable's dense gradients over some steps."""

    def __init__(self, variable: Any, dtype: Any) -> None:
        self._sum = local_variable(tf.zeros(variable.shape, dtype), "sum")

    def add(self, gradient: Any, goes_on: Any) -> None:
        """Add a gradient to the sum; restart from zero unless ``goes_on``."""
        self._sum.assign(tf.where(goes_on, self._sum, tf.zeros_like(self._sum)) + gradient)

    def forget(self) -> None:
        """Set the sum to zero."""
        self._sum.assign(tf.zeros_like(self._sum))

    def taken(self, steps: Any) -> Any:
        """Return the mean over ``steps`` and reset the sum."""
        mean = self._sum / tf.cast(steps, self._sum.dtype)
        with tf.control_dependencies([mean]):
            self._sum.assign(tf.zeros_like(self._sum))
        return mean


class _SparseSum:
    """Concatenated rows of a variable's sparse gradients over some steps."""

    def __init__(self, variable: Any, dtype: Any, index_type: Any) -> None:
        self._shape = variable.shape
        self._values = _growing(tf.zeros([0, *self._shape[1:]], dtype))
        self._indices = _growing(tf.zeros([0], index_type))

    def add(self, gradient: Any, goes_on: Any) -> None:
        """Append a gradient's rows; restart without rows unless ``goes_on``."""
        for kept, given in ((self._values, gradient.values), (self._indices, gradient.indices)):
            before = kept.read_value()
            before = before[: tf.where(goes_on, tf.shape(before)[0], 0)]
            kept.assign(tf.concat([before, given], 0))

    def forget(self) -> None:
        """Remove all rows of earlier steps."""
        self._values.assign(self._values.read_value()[:0])
        self._indices.assign(self._indices.read_value()[:0])

    def taken(self, steps: Any) -> Any:
        """Return the mean over ``steps`` and remove the rows."""
        values, indices = self._values.read_value(), self._indices.read_value()
        mean = values / tf.cast(steps, values.dtype)
        with tf.control_dependencies([mean, indices]):
            self._values.assign(values[:0])
            self._indices.assign(indices[:0])
        return tf.IndexedSlices(mean, indices, tf.constant(list(self._shape), indices.dtype))


def _sum(kind: Kind, variable: Any) -> _DenseSum | _SparseSum:
    """Return the accumulator for a kind of gradient."""
    form, dtype, index_type = kind
    return _DenseSum(variable, dtype) if form == "dense" else _SparseSum(variable, dtype, index_type)


def _growing(value: Any) -> Any:
    """Return a local variable whose number of rows may change."""
    with tf.init_scope(), tf.device("CPU:0"):
        shape = tf.TensorShape([None, *value.shape[1:]])
        return resource_variable_ops.ResourceVariable(value, trainable=False, shape=shape, name="hopsml_rows")


def _ways(
    settings: GradientSettings, kinds: Sequence[Kind], variables: Sequence[Any], changes: bool
) -> list[tuple[Compressor, list[int]]]:
    """Return the compression methods for a list of gradients, with the positions that each handles."""
    wire = _WIRES.get(settings.compression, "same")
    dense: dict[Any, list[int]] = {}
    found: list[tuple[Compressor, list[int]]] = []
    compressed: list[int] = []
    rank = (settings.powersgd_rank or DEFAULT_POWERSGD_RANK) if settings.compression == "powersgd" else None
    for position, ((form, dtype, index_type), variable) in enumerate(zip(kinds, variables, strict=True)):
        if form == "sparse":
            found.append((SparseRows(dtype, index_type, variable.shape), [position]))
        elif settings.compression in ("topk", "powersgd") and is_compressible(variable, dtype, rank):
            compressed.append(position)
        else:
            dense.setdefault(dtype, []).append(position)
    if compressed:
        of_them = [variables[position] for position in compressed]
        if rank is None:
            found.append((TopK(of_them, settings.topk or DEFAULT_TOPK), compressed))
        else:
            found.append((PowerSgd(of_them, rank, changes), compressed))
    for dtype, positions in dense.items():
        of_type = [variables[position] for position in positions]
        adaptive = settings.reduction == "adasum" and dtype.is_floating
        found.append(((Adasum if adaptive else NoCompression)(of_type, dtype, wire), positions))
    return found


def _true(call: Callable[[], object]) -> Callable[[], Any]:
    """Wrap a call as a branch of a condition; all branches return the same kind of value."""

    def branch() -> Any:
        call()
        return tf.constant(True)

    return branch
