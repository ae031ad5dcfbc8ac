"""Cases for each operation of torch.distributed, run by two workers over hopsml's backend and over gloo."""

from __future__ import annotations

from typing import Any


def play(folder: str, only: list[str] | None = None) -> dict[str, Any]:
    """Run the cases, and return the result or the error of each on each rank."""
    import contextlib

    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as functional
    import torch.distributed.nn.functional as differentiable
    import torch.distributed.optim
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    from torch.distributed.algorithms.join import Join
    from torch.nn.parallel import DistributedDataParallel

    import hopsml

    rank, other = dist.get_rank(), 1 - dist.get_rank()

    def of(value: float, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.arange(1, 1 + torch.Size(shape or (4,)).numel()).to(dtype).view(*(shape or (4,))) * value

    def made(operation: Any, *given: Any, **named: Any) -> Any:
        operation(*given, **named)
        return given[0]

    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return plain(
                value.to_dense()
                if value.is_sparse
                else torch.view_as_real(value)
                if value.is_complex()
                else value.tolist()
            )
        if isinstance(value, float):
            return round(value, 4)
        if isinstance(value, dict):
            return {str(key): plain(one) for key, one in value.items()}
        return [plain(one) for one in value] if isinstance(value, list | tuple) else value

    cases: dict[str, Any] = {}

    def case(function: Any) -> Any:
        cases[function.__name__] = function
        return function

    # ---------------------------------------------------------------------------------------- operations

    for name in ("SUM", "PRODUCT", "MIN", "MAX", "AVG"):
        cases[f"all_reduce {name}"] = lambda name=name: made(
            dist.all_reduce, of(rank + 1), getattr(dist.ReduceOp, name)
        )
    for name in ("BAND", "BOR"):
        cases[f"all_reduce {name}"] = lambda name=name: made(
            dist.all_reduce, of(rank + 1, dtype=torch.int64), getattr(dist.ReduceOp, name)
        )
    for kind in (torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.uint8, torch.complex64):
        cases[f"all_reduce {kind}"] = lambda kind=kind: made(dist.all_reduce, of(rank + 1, dtype=kind))
    cases["all_reduce of nothing"] = lambda: made(dist.all_reduce, torch.empty(0))
    cases["all_reduce of a scalar"] = lambda: made(dist.all_reduce, torch.tensor(float(rank)))
    cases["all_reduce strided"] = lambda: made(dist.all_reduce, of(rank + 1, 2, 3).t())
    cases["broadcast strided"] = lambda: made(dist.broadcast, of(rank + 1, 2, 3).t(), 1)
    cases["reduce"] = lambda: made(dist.reduce, of(rank + 1), 1) if rank else dist.reduce(of(rank + 1), 1)

    @case
    def all_reduce_sparse() -> Any:
        x = torch.sparse_coo_tensor([[rank, 3]], [1.0, 2.0], (5,))
        dist.all_reduce(x)
        return x

    @case
    def all_gather() -> Any:
        out = [torch.empty(2, 2) for _ in range(2)]
        dist.all_gather(out, of(rank + 1, 2, 2))
        return out

    @case
    def all_gather_into_tensor() -> Any:
        return made(dist.all_gather_into_tensor, torch.empty(4, 2), of(rank + 1, 2, 2))

    @case
    def gather() -> Any:
        out = [torch.empty(3) for _ in range(2)] if rank == 1 else None
        dist.gather(of(rank + 1, 3), out, dst=1)
        return out

    @case
    def scatter() -> Any:
        return made(dist.scatter, torch.empty(3), [of(5, 3), of(7, 3)] if rank == 1 else None, src=1)

    @case
    def reduce_scatter() -> Any:
        return made(dist.reduce_scatter, torch.empty(3), [of(rank + 1, 3), of(rank + 2, 3)])

    @case
    def reduce_scatter_tensor() -> Any:
        return made(dist.reduce_scatter_tensor, torch.empty(2), of(rank + 1, 4))

    @case
    def all_to_all() -> Any:
        out = [torch.empty(2), torch.empty(2)]
        dist.all_to_all(out, [of(10 * rank + 1, 2), of(10 * rank + 2, 2)])
        return out

    @case
    def all_to_all_single() -> Any:
        return made(dist.all_to_all_single, torch.empty(4), of(rank + 1, 4))

    @case
    def all_to_all_single_of_unequal_parts() -> Any:
        sizes = [1, 2] if rank == 0 else [2, 1]
        into = [1, 2] if rank == 0 else [2, 1]
        return made(dist.all_to_all_single, torch.empty(3), of(rank + 1, 3), into, sizes)

    @case
    def send_and_recv() -> Any:
        x = of(rank + 1)
        dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
        return x

    @case
    def isend_and_irecv() -> Any:
        x = of(rank + 1)
        (dist.isend(x, 1) if rank == 0 else dist.irecv(x, 0)).wait()
        return x

    @case
    def batch_isend_irecv() -> Any:
        x = torch.empty(4)
        pair = [dist.P2POp(dist.isend, of(rank + 1), other), dist.P2POp(dist.irecv, x, other)]
        for work in dist.batch_isend_irecv(pair):
            work.wait()
        return x

    @case
    def objects() -> Any:
        everything: list[Any] = [None, None]
        dist.all_gather_object(everything, {"rank": rank})
        at_one: list[Any] | None = [None, None] if rank == 1 else None
        dist.gather_object(rank, at_one, dst=1)
        sent: list[Any] = ["text", 2] if rank == 1 else [None, None]
        dist.broadcast_object_list(sent, src=1)
        mine: list[Any] = [None]
        dist.scatter_object_list(mine, ["a", "b"] if rank == 0 else None, src=0)
        return [everything, at_one, sent, mine]

    @case
    def objects_sent() -> Any:
        sent: list[Any] = ["text"] if rank == 0 else [None]
        dist.send_object_list(sent, 1) if rank == 0 else dist.recv_object_list(sent, 0)
        return sent

    @case
    def asynchronous() -> Any:
        x, y, out = of(rank + 1), of(rank + 1), [torch.empty(4), torch.empty(4)]
        works = [
            dist.all_reduce(x, async_op=True), dist.broadcast(y, 1, async_op=True),
            dist.all_gather(out, of(rank), async_op=True), dist.barrier(async_op=True),
        ]  # fmt: skip
        for work in works:
            work.wait()
        return [x, y, out, [work.is_completed() for work in works]]

    @case
    def futures() -> Any:
        x = of(rank + 1)
        done = dist.all_reduce(x, async_op=True).get_future().then(lambda one: one.value()[0] * 2)
        return done.wait()

    @case
    def coalesced() -> Any:
        x, y = of(rank + 1), of(rank + 2)
        dist.all_reduce_coalesced([x, y])
        return [x, y]

    @case
    def coalescing() -> Any:
        x, y = of(rank + 1), of(rank + 2)
        with dist._coalescing_manager():
            dist.all_reduce(x)
            dist.all_reduce(y)
        return [x, y]

    @case
    def barriers() -> Any:
        dist.barrier()
        return "passed"

    @case
    def monitored_barrier() -> Any:
        dist.monitored_barrier()
        return "passed"

    # ---------------------------------------------------------------------------------------- with gradients

    def backward(operation: Any) -> Any:
        x = of(rank + 1).requires_grad_()
        out = operation(x * 2)
        parts = list(out) if isinstance(out, list | tuple) else [out]
        loss = sum((one * of(rank + 3, *one.shape)).sum() for one in parts if one is not None and one.requires_grad)
        if isinstance(loss, torch.Tensor):
            loss.backward()
        return [parts, x.grad]

    cases["nn.all_reduce"] = lambda: backward(differentiable.all_reduce)
    cases["nn.all_gather"] = lambda: backward(differentiable.all_gather)
    cases["nn.broadcast"] = lambda: backward(lambda x: differentiable.broadcast(x, 0))
    # The values of the other ranks are not specified.
    cases["nn.reduce"] = lambda: [
        one if rank == 0 or at else None for at, one in enumerate(backward(lambda x: differentiable.reduce(x, 0)))
    ]
    cases["nn.gather"] = lambda: backward(lambda x: differentiable.gather(x, 0))
    cases["nn.scatter"] = lambda: backward(lambda x: differentiable.scatter([x, x * 3], 0))
    cases["nn.reduce_scatter"] = lambda: backward(lambda x: differentiable.reduce_scatter(torch.empty(4), [x, x * 3]))
    cases["nn.all_to_all"] = lambda: backward(
        lambda x: differentiable.all_to_all([torch.empty(4), torch.empty(4)], [x, x * 3])
    )
    cases["nn.all_to_all_single"] = lambda: backward(lambda x: differentiable.all_to_all_single(torch.empty(4), x))
    cases["functional.all_reduce"] = lambda: functional.all_reduce(of(rank + 1), "sum", dist.group.WORLD) + 0
    cases["functional.all_gather"] = lambda: functional.all_gather_tensor(of(rank + 1), 0, dist.group.WORLD) + 0
    cases["functional.reduce_scatter"] = lambda: (
        functional.reduce_scatter_tensor(of(rank + 1), "sum", 0, dist.group.WORLD) + 0
    )
    cases["functional.broadcast"] = lambda: functional.broadcast(of(rank + 1), 1, dist.group.WORLD) + 0
    cases["functional.all_to_all"] = lambda: (
        functional.all_to_all_single(of(rank + 1), None, None, dist.group.WORLD) + 0
    )
    cases["functional.all_gather with gradients"] = lambda: backward(
        lambda x: functional.all_gather_tensor_autograd(x, 0, dist.group.WORLD)
    )
    cases["functional.reduce_scatter with gradients"] = lambda: backward(
        lambda x: functional.reduce_scatter_tensor_autograd(x, "sum", 0, dist.group.WORLD)
    )
    cases["functional.all_to_all with gradients"] = lambda: backward(
        lambda x: functional.all_to_all_single_autograd(x, [2, 2], [2, 2], dist.group.WORLD)
    )

    # ---------------------------------------------------------------------------------------- groups

    @case
    def further_group_of_all() -> Any:
        return made(dist.all_reduce, of(rank + 1), group=dist.new_group([0, 1]))

    @case
    def group_of_one() -> Any:
        group = dist.new_group([1])
        return made(dist.all_reduce, of(rank + 1), group=group) if rank == 1 else "apart"

    @case
    def group_of_gloo() -> Any:
        group = dist.new_group(backend="gloo")
        x = of(rank + 1)
        dist.send(x, 1, group) if rank == 0 else dist.recv(x, 0, group)
        return x

    @case
    def another_group_of_gloo() -> Any:
        groups = [dist.new_group([one], backend="gloo") for one in range(2)]
        return made(dist.all_reduce, of(rank + 1), group=groups[rank])

    @case
    def device_mesh() -> Any:
        mesh = dist.init_device_mesh("cpu", (2,))
        return made(dist.all_reduce, of(rank + 1), group=mesh.get_group())

    @case
    def mesh_of_two_axes() -> Any:
        mesh = dist.init_device_mesh("cpu", (1, 2), mesh_dim_names=("a", "b"))
        return made(dist.all_reduce, of(rank + 1), group=mesh.get_group("b"))

    # ---------------------------------------------------------------------------------------- models

    def net(normal: bool = False) -> Any:
        torch.manual_seed(0)
        middle = torch.nn.BatchNorm1d(5) if normal else torch.nn.Tanh()
        return torch.nn.Sequential(torch.nn.Linear(3, 5), middle, torch.nn.Linear(5, 2))

    def trained(model: Any, optimizer: Any = None, steps: int = 3, context: Any = contextlib.nullcontext) -> Any:
        optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        x = torch.randn(8, 3, generator=torch.Generator().manual_seed(rank))
        with context():
            for _ in range(steps):
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
        return [one.detach().sum() for one in model.parameters()]

    for name, options in {
        "plain": {}, "static graph": {"static_graph": True}, "unused": {"find_unused_parameters": True},
        "bucket view": {"gradient_as_bucket_view": True}, "small buckets": {"bucket_cap_mb": 0.0001},
        "no buffers": {"broadcast_buffers": False}, "no sync at the start": {"init_sync": False},
        "mixed precision": {"mixed_precision": None},
    }.items():  # fmt: skip
        cases[f"DDP {name}"] = lambda options=options: trained(DistributedDataParallel(net(), **options))
    cases["DDP with BatchNorm"] = lambda: trained(DistributedDataParallel(net(normal=True)))

    def hooked(register: Any) -> Any:
        model = DistributedDataParallel(net())
        register(model)
        return trained(model)

    for name in ("allreduce_hook", "fp16_compress_hook", "bf16_compress_hook"):
        cases[f"DDP {name}"] = lambda name=name: hooked(
            lambda model: model.register_comm_hook(None, getattr(default_hooks, name))
        )
    cases["DDP powerSGD"] = lambda: hooked(
        lambda model: model.register_comm_hook(
            powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook
        )
    )

    def averaged(bucket: Any) -> Any:
        work = dist.all_reduce(bucket.buffer() / 2, async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    own_hook = lambda state, bucket: averaged(bucket)  # noqa: E731 torch reads the annotations of a function

    cases["DDP own hook"] = lambda: hooked(lambda model: model.register_comm_hook(None, own_hook))
    cases["DDP built-in hook"] = lambda: hooked(
        lambda model: model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    )
    cases["DDP built-in fp16 hook"] = lambda: hooked(
        lambda model: model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    )

    @case
    def ddp_of_uneven_data() -> Any:
        model = DistributedDataParallel(net())
        return trained(model, steps=2 + rank, context=model.join)

    @case
    def join_of_several() -> Any:
        model = DistributedDataParallel(net())
        return trained(model, steps=2 + rank, context=lambda: Join([model]))

    @case
    def ddp_no_sync() -> Any:
        model = DistributedDataParallel(net())
        x = torch.randn(8, 3, generator=torch.Generator().manual_seed(rank))
        with model.no_sync():
            model(x).square().mean().backward()
        model(x * 2).square().mean().backward()
        return [one.grad.sum() for one in model.parameters()]

    @case
    def ddp_sparse() -> Any:
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Embedding(7, 2, sparse=True))
        model(torch.tensor([rank, 3])).square().sum().backward()
        return [str(model.module.weight.grad.layout), model.module.weight.grad]

    @case
    def ddp_compiled() -> Any:
        return trained(torch.compile(DistributedDataParallel(net()), backend="aot_eager"))

    @case
    def compiled_in_ddp() -> Any:
        return trained(DistributedDataParallel(torch.compile(net(), backend="aot_eager")))

    @case
    def compiled_operation() -> Any:
        def function(x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            dist.all_reduce(y)
            return y + 1

        return torch.compile(function, backend="aot_eager", fullgraph=True)(of(rank + 1))

    @case
    def zero_redundancy() -> Any:
        model = DistributedDataParallel(net())
        optimizer = dist.optim.ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
        found = trained(model, optimizer)
        optimizer.consolidate_state_dict(0)
        return [found, len(optimizer.state_dict()["state"]) if rank == 0 else None]

    @case
    def zero_redundancy_overlapping() -> Any:
        model = DistributedDataParallel(net())
        optimizer = dist.optim.ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.SGD, lr=0.1, parameters_as_bucket_view=True
        )
        return trained(model, optimizer)

    @case
    def post_local_sgd() -> Any:
        from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

        model = net()
        optimizer = dist.optim.PostLocalSGDOptimizer(
            torch.optim.SGD(model.parameters(), 0.1), PeriodicModelAverager(period=1, warmup_steps=0)
        )
        return trained(model, optimizer)

    @case
    def fully_sharded() -> Any:
        from torch.distributed.fsdp import fully_shard

        model = net()
        for layer in model:
            if list(layer.parameters()):
                fully_shard(layer)
        fully_shard(model)
        trained(model)
        return [one.full_tensor().detach().sum() for one in model.parameters()]

    @case
    def fully_sharded_by_the_older_way() -> Any:
        from torch.distributed.fsdp import FullyShardedDataParallel

        model = FullyShardedDataParallel(net(), device_id=torch.device("cpu"))
        trained(model)
        with FullyShardedDataParallel.summon_full_params(model):
            return [one.detach().sum() for one in model.parameters()]

    @case
    def tensor_parallel() -> Any:
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))
        mesh = dist.init_device_mesh("cpu", (2,))
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        model(torch.ones(4, 3)).sum().backward()
        return [one.grad.full_tensor().sum() for one in model.parameters()]

    @case
    def distributed_tensor() -> Any:
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor

        mesh = dist.init_device_mesh("cpu", (2,))
        x = distribute_tensor(of(1.0, 5, 2), mesh, [Shard(0)])
        return [
            (x @ x.t()).full_tensor(),
            x.redistribute(mesh, [Shard(1)]).to_local(),
            x.redistribute(mesh, [Replicate()]).to_local(),
        ]

    @case
    def checkpoint() -> Any:
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
        from torch.distributed.fsdp import fully_shard

        def whole(model: Any) -> Any:
            return [one.full_tensor().detach().sum() for one in model.parameters()]

        first, second = (
            fully_shard(net()),
            fully_shard(torch.nn.Sequential(*[torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)])),
        )
        optimizers = [torch.optim.Adam(model.parameters(), 0.1) for model in (first, second)]
        trained(first, optimizers[0])
        place = f"{folder}/{dist.get_backend()}"
        state = dict(zip(("model", "optimizer"), get_state_dict(first, optimizers[0]), strict=True))
        dcp.save(state, checkpoint_id=place)
        dcp.async_save(state, checkpoint_id=f"{place}-later").result()
        trained(second, optimizers[1], steps=1)
        into = dict(zip(("model", "optimizer"), get_state_dict(second, optimizers[1]), strict=True))
        dcp.load(into, checkpoint_id=f"{place}-later")
        set_state_dict(second, optimizers[1], model_state_dict=into["model"], optim_state_dict=into["optimizer"])
        return [whole(first), whole(second)]

    @case
    def samplers() -> Any:
        data = torch.utils.data.TensorDataset(torch.arange(7))
        sampler = torch.utils.data.DistributedSampler(data, shuffle=True, seed=3)
        return list(sampler)

    found = {}
    for name, function in cases.items():
        if only is not None and name not in only:
            continue
        print("case", name, flush=True)
        try:
            mine = plain(function())
        except Exception as error:  # noqa: BLE001 the test compares its text
            mine = f"{type(error).__name__}: {error}"[:400]
        found[name] = hopsml.distributed.exchange(mine)
    return {"json": found}
