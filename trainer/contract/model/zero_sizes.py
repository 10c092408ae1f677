"""Sizes of DeepSpeed's ZeRO stage 3 that follow from a model's shape and from the links between accelerators.

DeepSpeed's defaults are of no model: it fetches 50 million parameters ahead, a fourth of a layer of 8B.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainer.contract.model.shape import shape_of
from trainer.contract.training import GRADIENT_BUCKET, ModelConfig, ParallelConfig, ZeroConfig

LIVE_PARAMETERS = 1_000_000_000
"""Parameters that stage 3 keeps gathered at most: `stage3_max_live_parameters`, DeepSpeed's default."""
PREFETCH_BUCKET, PERSISTENCE_THRESHOLD = 50_000_000, 100_000
"""DeepSpeed's defaults: the least here, and the sizes of a model whose shape only the trainer knows. A small model's
gradients are summed at once in the first, too: less than 100 MB at a time would only be more exchanges."""
LINK_GB_S = 25.0
"""Bytes a second of one NVLink in one direction, at least: 25 GB/s in its third and fourth generation (NVIDIA H100
Tensor Core GPU Architecture, "Fourth-Generation NVLink"), 50 in the fifth."""
COPY_SHARE = 1 / 8
"""Part of an accelerator's memory that a copy of the weights within the node may take. A choice: none was measured."""


@dataclass(frozen=True)
class Links:
    """What the ranks of a gang exchange over."""

    nodes: int
    ranks_per_node: int
    nvlinks: int | None
    """Of one accelerator; None: unknown."""
    network_gbit_s: float
    """Of one node."""
    memory_bytes: float
    """Of one accelerator."""


@dataclass(frozen=True)
class Size:
    value: int
    unit: str
    formula: str


def zero_sizes(
    zero: ZeroConfig, model: ModelConfig, weight_bytes: int = 2, parallel: ParallelConfig | None = None,
    links: Links | None = None,
) -> dict[str, Size]:  # fmt: skip
    """Return the size of each field of `ZeroConfig`: the given one, else the derived one. `weight_bytes`: of a
    parameter as it is gathered. Without `links` no copy of the weights is derived.

    Prefetch: a layer, so that the next one is on its way while one computes, and no more than the live parameters leave
    beside one; at least 0.9 width^2. Gradients: a layer, so that its exchange runs beside the next one's backward pass;
    at least width^2, at most `GRADIENT_BUCKET`. Parameters kept whole: up to 10 width, and DeepSpeed's default at
    least. The three terms in width are those of `transformers` for `auto` (`integrations/deepspeed.py`,
    `trainer_config_finalize`).
    """
    derived_sizes = _of_shape(model) | {"hpz_ranks": _copies(model, weight_bytes, parallel, links)}
    spec_sizes = zero.model_dump(exclude_none=True)
    return {
        name: Size(spec_sizes[name], size.unit, f"spec: training.zero.{name}") if name in spec_sizes else size
        for name, size in derived_sizes.items()
    }


def _of_shape(model: ModelConfig) -> dict[str, Size]:
    names, unit = ("prefetch_bucket", "persistence_threshold", "reduce_bucket"), "parameters"
    if model.parameters is not None or model.is_function:
        defaults = (PREFETCH_BUCKET, PERSISTENCE_THRESHOLD, GRADIENT_BUCKET)
        return {name: Size(value, unit, "DeepSpeed's default") for name, value in zip(names, defaults, strict=True)}
    width, block = shape_of(model).width, shape_of(model).block
    prefetch = max(PREFETCH_BUCKET, 9 * width * width // 10, min(block, LIVE_PARAMETERS - block))
    threshold = max(PERSISTENCE_THRESHOLD, 10 * width)
    reduce = min(GRADIENT_BUCKET, max(PREFETCH_BUCKET, width * width, block))
    layer = f"a layer's {block}"
    formulas = (
        f"max({PREFETCH_BUCKET}, 0.9 x {width}^2, min({layer}, {LIVE_PARAMETERS} live - {block}))",
        f"max({PERSISTENCE_THRESHOLD}, 10 x {width})",
        f"min({GRADIENT_BUCKET}, max({PREFETCH_BUCKET}, {width}^2, {layer}))",
    )
    rows = zip(names, (prefetch, threshold, reduce), formulas, strict=True)
    return {name: Size(value, unit, formula) for name, value, formula in rows}


def _copies(model: ModelConfig, weight_bytes: int, parallel: ParallelConfig | None, links: Links | None) -> Size:
    """Return the ranks that hold a second copy of the weights together, for the backward pass; 1: there is none.

    None is made unasked, since no GPU has run one and no test restores into one; the words say where one would fit: a
    node's ranks, where its links are faster than the network. Source: Wang et al. 2023, "ZeRO++", section 3.2 (hpZ):
    the backward pass then gathers within the node alone, for weights / ranks of a node more memory on each.
    """
    refusal = "no copy: "
    if links is None or links.nodes == 1 or links.ranks_per_node == 1:
        return Size(1, "ranks", f"{refusal}all ranks are on one node, or each on its own")
    if model.is_function or model.parameters is not None or model.lora is not None:
        return Size(1, "ranks", f"{refusal}not for adapters, nor for a model of unknown shape")
    if parallel is not None and parallel.tensor * parallel.sequence > 1:
        return Size(1, "ranks", f"{refusal}ranks share matrices or sequences")
    if not links.nvlinks:
        return Size(1, "ranks", f"{refusal}{'unknown' if links.nvlinks is None else 'no'} NVLinks")
    # Gigabytes a second in one direction: of one accelerator within the node, of one rank between nodes.
    inner, outer = LINK_GB_S * links.nvlinks, links.network_gbit_s / 8 / links.ranks_per_node
    if inner <= outer:
        return Size(1, "ranks", f"{refusal}NVLink {inner:g} GB/s, network {outer:g} GB/s a rank")
    weights, limit = weight_bytes * shape_of(model).parameters, COPY_SHARE * links.memory_bytes
    copy = weights / links.ranks_per_node / 2**30
    formula = f"{weights} B of weights / {links.ranks_per_node} = {copy:.2f} GiB, at most {limit / 2**30:.2f}"
    if copy * 2**30 > limit:
        return Size(1, "ranks", f"{refusal}{formula}")
    offer = f"{refusal}not asked; {links.ranks_per_node} would fit: NVLink {inner:g} GB/s, network {outer:g} a rank"
    return Size(1, "ranks", f"{offer}; {formula}")
