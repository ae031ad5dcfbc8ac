"""hopsml's collective operations for TensorFlow, among the members of this process's present group.

They are in a C++ library (``native/tensorflow``) built for one version of TensorFlow. A change of the group's members
changes nothing in a function that was traced before: rank and size are read when the function runs.

All members make the same calls in the same order. Within a process every operation uses one resource, so that
TensorFlow preserves the order of the program, through functions, branches and loops. The members' calls are compared,
and if they differ all members get InvalidArgumentError instead of a wrong sum. The loss of a member raises
UnavailableError, a member that takes no part in time DeadlineExceededError, both with its rank; a group that was
ended here raises AbortedError.

The result of a transfer (``Transfer``) is available now or in the next step. Held transfers are sent from the beginning
of the next ``strategy.run`` on, so that other reductions of a step, such as those of its metrics, come before them and
need not wait. Transfers of an earlier generation are dropped, because a member that was not in it has none.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hopsml.errors import ArgumentError, UnsupportedVersion
from hopsml.training import collective

Reduction = Literal["sum", "mean", "min", "max"]
Wire = Literal["same", "float16", "bfloat16"]

LIBRARIES = Path(__file__).parents[1] / "lib"
PACK_BYTES = 4 << 20
_BUILT_FOR = b"hopsml was built for TensorFlow "  # followed by the version, in the library
_loading = threading.Lock()


def all_reduce(
    tensors: Sequence[Any],
    reduction: Reduction = "sum",
    wire: Wire = "same",
    label: str = "",
    pack_bytes: int = PACK_BYTES,
) -> list[Any]:
    """Return the reduction of each tensor over the group, equal to the last bit on all members.

    Args:
        tensors: float32, 64, 16, bfloat16, int32 or int64, of the same shapes on all members; types may be mixed.
        reduction: "mean" divides by the size of the group at the time of the call.
        wire: type in which float32 is sent; sums are computed in float32 all the same.
        label: description of the call for messages.
        pack_bytes: small tensors are sent together, up to this number of bytes.
    """
    _refuse_compiled()
    if _is_alone():
        return [_itself(tensor) for tensor in tensors]
    library = load_operations()
    by_type: dict[Any, list[int]] = {}
    for position, tensor in enumerate(tensors):
        by_type.setdefault(tensor.dtype, []).append(position)
    reduced: list[Any] = [None] * len(tensors)
    for dtype, positions in by_type.items():
        with _on_host():
            results = library.hopsml_all_reduce(
                order=_order(),
                values=[tensors[position] for position in positions],
                reduction=reduction,
                wire=wire if dtype.name == "float32" else "same",
                pack_bytes=pack_bytes,
                label=label,
                names=[_name_of(tensors[position]) for position in positions],
            )
        for position, result in zip(positions, results, strict=True):
            reduced[position] = result
    return reduced


def all_gather(value: Any, label: str = "") -> Any:
    """Return the members' rows concatenated in rank order; members may have different numbers of rows."""
    return gather_with_size(value, label)[0]


def gather_with_size(value: Any, label: str = "") -> tuple[Any, Any]:
    """Return the members' rows as ``all_gather`` does, and the number of members that they are from."""
    import tensorflow as tf

    _refuse_compiled()
    if _is_alone():
        return _itself(value), tf.constant(1)
    library = load_operations()
    with _on_host():
        found = library.hopsml_all_gather(order=_order(), value=value, label=label)
        return found.gathered, tf.shape(found.rows)[0]


def broadcast(value: Any, root: int = 0, label: str = "") -> Any:
    """Return the value of the member with rank ``root``; type and shape are the same on all members."""
    _refuse_compiled()
    if _is_alone():
        return _itself(value)
    library = load_operations()
    with _on_host():
        return library.hopsml_broadcast(order=_order(), value=value, root=root, label=label)


def rank() -> Any:
    """Return a tensor with the rank of this process at the time when it is computed."""
    library = load_operations()
    with _on_host():
        return library.hopsml_group().rank


def size() -> Any:
    """Return a tensor with the number of members at the time when it is computed."""
    library = load_operations()
    with _on_host():
        return library.hopsml_group().size


def rank_and_size() -> tuple[int, int]:
    """Return the present rank and size as numbers; raise FailedPreconditionError if this process is in no group."""
    import tensorflow as tf

    with tf.init_scope():
        group = load_operations().hopsml_group()
        return int(group.rank), int(group.size)


def load_operations() -> Any:
    """Return the operations' Python functions; raise UnsupportedVersion if this TensorFlow has no library."""
    with _loading:
        return _loaded()


@functools.cache
def _loaded() -> Any:
    """Load the library and register the operations' gradients."""
    import tensorflow as tf

    path = library_path(tf.__version__)
    check_library(path, tf.__version__)
    library = tf.load_op_library(str(path))
    _register_gradients()
    return library


def library_path(version: str) -> Path:
    """Return the path of the library for a version of TensorFlow: one for all patches of a minor version."""
    return LIBRARIES / f"libhopsml_tensorflow-{_minor(version)}.so"


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def check_library(path: Path, version: str) -> None:
    """Raise UnsupportedVersion unless ``path`` is a library for the minor version of TensorFlow ``version``.

    Loading a library for another version may terminate the process.
    """
    remedy = (
        "build it with `make setup` in a clone, or install a wheel that `make wheel` has made there, "
        "or train with implementation='tensorflow'"
    )
    if not path.is_file():
        others = sorted(LIBRARIES.glob("libhopsml_tensorflow-*.so"))
        found = ", ".join(other.name for other in others) or "none"
        raise UnsupportedVersion(
            f"there are no collective operations of hopsml for TensorFlow {version} (found: {found}); {remedy}"
        )
    content = path.read_bytes()
    begin = content.find(_BUILT_FOR)
    built_for = content[begin + len(_BUILT_FOR) :].split(b"\0", 1)[0].decode() if begin >= 0 else "an unknown version"
    if built_for != _minor(version):
        raise UnsupportedVersion(f"{path.name} was built for TensorFlow {built_for}, this is {version}; {remedy}")


@functools.cache
def _order_variable() -> Any:
    """Return the variable whose resource orders all operations."""
    import tensorflow as tf
    from tensorflow.python.ops import resource_variable_ops

    with tf.init_scope(), tf.device("CPU:0"):
        # Not tf.Variable, which a surrounding strategy scope would turn into a distributed variable.
        return resource_variable_ops.ResourceVariable(0, trainable=False, name="hopsml_order")


def _on_host() -> Any:
    """Place operations on the CPU, which has their only kernels; tensors on a GPU are copied."""
    import tensorflow as tf

    return tf.device("CPU:0")


def _order() -> Any:
    """Return the resource that all operations use."""
    return _order_variable().handle


def _name_of(tensor: Any) -> str:
    """Return a tensor's name for messages; "" when eager."""
    import tensorflow as tf

    return "" if tf.executing_eagerly() else str(tensor.name)


def _is_alone() -> bool:
    """Return True if a call is not the group's: on a joining worker that has not reached the others' next batch."""
    import tensorflow as tf

    return collective.makes_separate_calls() and tf.executing_eagerly()


def _itself(value: Any) -> Any:
    """Return a copy of a value, the result of a call made alone."""
    import tensorflow as tf

    return tf.identity(value)


def _refuse_compiled() -> None:
    """Raise ArgumentError inside a function that XLA compiles."""
    import tensorflow as tf
    from tensorflow.python.ops import control_flow_util

    if not tf.executing_eagerly() and control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise ArgumentError(
            "a function with jit_compile=True reduces over the group, and XLA has no such operation: leave jit_compile out "
            "(for Keras: compile(..., jit_compile=False)), or compile only the part that computes gradients"
        )


def _register_gradients() -> None:
    """Register the operations' gradients with TensorFlow."""
    import tensorflow as tf

    @tf.RegisterGradient("HopsmlAllReduce")
    def of_all_reduce(op: Any, *gradients: Any) -> list[Any]:
        reduction = op.get_attr("reduction").decode()
        if reduction not in ("sum", "mean"):
            raise ArgumentError(f"the {reduction} over the group has no gradient; sum and mean have one")
        return [None, *all_reduce(list(gradients), reduction, op.get_attr("wire").decode(), "gradients of a reduction")]

    @tf.RegisterGradient("HopsmlAllGather")
    def of_all_gather(op: Any, gradient: Any, _: Any) -> list[Any]:
        (summed,) = all_reduce([gradient], label="gradients of a gathered value")
        rows = op.outputs[1]
        begin = tf.reduce_sum(rows[: rank()])
        return [None, summed[begin : begin + rows[rank()]]]

    @tf.RegisterGradient("HopsmlBroadcast")
    def of_broadcast(op: Any, gradient: Any) -> list[Any]:
        (summed,) = all_reduce([gradient], label="gradients of a broadcast value")
        return [None, tf.where(tf.equal(rank(), op.get_attr("root")), summed, tf.zeros_like(summed))]


LABEL = "gradients"


@dataclass(frozen=True)
class Transfer:
    """One collective call: the sums of tensors of one type, or the rows of one tensor."""

    kind: Literal["sum", "rows"]
    tensors: list[Any]
    wire: Wire = "same"


def make_transfers(transfers: Sequence[Transfer]) -> list[list[Any]]:
    """Execute the transfers (sums or gathers over the group) and return the tensors that each one received."""
    return [
        all_reduce(one.tensors, "sum", one.wire, LABEL) if one.kind == "sum" else [all_gather(one.tensors[0], LABEL)]
        for one in transfers
    ]


def hold_transfers(slot: str, transfers: Sequence[Transfer]) -> None:
    """Register transfers to be performed during the next step.

    Args:
        slot: name for the results, unique within the process.
        transfers: the transfers.
    """
    library = load_operations()
    for number, one in enumerate(transfers):
        place = {"order": _order(), "slot": f"{slot}/{number}", "label": LABEL}
        with _on_host():
            if one.kind == "sum":
                names = [_name_of(tensor) for tensor in one.tensors]
                library.hopsml_hold_all_reduce(values=one.tensors, wire=one.wire, names=names, **place)
            else:
                library.hopsml_hold_all_gather(value=one.tensors[0], **place)


def release_transfers() -> None:
    """Start all held transfers, at the beginning of the step during which they are sent."""
    with _on_host():
        load_operations().hopsml_release(order=_order())


def collect_transfers(slot: str, types: Sequence[Sequence[Any]]) -> tuple[list[list[Any]], Any]:
    """Wait for the results of the transfers held last, and return them.

    Args:
        slot: the slot given to ``hold_transfers``.
        types: types of the results, for each transfer.

    Returns:
        The results of each transfer, and a scalar tensor that is True if there were any.
    """
    import tensorflow as tf

    library = load_operations()
    results, there = [], tf.constant(True)
    for number, of_one in enumerate(types):
        with _on_host():
            found = library.hopsml_collect(order=_order(), slot=f"{slot}/{number}", types=list(of_one))
        results.append(list(found.results))
        there = tf.logical_and(there, found.there)
    return results, there


def has_transfers(slot: str) -> bool:
    """Return True if there are results to collect now."""
    return bool(load_operations().hopsml_holds(slot=f"{slot}/0"))
