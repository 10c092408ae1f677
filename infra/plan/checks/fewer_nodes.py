"""Rules about a gang that goes on with fewer nodes."""

from __future__ import annotations

from collections.abc import Iterator

from infra.plan.checks.finding import Case, Draft, error, warning
from infra.plan.estimates import sizing
from infra.plan.layout import gang_sizes, size_trouble

_FIELD = "recovery.min_nodes"


def smaller_gang(case: Case) -> Iterator[Draft]:
    """Batch and layout divide over the fewest nodes; the other numbers at which they do not are left out."""
    min_nodes, count, ranks = case.spec.recovery.min_nodes, case.spec.nodes.count, case.ranks_per_node
    if min_nodes is None or ranks is None:
        return
    if min_nodes > count:
        yield error(
            _FIELD, "is more than nodes.count", seen=f"{min_nodes}, nodes.count {count}", cure=f"write 1 to {count}"
        )
        return
    if min_nodes == count or not case.job.elastic:
        return
    sizes = gang_sizes(case.spec, ranks)
    if min_nodes not in sizes:
        fewer = (nodes for nodes in range(min_nodes - 1, 0, -1) if not size_trouble(case.spec, nodes, ranks))
        nearest = next(fewer, sizes[-1] if sizes else count)
        cure = f"write {nearest}, or a global_batch that divides over {min_nodes} nodes"
        yield error(_FIELD, "cannot train as the spec says", seen=size_trouble(case.spec, min_nodes, ranks), cure=cure)
    elif gaps := [nodes for nodes in range(min_nodes + 1, count) if nodes not in sizes]:
        detail = f"{', '.join(map(str, gaps))} nodes: {size_trouble(case.spec, gaps[0], ranks)}"
        cure = "nothing to do: the gang takes the next smaller number; or write a global_batch that divides over more"
        yield warning(_FIELD, "leaves out some numbers of nodes", seen=detail, cure=cure)


def reshaped_checkpoint(case: Case) -> Iterator[Draft]:
    """A checkpoint can be read by another number of ranks: with ZeRO, or by a job that says so."""
    spec, min_nodes = case.spec, case.spec.recovery.min_nodes
    if min_nodes is None or min_nodes >= spec.nodes.count:
        return
    if (training := spec.training) is not None:
        if training.zero_stage == 0:
            message = "needs ZeRO: without it a checkpoint fits only its own number of ranks"
            yield error(
                _FIELD, message, seen="training.zero_stage 0", cure="write training.zero_stage: 1, or leave it out"
            )
        if training.optimizer.offload != "none":
            cure = "leave out either"
            yield error(_FIELD, "is not tried with offload", seen="training.optimizer.offload", cure=cure)
    if not case.job.elastic:
        cure = "write workload.elastic: true if the job goes on from a checkpoint of another number of ranks"
        yield error(_FIELD, "needs a job that trains on any number of nodes", seen="workload.elastic false", cure=cure)
    elif case.job.on_disks:
        cure = "write tier: shared"
        message = "needs checkpoints that each node can read: on local disks each has its own nodes' files"
        yield error(_FIELD, message, seen="workload.checkpoints.tier local", cure=cure)


def smaller_gang_memory(case: Case) -> Iterator[Draft]:
    """What ZeRO spreads over the ranks also fits the ranks of the fewest nodes, beside the activations if those are
    predicted."""
    spec, instance, ranks = case.spec, case.facts.instance, case.ranks_per_node
    min_nodes, training = spec.recovery.min_nodes, spec.training
    if min_nodes is None or min_nodes >= spec.nodes.count or training is None or instance is None or ranks is None:
        return
    size, whole_size = (
        sizing.static_bytes_per_rank(
            training.model, training.precision, nodes * ranks, training.zero_stage, training.optimizer.offload == "cpu"
        )
        // training.parallel.tensor
        for nodes in (min_nodes, spec.nodes.count)
    )
    room, size_name = int(instance.accelerator_memory_gib * sizing.GIB), "of state"
    memory = case.facts.memory
    if memory is not None and not memory.trouble:
        size, room, size_name = memory.peak + size - whole_size, memory.usable, "at the peak"
    if size > room:
        detail = f"{size / sizing.GIB:.1f} GiB {size_name}, {room / sizing.GIB:.4g} GiB per {instance.accelerator}"
        yield error(_FIELD, "leaves too few accelerators for the model's memory", seen=detail, cure="write more nodes")
