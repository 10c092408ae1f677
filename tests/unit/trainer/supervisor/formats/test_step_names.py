"""Which names are a checkpoint's name with another number: those with a larger one go when a job is laid back."""

from __future__ import annotations

import pytest

from trainer.supervisor.formats.names import EPOCH, PLAIN, Number, family, number_in_family, number_of


@pytest.mark.parametrize(
    ("name", "other", "number"),
    [
        ("ckpt_30.pt", "ckpt_40.pt", 40),
        ("ckpt_30.pt", "ckpt_40.pt.tmp", None),
        ("ckpt_30.pt", "model_40.pt", None),
        ("ckpt_30.pt2", "ckpt_40.pt2", 40),
        ("exp7_30.pt", "exp7_40.pt", 40),
        ("exp7_30.pt", "exp8_40.pt", None),
        ("net3_3.pt", "net3_4.pt", 4),
        ("net3_3.pt", "net4_3.pt", None),
        ("10-save-10", "10-save-20", 20),
        ("ckpt_30_final.pt", "ckpt_40_final.pt", 40),
        ("ckpt_30_of_80.pt", "ckpt_40_of_80.pt", 40),
        ("ckpt_30_of_30.pt", "ckpt_40_of_30.pt", 40),
    ],
)
def test_the_last_number_of_a_plain_name_is_the_one_that_rises(name: str, other: str, number: int | None) -> None:
    assert _number(name, other) == number


@pytest.mark.parametrize(
    ("name", "other", "number"),
    [
        ("epoch=10-step=10.ckpt", "epoch=11-step=20.ckpt", 20),
        ("net2-epoch=2.ckpt", "net2-epoch=3.ckpt", 3),
        ("net2-epoch=2.ckpt", "net3-epoch=2.ckpt", None),
        ("step-0.5-10-seed10.pt", "step-0.7-20-seed10.pt", 20),
    ],
)
def test_the_number_after_a_word_for_steps_or_epochs_is_the_one_that_rises(
    name: str, other: str, number: int | None
) -> None:
    assert _number(name, other) == number


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("net-000050.safetensors", Number(50, PLAIN)),
        ("model-000050.safetensors", Number(50, PLAIN)),
        ("lora-000005.safetensors", Number(5, EPOCH)),
        ("lora-000005-state", Number(5, EPOCH)),
    ],
)
def test_six_digits_after_the_word_for_a_network_count_no_epochs(name: str, number: Number) -> None:
    assert number_of(name) == number


@pytest.mark.parametrize(
    ("name", "later", "beside"),
    [
        ("ckpt_1_rank1.pt", "ckpt_2_rank1.pt", "ckpt_1_rank2.pt"),
        ("model_2-rank2.pt", "model_3-rank2.pt", "model_2-rank3.pt"),
        ("net-1-00001-of-00002.safetensors", "net-2-00001-of-00002.safetensors", "net-1-00002-of-00002.safetensors"),
        ("ckpt_2-v2.ckpt", "ckpt_3-v2.ckpt", None),
        ("ckpt_1_rank1_shard1.pt", "ckpt_2_rank1_shard1.pt", "ckpt_1_rank1_shard2.pt"),
    ],
)
def test_another_rank_or_part_of_a_step_is_no_later_step_whose_number_it_equals(
    name: str, later: str, beside: str | None
) -> None:
    own = _number(name, name)
    assert own is not None and _number(name, later) == own + 1
    assert beside is None or _number(name, beside) is None


@pytest.mark.parametrize(
    ("name", "other", "number"),
    [
        ("step-00010", "step-00020", 20),
        ("step-00010", "step-000020", None),
        ("step-00010", "step-20", None),
        ("step-05", "step-10", 10),
        ("step-05", "step-100", 100),
        ("step-05", "step-9", None),
        ("step-10", "step-100", 100),
        ("step-9", "step-10", 10),
        ("step-0", "step-10", 10),
        ("step-900", "step-1,000", 1000),
        ("ckpt_1,000.pt", "ckpt_12,345,678.pt", 12345678),
        ("ckpt_1,000.pt", "ckpt_900.pt", 900),
        ("1,000_steps", "900_steps", 900),
    ],
)
def test_a_number_that_is_filled_up_with_zeros_has_at_least_as_many_digits_in_each(
    name: str, other: str, number: int | None
) -> None:
    assert _number(name, other) == number


@pytest.mark.parametrize(
    ("name", "other", "number"),
    [
        ("epoch=1-val_loss=0.52.ckpt", "epoch=2-val_loss=1.3e-5.ckpt", 2),
        ("epoch=1-val_loss=0.52.ckpt", "epoch=2-val_loss=-0.1.ckpt", 2),
        ("epoch=1-val_loss=0.52.ckpt", "epoch=2-val_loss=.ckpt", None),
        ("epoch=1-v1.ckpt", "epoch=2.ckpt", 2),
        ("epoch=1-v1.ckpt", "epoch=2-v12.ckpt", 2),
        ("epoch=1-v1.ckpt", "epoch=2-0.5.ckpt", None),
    ],
)
def test_a_figure_and_a_version_differ_within_a_name(name: str, other: str, number: int | None) -> None:
    assert _number(name, other) == number


@pytest.mark.parametrize(
    ("other", "number"),
    [
        ("ckpt_2026-11-27_12-00.pt", 202611271200),
        ("ckpt_2026-11-27_23-59.pt", 202611272359),
        ("ckpt_2026-11-27_12-00.pt.tmp", None),
        ("last_2026-11-27_12-00.pt", None),
        ("ckpt_30.pt", None),
    ],
)
def test_another_time_within_a_name_is_another_checkpoint(other: str, number: int | None) -> None:
    assert _number("ckpt_2026-11-27_12-00.pt", other) == number


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("run-7", None),
        ("tokenizer-32000", None),
        ("version_3", None),
        ("2025_run7", None),
        ("ckpt-20251125", None),
        ("notes.txt", None),
        ("ckpt-20251125.pt", None),
        ("2026-11-27_12-00", None),
        ("ckpt_2026-11-27_12-00.pt", (202611271200, "time")),
        ("ckpt_20261127T120030.tar.gz", (20261127120030, "time")),
        ("ckpt_1764200010.pt", (1764200010, "time")),
        ("ckpt_1764200010", (1764200010, "plain")),
        ("ckpt_2100000000.pt", (2100000000, "plain")),
        ("ckpt_11764200010.pt", (11764200010, "plain")),
        ("2026-11-27_12-00-step=30.pt", (30, "step")),
        ("7", (7, "plain")),
        ("ckpt_7", (7, "plain")),
        ("global_step7", (7, "step")),
        ("epoch7", (7, "epoch")),
        ("step_1,000", (1000, "step")),
        ("ckpt_1,000.pt", (1000, "plain")),
        ("ckpt_1,00.pt", (0, "plain")),
        ("model.h5", None),
        ("model.weights.h5", None),
        ("cp-0030.weights.h5", (30, "plain")),
        ("model.hdf5", None),
        ("model.pt2", None),
        ("state.tar.bz2", None),
        ("gpt_h5", (5, "plain")),
        ("ckpt_30_final.pt", (30, "plain")),
        ("model_30_v2.pt", (30, "plain")),
        ("model_30_best", (30, "plain")),
        ("model_20251125_best.pt", None),
        ("model_v2_best.pt", None),
        ("ckpt-2_temp", None),
        ("ckpt_30_of_80.pt", (30, "plain")),
        ("ckpt_30of80.pt", (30, "plain")),
        ("ckpt_30_1_of_80.pt", (30, "plain")),
        ("model-00001-of-00002.safetensors", None),
    ],
)
def test_what_counts_no_training_is_no_number(name: str, number: tuple[int, str] | None) -> None:
    assert number_of(name) == number and (family(name) is None) == (number is None)


def _number(name: str, other: str) -> int | None:
    """Return the number of `other` in the family of `name`."""
    pattern = family(name)
    assert pattern is not None
    return number_in_family(pattern, other)
