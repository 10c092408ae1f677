"""Rules about what DeepSpeed can do with gradients and optimizer states, and about the node's memory."""

from __future__ import annotations

from collections.abc import Iterator

from infra.plan.checks.finding import Case, Draft, error, info
from infra.plan.estimates import sizing

HOST_USABLE = 0.8
"""Part of a node's memory that the ranks may fill. A guess: system, data workers and page-locked buffers, which torch
rounds up to powers of two, share the rest."""


def gradient_precision(case: Case) -> Iterator[Draft]:
    """DeepSpeed keeps float32 sums of bfloat16 gradients in parts with stage 2 and 3 alone."""
    training = case.spec.built_in[0]
    gradients, stage = training.gradients, training.zero_stage
    if training.precision == "float32":
        for name in ("accumulate", "reduce"):
            if getattr(gradients, name) == "bfloat16":
                cure = f"leave it out, or write training.precision: bfloat16; {name} may then be float32"
                detail = "bfloat16, with precision float32"
                yield error(f"training.gradients.{name}", "rounds what float32 computed", seen=detail, cure=cure)
    elif gradients.accumulate == "float32" and stage < 2:
        reason = (
            "needs ZeRO: DeepSpeed has no such sum without"
            if stage == 0
            else "would take 4 bytes per parameter on every rank: with stage 1 DeepSpeed keeps whole gradients"
        )
        cure = "write training.zero_stage: 2, which keeps a part of them on each rank, or leave it out"
        yield error("training.gradients.accumulate", reason, seen=f"float32, zero_stage {stage}", cure=cure)


def offload_memory(case: Case) -> Iterator[Draft]:
    """Optimizer states that leave the accelerator are sharded, and fit the node's memory beside a save's copy."""
    training, instance, world = case.spec.built_in[0], case.facts.instance, case.world_size
    if training.optimizer.offload == "none":
        return
    if training.zero_stage == 0:
        cure = "write training.zero_stage: 1, or leave it out"
        message = "needs ZeRO stage 1, 2 or 3: without, DeepSpeed ignores it"
        yield error("training.optimizer.offload", message, seen="cpu, zero_stage 0", cure=cure)
        return
    if instance is None or world is None or case.ranks_per_node is None:
        return
    states = case.ranks_per_node * sizing.host_bytes_per_rank(training.model, training.precision, world)
    save_copy = sizing.checkpoint_bytes_per_node(
        training.model, training.precision, case.spec.nodes.count, training.zero_stage
    )
    usable = int(instance.memory_gib * HOST_USABLE * sizing.GIB)
    detail = (
        f"{(states + save_copy) / sizing.GIB:.1f} GiB of {usable / sizing.GIB:.1f} usable per node"
        f" (states {states / sizing.GIB:.1f}, a save's copy {save_copy / sizing.GIB:.1f})"
    )
    if states + save_copy > usable:
        cure = "take more nodes, or an instance type with more memory"
        yield error("training.optimizer.offload", "does not fit the nodes' memory", seen=detail, cure=cure)
    else:
        cure = "nothing to do; the processors compute the update, which takes longer than on a GPU"
        yield info("training.optimizer.offload", "fits the nodes' memory", seen=detail, cure=cure)


def zero_sizes_apply(case: Case) -> Iterator[Draft]:
    """Sizes of ZeRO stage 3 are given for that stage alone, and a copy of the weights lies on whole groups of ranks."""
    training, world = case.spec.built_in[0], case.world_size
    sizes = training.zero.model_dump(exclude_none=True)
    if sizes and training.zero_stage < 3:
        cure = "write training.zero_stage: 3, or leave it out"
        detail = f"{', '.join(sizes)}, zero_stage {training.zero_stage}"
        yield error("training.zero", "is about ZeRO stage 3 alone", seen=detail, cure=cure)
        return
    ranks = training.zero.hpz_ranks or 1
    if ranks > 1 and training.parallel.sequence > 1:
        cure = "leave one of the two out"
        yield error("training.zero.hpz_ranks", "was tried with no other groups of ranks", seen="parallel", cure=cure)
    if world is not None and world % ranks:
        cure = "take the ranks of a node, or another divisor of all ranks"
        yield error("training.zero.hpz_ranks", "does not divide the ranks", seen=f"{ranks} of {world}", cure=cure)
