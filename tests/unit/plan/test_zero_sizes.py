"""ZeRO 3's sizes on paper, for models and links that the code does not name."""

from __future__ import annotations

from typing import Any

import pytest

from trainer.contract import ModelConfig, ParallelConfig, ZeroConfig
from trainer.contract.model.zero_sizes import Links, zero_sizes

GIB = 2**30
EIGHT_WITH_NVLINK = Links(nodes=4, ranks_per_node=8, nvlinks=18, network_gbit_s=3200, memory_bytes=80 * GIB)


def llama(**values: Any) -> ModelConfig:
    config = {"model_type": "llama", "vocab_size": 32_000, "max_position_embeddings": 4096} | values
    return ModelConfig(name="a-model", config=config)


SEVEN = llama(hidden_size=4096, intermediate_size=11_008, num_hidden_layers=32, num_attention_heads=32)
"""A layer: 4 x 4096^2 + 3 x 4096 x 11,008 + 2 x 4096 = 202,383,360. All: 262,144,000 + 32 layers + 4096."""
ODD = llama(hidden_size=5120, intermediate_size=13_824, num_hidden_layers=40, num_attention_heads=37, head_dim=128)
"""A layer: 4 x 5120 x 4736 + 3 x 5120 x 13,824 + 2 x 5120 = 309,340,160."""
LARGE = llama(
    vocab_size=128_256, hidden_size=8192, intermediate_size=28_672, num_hidden_layers=80, num_attention_heads=64,
    num_key_value_heads=8,
)  # fmt: skip
"""A layer: 2 x 8192^2 + 2 x 8192 x 1024 + 3 x 8192 x 28,672 + 2 x 8192 = 855,654,400."""
WIDE = llama(hidden_size=24_576, intermediate_size=24_576, num_hidden_layers=2, num_attention_heads=192)
"""A layer: 7 x 24,576^2 + 2 x 24,576 = 4,227,907,584, more than stage 3 keeps gathered."""
SMALL = ModelConfig(layers=2, width=96, heads=2, context=16, vocabulary=300)
"""A layer: 110,784, as in `test_estimates_by_hand`, less than DeepSpeed's defaults."""


def values_of(model: ModelConfig, links: Links | None = None, **given: int) -> list[int]:
    sizes = zero_sizes(ZeroConfig(**given), model, 2, links=links)
    names = ("prefetch_bucket", "persistence_threshold", "reduce_bucket", "hpz_ranks")
    return [sizes[name].value for name in names]


@pytest.mark.parametrize(
    ("model", "sizes"),
    [
        (SEVEN, [202_383_360, 100_000, 202_383_360, 1]),
        (ODD, [309_340_160, 100_000, 309_340_160, 1]),
        # A second layer has no room among the 10^9 live parameters; gradients stop at DeepSpeed's default.
        (LARGE, [144_345_600, 100_000, 500_000_000, 1]),
        # 0.9 x 24,576^2 = 543,581,798.4
        (WIDE, [543_581_798, 245_760, 500_000_000, 1]),
        (SMALL, [50_000_000, 100_000, 50_000_000, 1]),
        (ModelConfig(name="package.module:build", parameters=10**9), [50_000_000, 100_000, 500_000_000, 1]),
    ],
)
def test_sizes_follow_from_the_shape(model: ModelConfig, sizes: list[int]) -> None:
    assert values_of(model) == sizes


def links(**changes: Any) -> Links:
    return Links(**(vars(EIGHT_WITH_NVLINK) | changes))


@pytest.mark.parametrize(
    ("model", "gang", "ranks"),
    [
        # 13.5 GB of weights over 8 are 1.6 GiB; 18 links of 25 GB/s against 3200 / 8 / 8 = 50 GB/s.
        (SEVEN, EIGHT_WITH_NVLINK, 8),
        (ODD, EIGHT_WITH_NVLINK, 8),
        # 141 GB over 8 are 16.4 GiB, more than an eighth of 80 GiB, and less than one of 141.
        (LARGE, EIGHT_WITH_NVLINK, 1),
        (LARGE, links(memory_bytes=141 * GIB), 8),
        (SEVEN, links(nodes=1), 1),
        (SEVEN, links(ranks_per_node=1), 1),
        (SEVEN, links(nvlinks=0), 1),
        (SEVEN, links(nvlinks=None), 1),
        # 25 GB/s inside, 50 outside.
        (SEVEN, links(nvlinks=1), 1),
        (SEVEN.model_copy(update={"lora": {}}), EIGHT_WITH_NVLINK, 1),
    ],
)
def test_a_second_copy_is_offered_where_it_is_fast_and_small_and_made_on_request_only(
    model: ModelConfig, gang: Links, ranks: int
) -> None:
    size = zero_sizes(ZeroConfig(), model, 2, links=gang)["hpz_ranks"]
    assert size.value == 1 and (f"; {ranks} would fit" in size.formula) is (ranks > 1)
    assert values_of(model, gang, hpz_ranks=4)[-1] == 4


def test_ranks_that_share_a_sequence_hold_no_second_copy() -> None:
    sizes = zero_sizes(ZeroConfig(), SEVEN, 2, ParallelConfig(sequence=2), EIGHT_WITH_NVLINK)
    assert sizes["hpz_ranks"].value == 1


def test_what_the_spec_gives_stands_and_says_so() -> None:
    given = {"prefetch_bucket": 0, "persistence_threshold": 7, "reduce_bucket": 9, "hpz_ranks": 2}
    assert values_of(SEVEN, EIGHT_WITH_NVLINK, **given) == list(given.values())
    size = zero_sizes(ZeroConfig(reduce_bucket=9), SEVEN, 2)["reduce_bucket"]
    assert (size.value, size.formula) == (9, "spec: training.zero.reduce_bucket")
