"""What a line of a job says, in the forms in which frameworks print it."""

from __future__ import annotations

from typing import Any

import pytest

from trainer.supervisor.progress.lines import Reader

BAR = r"(?P<step>\d+)/\d+ \["
RED = "\x1b[31m"


@pytest.mark.parametrize(
    ("pattern", "line", "step", "figures"),
    [
        (None, '{"step": 5, "loss": 0.25, "tokens": 100}', 5, {"loss": 0.25, "tokens": 100.0}),
        (None, '2025-11-25 INFO {"global_step": 5, "train_loss": "1,000.5"}', 5, {"loss": 1000.5}),
        (None, f'{RED}{{"iter": 7, "lm_loss": 2}}\x1b[0m', 7, {"loss": 2.0}),
        (None, "{'loss': 2.5, 'grad_norm': 1.0, 'step': 8}", 8, {"loss": 2.5}),
        (None, "{'loss': '2.5', 'epoch': 0.25}", None, {"loss": 2.5}),
        (None, '{"step": 5, "loss": Infinity}', 5, {}),
        (None, '{"step": 9007199254740991}', (1 << 53) - 1, {}),
        (None, '{"step": 5, "loss": 0.25}{"step": 5, "rank": 1, "loss": 9}', 5, {"loss": 0.25}),
        (None, '{"step": "30/400", "loss": "0.5"}', 30, {"loss": 0.5}),
        (None, '{"step": "/400", "loss": "0.5"}', None, {"loss": 0.5}),
        (BAR, "  5%|#  | 4/80 [00:01<00:10, 7.5it/s]", 4, {}),
        (BAR, f"{RED}{{'loss': 2.5, 'epoch': 0.25}}\x1b[0m", None, {"loss": 2.5}),
        (BAR, '{"step": 900, "loss": 2.5}', None, {"loss": 2.5}),
        (r"step (?P<step>[\d,]+)|loss: (?P<loss>\S+)", "step 1,024", 1024, {}),
        (r"step (?P<step>[\d,]+)|loss: (?P<loss>\S+)", "loss: 3.5e-1", None, {"loss": 0.35}),
        (r"step: +(?P<step>\d+) +loss: +(?P<loss>[\d.]+)", f"{RED}step:  3 \x1b[3m loss: 7.5\x1b[0m", 3, {"loss": 7.5}),
        (r"\] (?P<step>\d+) tok=(?P<tokens>\d+)", "\x1b]0;title\x07[gpu] 3 tok=99", 3, {"tokens": 99.0}),
    ],
)  # fmt: skip
def test_a_line_has_step_and_figures(
    pattern: str | None, line: str, step: int | None, figures: dict[str, float]
) -> None:
    read = Reader(pattern).read(line)
    assert read is not None and (read.step, read.figures) == (step, figures)


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (None, "step 5"),
        (None, '{"step": true}'),
        (None, '{"step": 5.5}'),
        (None, '{"step": -5, "loss": 1.0}'),
        (None, '{"step": ' + "9" * 400 + "}"),
        (None, '{"step": 5'),
        (None, '{"step": 1e300}'),
        (None, '{"step": 9007199254740992}'),
        (None, "{'step', 'x'}"),
        (None, "{[]: 'x', 'step': 5}"),
        (None, "[" * 100_000),
        (None, "{" * 100_000 + "}"),
        (None, "{'a': " * 5_000 + "}"),
        (None, '{"eval_loss": 2.0, "epoch": 1.0}'),
        (None, "{'train_runtime': 10.0, 'train_loss': 2.0, 'epoch': 1.0}"),
        (None, '{"eval_loss": 2.0, "tokens": 5}'),
        (r"step (?P<step>\d+)|loss (?P<loss>\d+)", "validation loss 5"),
        (BAR, "nothing"),
        (BAR, '{"lr": 0.1}'),
        (r"step (?P<step>\d+) loss=(?P<loss>\d+)", "{'loss': 2.5}"),
    ],
)
def test_a_line_without_a_step_and_a_loss_says_nothing(pattern: str | None, line: str) -> None:
    assert Reader(pattern).read(line) is None


def said(pattern: str | None, *lines: str) -> Any:
    reader = Reader(pattern)
    read = [reader.read(line) for line in lines][-1]
    assert read is not None
    return read


STEP = r"step:? *\[? *(?P<step>\d+)"


@pytest.mark.parametrize(
    ("pattern", "line", "total", "epoch"),
    [
        (STEP, "Epoch 2: step 3/10 loss", 10, 2),
        (STEP, "Epoch: [2] step [ 3 / 5,005]", 5005, 2),
        (STEP, "epoch=2, step 3 of 10", 10, 2),
        (STEP, "step 3 off 10", None, None),
        (STEP, "num_epoch 7 step 3, epoch 0.25", None, None),
        (STEP, "EPOCH #2 step 3", None, 2),
        (r"e(?P<epoch>\d+)b(?P<step>\d+)", "e4b3/8", 8, 4),
        (None, '{"step": 3, "epoch": 2}', None, 2),
        (None, '{"step": 3, "epoch": 2.0}', None, None),
    ],
)
def test_a_line_says_its_epoch_and_what_its_step_counts_up_to(
    pattern: str | None, line: str, total: int | None, epoch: int | None
) -> None:
    read = said(pattern, line)
    assert (read.step, read.total, read.epoch) == (3, total, epoch)


def test_headings_of_epochs_are_counted() -> None:
    assert said(STEP, "step 3").headings == 0
    assert said(STEP, "Epoch 1/4", "step 3").headings == 1
    assert said(STEP, "Epoch 1/4", "Epoch 1/4", "step 1", "Epoch 2/4", "step 3").headings == 2


@pytest.mark.parametrize(
    ("pattern", "line", "evaluation"),
    [
        (STEP, "Validation: step 3/10", True),
        (STEP, "[eval] step 3 loss 2.0", True),
        (STEP, "Sanity Checking step 3", True),
        (STEP, "Map: step 3/10", True),
        (STEP, "step 3 | train loss 2.0 | val loss 2.1", False),
        (STEP, "step 3 value 5 remapped latest", False),
        (None, '{"step": 3, "eval_loss": 2.0}', True),
        (None, '{"step": 3, "val/accuracy": 2.0}', True),
        (None, '{"step": 3, "loss": 1.0, "val_loss": 2.0}', False),
        (None, '{"step": 3, "rank": 1}', False),
        (BAR, '3/40 [00:01]{"step": 1, "eval_loss": 0.5}', False),
        (BAR, 'eval: 3/40 [00:01]{"step": 1, "loss": 0.5}', True),
        (r"step\W+(?P<step>\d+)", '{"step": 3, "eval_loss": 0.5}', True),
    ],
)
def test_a_line_of_an_evaluation_is_known_by_its_words(pattern: str | None, line: str, evaluation: bool) -> None:
    assert said(pattern, line).evaluation is evaluation


def test_a_line_names_its_rank() -> None:
    assert said(None, '{"step": 3, "rank": 2}').rank == 2 and said(None, '{"step": 3}').rank is None
    assert said(r"r(?P<rank>\d+) s(?P<step>\d+)", "r4 s3").rank == 4
