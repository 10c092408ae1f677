"""Distribution of a gang's ranks over its nodes."""

from __future__ import annotations

from infra.errors import UserError
from infra.plan import catalogue
from infra.spec.campaign import Spec
from trainer.contract.frozen import Frozen
from trainer.contract.model import layout as parallel


class GangLayout(Frozen):
    nodes: int
    ranks_per_node: int
    world_size: int
    accumulation: int
    """Micro batches that each rank accumulates per optimizer step; 1 for a workload, which does it by itself."""


def ranks_per_node(spec: Spec, accelerators: int) -> int:
    """Return the spec's number, else one rank per accelerator."""
    return spec.nodes.ranks_per_node or accelerators


def layout(spec: Spec) -> GangLayout:
    """Return the layout; raise `UserError` for an unknown type or a batch that does not divide. Pure."""
    ranks = ranks_per_node(spec, catalogue.instance_type(spec.nodes.instance_type).accelerators)
    if ranks < 1:
        raise UserError(
            "the GPU nodes have no accelerator to train on",
            seen=spec.nodes.instance_type,
            cure="choose an instance type with accelerators",
        )
    world = spec.nodes.count * ranks
    if spec.training is None:
        return GangLayout(nodes=spec.nodes.count, ranks_per_node=ranks, world_size=world, accumulation=1)
    training, gang = spec.training, parallel.Layout.of(spec.training.parallel, world)
    if trouble := parallel.layout_trouble(training.parallel, world, ranks, training.zero_stage):
        raise UserError(f"training.{trouble.field} {trouble.message}", seen=trouble.seen, cure=trouble.cure)
    accumulation, remainder = divmod(training.global_batch, training.micro_batch * gang.data)
    if remainder or not accumulation:
        raise UserError(
            "global_batch is no multiple of micro_batch x data-parallel ranks",
            seen=f"{training.global_batch} over {training.micro_batch} x {gang.data}",
            cure=f"take a multiple of {training.micro_batch * gang.data}",
        )
    return GangLayout(nodes=spec.nodes.count, ranks_per_node=ranks, world_size=world, accumulation=accumulation)


def gang_sizes(spec: Spec, ranks_of_node: int) -> tuple[int, ...]:
    """Return the numbers of nodes, fewer than all, with which the gang may train, the largest first: down to
    `recovery.min_nodes`, and only those over whose ranks the batch and the layout divide."""
    min_nodes = spec.recovery.min_nodes or spec.nodes.count
    sizes = range(spec.nodes.count - 1, min_nodes - 1, -1)
    return tuple(size for size in sizes if not size_trouble(spec, size, ranks_of_node))


def size_trouble(spec: Spec, nodes: int, ranks_of_node: int) -> str:
    """Return why a gang of so many nodes cannot train as the spec says; empty if it can."""
    training, world = spec.training, nodes * ranks_of_node
    if training is None:
        return "" if spec.runtime.elastic else "the job has no `elastic: true`"
    if trouble := parallel.layout_trouble(training.parallel, world, ranks_of_node, training.zero_stage):
        return f"{trouble.field} {trouble.message}: {trouble.seen}"
    data_ranks = parallel.Layout.of(training.parallel, world).data
    if training.global_batch % (training.micro_batch * data_ranks):
        return f"global_batch {training.global_batch} is no multiple of {training.micro_batch} x {data_ranks} ranks"
    if world % (training.zero.hpz_ranks or 1):
        return f"zero.hpz_ranks {training.zero.hpz_ranks} does not divide {world} ranks"
    return ""
