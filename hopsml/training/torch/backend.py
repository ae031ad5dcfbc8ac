"""Backend of torch.distributed over hopsml's own collective: ``init_process_group("hopsml")``, for tensors on CPUs.

One thread runs the operations one after another, in the order in which they were submitted, so that communication
overlaps with computation (DDP and FSDP rely on both). All members authenticate with the generation's secret before
any byte of data, and no other port is opened.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from hopsml.cluster.worker import collective_stats
from hopsml.core.versions import parse_version
from hopsml.errors import ArgumentError, CollectiveChanged
from hopsml.training import collective
from hopsml.training.torch.state_tensors import array_of, as_bytes, gather_tensors, sparse_sum

if TYPE_CHECKING:
    import numpy as np
    import torch

    from hopsml.collective.group import Group

NAME = "hopsml"
_INSTEAD = "experiment.torch(train, backend='gloo'), or hopsml submit --torch-backend gloo"
SMALL_BYTES = 1 << 16
_RIGID = (
    "its torch process group has a fixed number of members (DDP, FSDP and torch.distributed's operations count on it): "
    "a model of hopsml.torch.prepare() goes on with those that are left"
)
_registered = False


def register_backend() -> None:
    """Register the backend with torch.distributed, once for each process."""
    global _registered
    import torch.distributed as dist
    from torch._dynamo import trace_rules

    if not _registered:
        trace_rules.add(
            __name__
        )  # torch.compile must not compile functions here that C++ calls within a compiled model
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
        # From 2.15 on torch attaches its flight recorder to all groups but those of these backends, and requires a C++
        # group for it.
        own_recorder: set[str] = getattr(dist.distributed_c10d, "_FR_SELF_RECORDING_BACKENDS", set())
        own_recorder.add(NAME)
        _registered = True


def _create(options: Any, _: Any) -> Any:
    """Create a process group of all workers; raise ArgumentError for a part of them."""
    if options.group_size == 1:
        return _process_group()(0, 1, None)
    joined, prospect = collective.group(), collective.expected_rank_and_size()
    size = prospect[1] if prospect is not None else joined.size if joined is not None else 1
    if options.group_size != size:
        raise ArgumentError(
            f"new_group() of {options.group_size} of {size} ranks over backend='hopsml', which has one group of all; give "
            f"it backend='gloo', or take {_INSTEAD}"
        )
    return _process_group()(options.group_rank, size, joined)


class _Worker:
    """Thread that runs operations in order, from the first operation to the end of the process."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[tuple[Callable[[], Any], Any]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._pending = 0
        self._thread: threading.Thread | None = None

    def submit(self, task: Callable[[], Any], *, small: bool = False) -> Any:
        """Submit a task and return a torch future with the result of ``task``.

        A ``small`` task is run at once by the calling thread if no other is pending, because waking another thread
        would take longer than the task.
        """
        import torch

        future: Any = torch.futures.Future()
        with self._lock:
            at_once = small and not self._pending
            self._pending += not at_once
            if not at_once and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="hopsml-torch-communication", daemon=True)
                self._thread.start()
        if at_once:
            _carry_out(task, future)
        else:
            self._tasks.put((task, future))
        return future

    def call(self, task: Callable[[], Any]) -> Any:
        """Run ``task`` after all that were submitted before; return its value, or raise its error."""
        return task() if threading.current_thread() is self._thread else self.submit(task, small=True).wait()

    def _run(self) -> None:
        """Run the submitted tasks in order."""
        while True:
            _carry_out(*self._tasks.get())
            with self._lock:
                self._pending -= 1


def _carry_out(task: Callable[[], Any], future: Any) -> None:
    """Run a task and store its result or error in the future."""
    try:
        result = task()
    except BaseException as error:  # noqa: BLE001 raised by whoever waits for the future
        future.set_exception(error)
    else:
        future.set_result(result)


def _value_of(done: Any) -> Any:
    """Return the value of a completed future, or raise its error without a traceback."""
    try:
        return done.value()
    except BaseException as error:  # noqa: BLE001 raised to the code that waits
        raise error.with_traceback(None) from None  # C++ would put the frames into its error's text


@cache
def communication_thread() -> _Worker:
    """Return this process's communication thread, which from then on also orders ``hopsml.all_reduce`` and others."""
    worker = _Worker()
    collective.set_operation_runner(worker.call)
    return worker


@cache
def _process_group() -> type:
    """Return the process group class, created after torch is imported because its bases are torch's."""
    import torch
    import torch.distributed as dist

    # Before 2.7 C++ code does not keep the Python part of a handle, and waits forever once it is gone.
    torch_loses_handles = parse_version(torch.__version__) < (2, 7)
    unwaited: deque[Operation] = deque(maxlen=1000)

    class Operation(dist._Work):
        """Handle of an operation in progress."""

        def __init__(self, future: Any) -> None:
            super().__init__()
            self._future = future
            if torch_loses_handles:
                unwaited.append(self)

        def wait(self, timeout: Any = None) -> bool:
            self._release()
            self._future.wait()
            return True

        def get_future(self) -> Any:
            """Return a future for C++ code, which fails with a C++ error if the operation fails.

            C++ takes a Python future that holds an exception for a success with the exception as its result.
            """
            self._release()
            return self._future.then(_value_of)

        def _release(self) -> None:
            with contextlib.suppress(ValueError):
                unwaited.remove(self)

        def is_completed(self) -> bool:
            return bool(self._future.done())

        def is_success(self) -> bool:
            return self.is_completed() and not self._failed()

        def _failed(self) -> bool:
            try:
                self._future.value()
            except Exception:  # noqa: BLE001 only the presence of an error matters
                return True
            return False

    class CollectiveProcessGroup(dist.ProcessGroup):
        """Process group of torch.distributed over the group of the training workers."""

        def __init__(self, rank: int, size: int, group: Group | None) -> None:
            super().__init__(rank, size)
            self._name = ""
            self._group = group
            self._since = group.generation if group is not None else 0

        def getBackendName(self) -> str:
            return NAME

        def _set_group_name(self, name: str) -> None:
            self._name = name

        @property
        def group_name(self) -> str:
            return self._name

        @property
        def _device_types(self) -> list[torch.device]:
            """Device types of this group, by which ``torch.distributed.checkpoint`` finds a group for CPU tensors."""
            return [torch.device("cpu")]

        def _submit(self, task: Callable[[Group], Any], results: Any, moved: Sequence[torch.Tensor] = ()) -> Operation:
            """Submit ``task``, which is skipped if this worker is alone."""
            group = self._group

            def carry_out() -> Any:
                if group is not None:
                    collective.require_all_members(_RIGID)
                    collective_stats.record_framework_operation()
                    task(group)
                    if group.last_call_generation != self._since:
                        raise CollectiveChanged(f"a member is lost, and {_RIGID}")
                return results

            small = sum(one.numel() * one.element_size() for one in moved) <= SMALL_BYTES
            return Operation(communication_thread().submit(carry_out, small=small))

        # ---- operations, as torch.distributed calls them: lists of tensors, and an object of options

        def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Operation:
            reduction = _reduction(opts)

            def reduce(group: Group) -> None:
                for tensor in tensors:
                    if tensor.is_sparse:
                        _reduce_sparse(group, tensor, reduction)
                        continue
                    with array_of(tensor) as array:
                        group.all_reduce(array, reduction, out=array, name="torch all_reduce")

            return self._submit(reduce, list(tensors), tensors)

        def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Operation:
            return self.allreduce(tensors, opts)

        def reduce(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Operation:
            if self.rank() == opts.rootRank:
                return self.allreduce(tensors, opts)
            return self.allreduce([tensor.clone() for tensor in tensors], opts)

        def broadcast(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Operation:
            root = opts.rootRank if opts is not None else 0

            def send(group: Group) -> None:
                for tensor in tensors:
                    with as_bytes(tensor) as array:
                        group.broadcast(array, root, out=array, name="torch broadcast")

            return self._submit(send, list(tensors), tensors)

        def allgather(
            self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any = None
        ) -> Operation:
            def gather(group: Group) -> None:
                for into, tensor in zip(outputs, inputs, strict=True):
                    _fill(into, _gathered(group, tensor))

            if self._group is None:
                for into, tensor in zip(outputs, inputs, strict=True):
                    into[0].copy_(tensor)
            return self._submit(gather, [list(into) for into in outputs], inputs)

        def _allgather_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Operation:
            return self.allgather([list(output.view(self.size(), *tensor.shape))], [tensor], opts)

        def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, *opts: Any, **named: Any) -> Operation:
            return self._allgather_base(output, tensor)

        def allgather_into_tensor_coalesced(
            self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
        ) -> Operation:
            parts = [list(one.view(self.size(), *two.shape)) for one, two in zip(outputs, inputs, strict=True)]
            return self.allgather(parts, inputs, opts)

        def gather(
            self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any = None
        ) -> Operation:
            if self.rank() == opts.rootRank:
                return self.allgather(outputs, inputs)
            return self.allgather([[torch.empty_like(one) for _ in range(self.size())] for one in inputs], inputs)

        def scatter(
            self, outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]], opts: Any = None
        ) -> Operation:
            (output,), root = outputs, opts.rootRank
            whole = (
                torch.stack(list(inputs[0])) if self.rank() == root else output.new_empty((self.size(), *output.shape))
            )

            def send(group: Group) -> None:
                with as_bytes(whole) as array:
                    group.broadcast(array, root, out=array, name="torch scatter")
                output.copy_(whole[self.rank()])

            if self._group is None:
                output.copy_(whole[0])
            return self._submit(send, [output], [whole])

        def reduce_scatter(
            self, outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]], opts: Any = None
        ) -> Operation:
            (output,) = outputs
            return self._reduce_scatter_base(output, torch.stack(list(inputs[0])).reshape(-1), opts)

        def _reduce_scatter_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Operation:
            reduction, parts = _reduction(opts), tensor.reshape(self.size(), *output.shape)

            def reduce(group: Group) -> None:
                with array_of(parts) as array, array_of(output) as result:
                    group.reduce_scatter(array, reduction, out=result, name="torch reduce_scatter")

            if self._group is None:
                output.copy_(parts[0])
            return self._submit(reduce, [output], [tensor])

        def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Operation:
            return self._reduce_scatter_base(output, tensor, opts)

        def reduce_scatter_tensor_coalesced(
            self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
        ) -> Operation:
            works = [self._reduce_scatter_base(one, two, opts) for one, two in zip(outputs, inputs, strict=True)]
            return works[-1]  # operations run in order, so the last one ends last

        def alltoall(
            self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
        ) -> Operation:
            """Exchange parts by sending each of them to all members.

            Another backend is faster for many or large parts.
            """

            def exchange(group: Group) -> None:
                _all_to_all(group, outputs, inputs)

            if self._group is None:
                outputs[0].copy_(inputs[0])
            return self._submit(exchange, list(outputs), inputs)

        def alltoall_base(
            self, output: torch.Tensor, tensor: torch.Tensor, out_splits: Any, in_splits: Any, opts: Any = None
        ) -> Operation:
            parts = [
                list(one.split(list(sizes) or len(one) // self.size()))
                for one, sizes in ((output, out_splits), (tensor, in_splits))
            ]
            return self.alltoall(*parts)

        def send(self, tensors: Any, rank: int, tag: int = 0) -> Operation:
            raise ArgumentError(
                f"send and recv over backend='hopsml', which has collective operations alone; take {_INSTEAD}"
            )

        recv = send

        def barrier(self, opts: Any = None) -> Operation:
            return self._submit(lambda group: group.barrier("torch barrier"), [])

    return CollectiveProcessGroup


def _reduce_sparse(group: Group, tensor: torch.Tensor, reduction: str) -> None:
    """Reduce a sparse tensor in place by "sum" or "mean"."""
    import torch

    if reduction not in ("sum", "mean"):
        raise ArgumentError(
            f"the reduction {reduction} of sparse tensors over backend='hopsml', which has SUM and AVG for them"
        )
    own = tensor.detach().coalesce()
    counts = gather_tensors(group, torch.tensor([own._nnz()]), "torch all_reduce, sizes of sparse tensors")[
        :, 0
    ].tolist()
    _, total = sparse_sum(group, own, counts, "torch all_reduce, sparse")
    with torch.no_grad():  # a change of a detached tensor would leave this tensor's entries unchanged
        tensor.copy_(total / len(counts) if reduction == "mean" else total)


def _all_to_all(group: Group, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> None:
    """Send part i of ``inputs``, of any size, to member i; ``outputs`` receives the members' parts for this one."""
    import torch

    own = torch.cat([one.detach().contiguous().reshape(-1).view(torch.uint8) for one in inputs])
    sizes = gather_tensors(
        group, torch.tensor([one.numel() * one.element_size() for one in inputs]), "torch all_to_all, sizes"
    )
    padded = own.new_zeros(int(sizes.sum(1).max()))
    padded[: own.numel()] = own
    for output, row, of_member in zip(outputs, gather_tensors(group, padded, "torch all_to_all"), sizes, strict=True):
        begin, size = int(of_member[: group.rank].sum()), int(of_member[group.rank])
        if size != output.numel() * output.element_size():
            raise ArgumentError(
                f"all_to_all: a part of {size} bytes for rank {group.rank}, where it has room for "
                f"{output.numel() * output.element_size()}: sizes of all members' parts have to fit"
            )
        output.detach().copy_(row[begin : begin + size].clone().view(output.dtype).view(output.shape))


def _gathered(group: Group, tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return the bytes of all members' tensors, one row for each."""
    with as_bytes(tensor) as array:
        return group.all_gather(array, name="torch all_gather")


def _fill(into: Sequence[torch.Tensor], rows: np.ndarray[Any, Any]) -> None:
    """Copy rows of bytes into tensors."""
    for tensor, row in zip(into, rows, strict=True):
        with as_bytes(tensor) as array:
            array[...] = row


def _reduction(opts: Any) -> str:
    """Return the collective's name of a torch.distributed reduction; raise ArgumentError if there is none."""
    import torch.distributed as dist

    operation = opts.reduceOp if opts is not None else dist.ReduceOp.SUM
    known_names = {
        dist.ReduceOp.SUM: "sum",
        dist.ReduceOp.AVG: "mean",
        dist.ReduceOp.MIN: "min",
        dist.ReduceOp.MAX: "max",
    }
    for known, name in known_names.items():
        if operation == known:
            return name
    others = ("PRODUCT", "BAND", "BOR", "BXOR", "PREMUL_SUM")
    name = next((one for one in others if operation == getattr(dist.ReduceOp, one)), str(operation))
    raise ArgumentError(f"the reduction {name} over backend='hopsml', which has SUM, AVG, MIN and MAX; take {_INSTEAD}")
