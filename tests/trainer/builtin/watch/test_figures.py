"""The one exchange of a step, and the formulas of utilisation."""

from __future__ import annotations

import math

import pytest

from infra.plan.estimates.sizing import training_flops_per_token
from infra.spec.models.named import resolve_model
from trainer.builtin.watch.figures import PARTS, Mine, Utilisation, pack, step_figures, unpack
from trainer.contract import ModelConfig, RecomputeConfig, TrainConfig


def config(**changes: object) -> TrainConfig:
    model = ModelConfig(layers=32, width=4096, heads=32, context=2048, vocabulary=50432)
    given = {"campaign": "c", "model": model, "steps": 1, "global_batch": 8, "micro_batch": 1, **changes}
    return TrainConfig(**given)  # type: ignore[arg-type]


def mine(rank: int) -> Mine:
    return Mine(
        loss=1.0 + rank,
        parts={"forward": 0.1 * (rank + 1), "data": 0.01},
        memory_gib=10.0 + rank,
        layers=[9.0, 16.0],
        weights=[4.0, 1.0],
        activation=4.0,
        entropy=2.0,
        others=[float(rank == 0), 2.0],
    )


def summed(ranks: int, of: list[Mine]) -> list[float]:
    return [sum(column) for column in zip(*(pack(one, rank, ranks) for rank, one in enumerate(of)), strict=True)]


def test_the_sums_of_all_ranks_say_what_is_common_and_what_is_each_ranks_own() -> None:
    ranks = 4
    every = unpack(summed(ranks, [mine(rank) for rank in range(ranks)]), mine(0), ranks)
    assert every.loss == 2.5 and every.finite and every.others == (1.0, 8.0)
    assert every.layers == (6.0, 8.0) and every.weights == (4.0, 2.0)
    assert (every.activation, every.entropy) == (2.0, 2.0)
    assert every.losses == (1.0, 2.0, 3.0, 4.0) and every.memory_gib == (10.0, 11.0, 12.0, 13.0)
    assert every.forward_s == pytest.approx((0.1, 0.2, 0.3, 0.4)) and set(every.parts) == set(PARTS)


def test_a_rank_that_is_not_finite_is_named_among_256() -> None:
    given = [mine(rank) for rank in range(256)]
    given[200].loss, given[200].finite = math.nan, False
    every = unpack(summed(256, given), given[0], 256)
    assert not every.finite and math.isnan(every.loss)
    assert [rank for rank, loss in enumerate(every.losses) if not math.isfinite(loss)] == [200]


def test_the_flop_of_a_token_are_those_of_the_plan() -> None:
    given = config()
    found = Utilisation.of(given, 8, has_gpu=True)
    assert found.flop == training_flops_per_token(given.model) * given.tokens_per_step()


@pytest.mark.parametrize(
    ("name", "used", "layers", "block", "queries"),
    [
        # Parameters of Hugging Face's model, less the embedding where it is not tied; heads x width of a head.
        ("llama-3.1-8b", 8_030_261_248 - 128_256 * 4096, 32, 218_112_000, 4096),
        ("qwen3-0.6b", 596_049_920, 28, 15_730_944, 2048),
    ],
)
def test_the_flop_of_a_named_model_are_its_own(name: str, used: int, layers: int, block: int, queries: int) -> None:
    model = ModelConfig.model_validate(resolve_model(name))
    given = config(model=model, recompute=RecomputeConfig(policy="full"))
    found = Utilisation.of(given, 8, has_gpu=True)
    assert found.flop == (6 * used + 12 * layers * queries * model.context) * given.tokens_per_step()
    again = layers * (2 * block + 4 * queries * model.context)
    assert found.hardware_flop - found.flop == again * given.tokens_per_step()


def test_mfu_and_hfu_by_hand() -> None:
    given = config(peak_bf16_tflops=989.0, micro_batch=2)
    found = Utilisation.of(given, 8, has_gpu=True)
    second = found.flop / (8 * 989e12)
    assert found.mfu(second) == 1.0 and found.mfu(2 * second) == 0.5
    full = Utilisation.of(given.model_copy(update={"recompute": RecomputeConfig(policy="full")}), 8, True)
    assert full.mfu(second) == 1.0
    # The blocks' forward passes are made again, a third of the whole: all but the output layer's.
    model = given.model
    output = 6 * model.vocabulary * model.width * given.tokens_per_step()
    assert full.hfu(second) == pytest.approx(1 + (1 - output / found.flop) / 3, rel=1e-3)
    assert found.hfu(second) == 1.0


@pytest.mark.parametrize(("peak", "accelerated"), [(None, True), (989.0, False)])
def test_without_a_known_accelerator_no_utilisation_is_told(peak: float | None, accelerated: bool) -> None:
    found = Utilisation.of(config(peak_bf16_tflops=peak), 8, accelerated)
    assert found.mfu(1.0) is None and found.hfu(1.0) is None


def test_the_figures_of_a_step_name_its_slowest_rank() -> None:
    given = [mine(0) for _ in range(4)]
    given[2].parts = {"forward": 0.15}
    every = unpack(summed(4, given), given[0], 4)
    utilisation = Utilisation.of(config(), 4, has_gpu=False)
    figures = step_figures(every, 2.0, 1e-3, 0.7, ("embedding", "norm"), 1000, utilisation)
    assert (figures.slowest_rank, figures.slowest_ratio, figures.tokens_per_second) == (2, 1.5, 500.0)
    assert figures.layers == {"embedding": 6.0, "norm": 8.0} and figures.norm == 0.7 and figures.mfu is None
