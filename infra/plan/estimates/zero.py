"""Sizes of ZeRO stage 3 for a campaign's model and nodes."""

from __future__ import annotations

from infra.plan.catalogue import InstanceType
from infra.plan.estimates.figure import Figure, figure
from infra.plan.estimates.sizing import GIB, WEIGHT_BYTES
from infra.spec.campaign import Training
from trainer.contract.model.zero_sizes import Links, Size, zero_sizes
from trainer.contract.training import ZeroConfig

_TITLES = {
    "prefetch_bucket": "ZeRO: fetched ahead",
    "persistence_threshold": "ZeRO: kept whole up to",
    "reduce_bucket": "ZeRO: gradients at once",
    "hpz_ranks": "ZeRO: ranks of a second copy",
}


def resolve_zero(training: Training, instance: InstanceType | None, nodes: int, ranks_per_node: int) -> ZeroConfig:
    """Return the sizes that the ranks get: the spec's, else derived ones. Below stage 3 there are none."""
    sizes = _sizes(training, instance, nodes, ranks_per_node)
    return ZeroConfig(**{name: size.value for name, size in sizes.items()})


def zero_figures(training: Training, instance: InstanceType | None, nodes: int, per_node: int) -> tuple[Figure, ...]:
    sizes = _sizes(training, instance, nodes, per_node)
    return tuple(figure(_TITLES[name], size.value, size.unit, size.formula) for name, size in sizes.items())


def _sizes(training: Training, instance: InstanceType | None, nodes: int, ranks_per_node: int) -> dict[str, Size]:
    if training.zero_stage < 3:
        return {}
    links = None
    if instance is not None:
        memory_bytes = instance.accelerator_memory_gib * GIB
        links = Links(nodes, ranks_per_node, instance.nvlinks, instance.network_gbit_s, memory_bytes)
    return zero_sizes(training.zero, training.model, WEIGHT_BYTES[training.precision], training.parallel, links)
