"""The step, out of transcripts of what jobs print. What is right is counted here by hand, never by the code."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

import pytest

from trainer.supervisor.progress.lines import Reader
from trainer.supervisor.progress.steps import Laps, Steps

WORDS = r"step:? +(?P<step>\d+)"
BAR = r"(?P<step>\d+)/\d+ \["


def told(lines: Iterable[str], pattern: str | None = None, steps: int = 40, offered: int = 0) -> list[int]:
    """Each step as it rose."""
    reader, counter = Reader(pattern), Steps(steps, offered)
    read = (reader.read(line) for line in lines)
    counted = (counter.count(line) for line in read if line is not None)
    return [step for step in counted if step is not None]


def plain(first: int, last: int, every: int = 1) -> list[str]:
    return [f'{{"step": {step}, "loss": 1.0}}' for step in range(first, last + 1, every)]


def bar(first: int, last: int, total: int, words: str = "") -> list[str]:
    return [
        f"{words} {100 * n // total:3}%|###   | {n}/{total} [00:0{n % 10}<00:10,  7.1it/s]"
        for n in range(first, last + 1)
    ]


UP_TO_40 = list(range(1, 41))


def test_every_step_that_is_printed_is_the_step() -> None:
    assert told(plain(1, 40)) == UP_TO_40
    assert told(plain(31, 40), offered=30) == list(range(31, 41))


def test_a_count_from_0_and_a_line_every_ten_steps_are_steps() -> None:
    assert told(plain(0, 39)) == list(range(40))
    assert told(plain(0, 39, 10) + plain(39, 39)) == [0, 10, 20, 30, 39]
    assert told(plain(10, 40, 10)) == [10, 20, 30, 40]


def test_a_line_every_many_steps_is_believed_from_the_second_on() -> None:
    assert told(plain(500, 5000, 500), steps=5000) == list(range(1000, 5001, 500))


@pytest.mark.parametrize(
    "line", ['{"iteration": 100000}', '{"iteration": 40, "lr": 0.1}', "{'max_steps': 3, 'step': 40}"]
)
def test_a_line_of_the_configuration_is_no_step(line: str) -> None:
    assert told([line, *plain(1, 40)]) == UP_TO_40
    assert told([line, line, *plain(1, 40)]) == UP_TO_40, "all ranks print it"
    assert told([*plain(1, 20), line.replace("40", "4000"), *plain(21, 40)]) == UP_TO_40


def test_a_rank_that_is_behind_takes_no_step_back() -> None:
    lines = [f'{{"step": {max(1, step - behind)}, "loss": 1.0}}' for step in range(1, 41) for behind in (0, 1, 3)]
    assert told(lines) == UP_TO_40
    words = [f"[rank{behind}] step {max(1, step - behind)}" for step in range(1, 41) for behind in (2, 0)]
    assert told(words, WORDS) == UP_TO_40


@pytest.mark.parametrize(
    "line", ["Epoch {epoch}: step {n}/10 loss=0.5", "epoch [{epoch}] step {n}", "step {n}/10", "step {n}"]
)
@pytest.mark.parametrize("first", [0, 1])
def test_batches_within_an_epoch_count_on(line: str, first: int) -> None:
    lines = [line.format(epoch=epoch, n=n) for epoch in range(4) for n in range(first, first + 10)]
    steps = told(lines, WORDS)
    assert steps[-1] == 39 + first, "each of 40 batches is a step"
    assert max(after - before for before, after in itertools.pairwise(steps)) <= 3, "soon after each epoch's begin"
    if "poch" in line:
        assert steps == list(range(first, 40 + first))


def test_a_heading_names_the_epoch_too() -> None:
    lines = [line for epoch in range(4) for line in (f"=== Epoch {epoch}/4 ===", *(f"step {n}" for n in range(1, 11)))]
    assert told(lines, WORDS) == UP_TO_40


def test_epochs_that_several_ranks_print_are_counted_once() -> None:
    moments = [(epoch * 10 + n + rank * 0.7, f"Epoch {epoch}: step {n}/10") for epoch in range(4) for n in range(1, 11)
               for rank in range(3)]  # fmt: skip
    assert told([line for _, line in sorted(moments)], WORDS) == UP_TO_40


def test_batches_of_an_evaluation_are_no_steps() -> None:
    """They begin again and again, and climb as those of an epoch do."""
    in_words = [*plain(1, 20), *(f'{{"step": {n}, "eval_loss": 2.0}}' for n in range(1, 200)), *plain(21, 40)]
    assert told(in_words) == UP_TO_40
    of_a_bar = bar(0, 20, 40) + bar(0, 15, 15) + bar(21, 40, 40) + bar(0, 15, 15)
    assert told(of_a_bar, BAR) == [0, *UP_TO_40]
    validated = [line for epoch in range(4) for line in
                 (*bar(0, 10, 10, f"Epoch {epoch}:"), *bar(0, 30, 30, "Validation DataLoader 0:"))]  # fmt: skip
    lightning = bar(0, 2, 2, "Sanity Checking DataLoader 0:") + validated
    assert told(lightning, BAR)[-1] == 40
    unlabelled = told([*plain(1, 20), *plain(1, 8), *plain(21, 28), *plain(1, 8), *plain(29, 40)])
    assert unlabelled[-1] == 40 and unlabelled == sorted(set(unlabelled))


def test_bars_of_what_comes_before_the_training_are_no_steps() -> None:
    before = bar(0, 2, 2, "Loading checkpoint shards:") + bar(0, 300, 300, "Map:")
    assert told(before + bar(1, 40, 40), BAR)[-40:] == UP_TO_40
    epochs = [line for epoch in range(4) for line in bar(1, 10, 10, f"Epoch {epoch}:")]
    assert told(before + epochs, BAR)[-40:] == UP_TO_40
    unlabelled = told(bar(0, 300, 300) + bar(1, 40, 40), BAR)
    assert len(unlabelled) >= 300 + 30 and unlabelled == sorted(set(unlabelled)), "it rises with the training"


def test_a_job_that_prints_only_evaluations_has_their_steps() -> None:
    lines = [f'{{"step": {step}, "eval_loss": 1.0}}' for step in range(10, 41, 10)]
    assert told(lines) == [10, 20, 30, 40]
    assert told([*lines[:1], *plain(11, 40)]) == list(range(10, 41)), "until it prints others"


def test_after_a_resume_the_epochs_that_are_over_count() -> None:
    reader, counter = Reader(WORDS), Steps(40, 1, Laps(20, 10, 10))
    lines = [reader.read(f"Epoch {epoch}: step {n}/10") for epoch in (2, 3) for n in range(1, 11)]
    assert [counter.count(line) for line in lines if line is not None] == list(range(21, 41))


@pytest.mark.parametrize("seed", range(200))
def test_the_step_never_goes_back_and_a_training_is_never_still(seed: int) -> None:
    """Ranks that are behind, evaluations, epochs, lines of the configuration, in any order."""
    chance = random.Random(seed)
    ranks, per_epoch, every = chance.randint(1, 4), chance.choice([0, 0, 12, 25]), chance.choice([1, 1, 1, 5])
    lines: list[str] = ['{"iteration": 90000}'] * chance.randint(0, 2)
    moments: list[tuple[float, str]] = []
    for step in range(1, 101):
        if step % every:
            continue
        epoch, n = divmod(step - 1, per_epoch) if per_epoch else (0, step - 1)
        for rank in range(ranks):
            named = f'"epoch": {epoch}, ' if per_epoch else ""
            moments.append((step + rank * chance.random() * every, f'{{{named}"step": {n + 1}, "loss": 1.0}}'))
        if step % 20 == 0 and chance.random() < 0.5:
            moments += [
                (step + 0.99 + n / 1e4, f'{{"eval_loss": 1.0, "step": {n}}}') for n in range(chance.randint(1, 60))
            ]
    lines += [line for _, line in sorted(moments, key=lambda moment: moment[0])]
    steps = told(lines, steps=100)
    assert steps == sorted(set(steps)), "never back"
    assert abs(steps[-1] - 100) <= every and len(steps) >= 0.8 * 100 / every
