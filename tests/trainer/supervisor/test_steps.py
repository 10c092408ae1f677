"""The step, out of transcripts of what jobs print. What is right is counted here by hand, never by the code."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

import pytest

from trainer.supervisor.progress.lines import LineReader
from trainer.supervisor.progress.steps import Laps, Steps

WORDS = r"step:? +(?P<step>\d+)"
BAR = r"(?P<step>\d+)/\d+ \["


def told(lines: Iterable[str], pattern: str | None = None, steps: int = 40, offered: int = 0) -> list[int]:
    """Each step as it rose."""
    reader, counter = LineReader(pattern), Steps(steps, offered)
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
    assert told(plain(500, 5000, 500), steps=4000) == list(range(1000, 5001, 500))


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


@pytest.mark.parametrize(("key", "words"), [("mode", ("train", "eval")), ("split", ("training", "validation"))])
def test_an_evaluation_with_a_loss_that_only_a_value_tells_apart_is_no_step(key: str, words: tuple[str, str]) -> None:
    training, evaluation = (
        [f'{{"{key}": "{word}", "step": {n}, "loss": 1.0}}' for n in range(1, 61)] for word in words
    )
    assert told([*training[:20], *evaluation, *training[20:40], *evaluation]) == list(range(1, 41))
    assert told(evaluation[:40]) == list(range(1, 41)), "a run may be called so"


def test_an_evaluation_that_looks_like_the_training_counts_and_stops_no_step() -> None:
    parts = [plain(1, 20), plain(1, 8), plain(21, 40)]
    reader, counter = LineReader(), Steps(40)
    rises = [sum(counter.count(line) is not None for text in part if (line := reader.read(text))) for part in parts]
    assert rises[0] == 20 and rises[2] >= 18


def test_a_count_beside_the_steps_under_another_key_is_no_step_until_it_alone_rises() -> None:
    beside = [
        line
        for step in range(1, 41)
        for line in (f'{{"step": {step}, "loss": 1.0}}', *['{"epoch": 1, "iteration": 1, "lr": 0.1}'] * (step % 5 == 0))
    ]
    assert told(beside) == UP_TO_40
    rising = [line for step in range(1, 41) for line in (f'{{"step": {step}}}', f'{{"iteration": {step // 3}}}')]
    assert told(rising) == UP_TO_40
    assert told([*plain(1, 20), *(f'{{"iteration": {n}}}' for n in range(1, 31))])[-1] >= 40, "it goes on as that"
    mixed = ['{"global_step": 1, "step": 7}', '{"global_step": 2, "step": 9}', '{"global_step": 3, "step": 9}']
    assert told(mixed) == [7, 9]


def test_what_is_printed_behind_a_bar_without_an_end_of_line_does_not_hide_its_number() -> None:
    lines = [f"\r 9%|# | {n}/40 [00:01<00:10]" + '{"step": 1, "eval_loss": 0.5}' * (n % 13 == 0) for n in range(1, 41)]
    assert told(lines, BAR) == UP_TO_40
    assert told([f'{{"eval_loss": 0.5, "step": {n}}} step {n}' for n in range(1, 4)] + ["step 2"], WORDS) == [1, 2, 3]


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
    reader, counter = LineReader(WORDS), Steps(40, 1, Laps(20, 10, 10))
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


def test_how_far_a_number_may_lie_beyond_the_last_one() -> None:
    """Ten, a tenth of the estimate, or three times what it rose by lately."""
    assert told([*plain(1, 1), *plain(11, 11), *plain(22, 22)]) == [1, 11, 22]
    assert told([*plain(1, 1), *plain(12, 12)]) == [1] and told(plain(10, 10)) == [10] and told(plain(11, 11)) == []
    assert told([*plain(1, 1), *plain(101, 101)], steps=1000) == [1, 101]
    assert told([*plain(1, 1), *plain(102, 102)], steps=1000) == [1]
    assert told([*plain(0, 40, 20), *plain(100, 100)], steps=400) == [0, 20, 40, 100]
    assert told([*plain(0, 40, 20), *plain(101, 101)], steps=400) == [0, 20, 40]
    assert told([*plain(0, 40, 20), *plain(101, 101), *plain(121, 121)], steps=400) == [0, 20, 40, 121]


def test_a_number_that_waits_is_believed_with_one_near_to_it() -> None:
    assert told([*plain(500, 500), *plain(900, 900)], steps=4000) == [900]
    assert told([*plain(500, 500), *plain(1001, 1001)], steps=4000) == [], "each waits for one as near as it is itself"
    assert told([*plain(500, 500), *plain(500, 500)], steps=4000) == []
    assert told([*plain(500, 500), *plain(450, 450), *plain(500, 500)], steps=4000) == [500]
    assert told([*plain(9000, 9000), *plain(1, 2), *plain(9001, 9001)], steps=4000) == [1, 2]


def counted(lines: Iterable[str], pattern: str | None = None, steps: int = 40) -> Steps:
    reader, counter = LineReader(pattern), Steps(steps)
    for text in lines:
        if (line := reader.read(text)) is not None:
            counter.count(line)
    return counter


def test_what_is_known_of_the_laps() -> None:
    epochs = [f"Epoch {epoch}: step {n}/10" for epoch in range(3) for n in range(1, 11)]
    assert counted(epochs, WORDS).laps == Laps(30, 20, 10)
    assert (
        counted(plain(10, 40, 10)).interval == 10 and counted([]).interval == 1 and counted(plain(1, 1)).interval == 1
    )
    assert [counted([*plain(0, 20, 10), *plain(21, last)], steps=400).interval for last in (35, 36)] == [10, 1]
    assert counted([]).laps == Laps(0) and counted(plain(0, 0)).laps == Laps(0) and counted(plain(1, 7)).laps == Laps(7)
    assert counted([*plain(10, 100, 10), *plain(10, 30, 10)], steps=400).laps == Laps(130, 100, 100)
    plainly = [plain(1, 5), [f"step {n}/40" for n in range(5)]]
    assert not any(counted(lines, pattern).has_laps for lines, pattern in zip(plainly, (None, WORDS), strict=True))
    batches = [["Epoch 0: step 5"], ["step 5/10"], [f"step {n}" for _ in range(2) for n in range(4)]]
    assert all(counted(lines, WORDS).has_laps for lines in batches) and not counted([]).has_laps


def test_one_number_alone_is_the_step_at_the_end_unless_it_is_beyond_it() -> None:
    assert counted(plain(40, 40)).settle() == 40 and counted(plain(41, 41)).settle() is None
    assert counted(plain(1, 1)).settle() == 1 and counted([*plain(1, 3), *plain(40, 40)]).settle() == 3
    assert counted(['{"step": 40, "eval_loss": 1.0}']).settle() is None


def test_a_bar_whose_last_rewrite_jumps_far_ahead_has_reached_its_total() -> None:
    jump = [*bar(4, 4, 40), *bar(40, 40, 40)]
    assert told(jump, BAR) == [4] and counted(jump, BAR).settle() == 40
    assert counted([*bar(4, 4, 40), *bar(30, 30, 40)], BAR).settle() == 4
    lap = [*bar(1, 10, 10), *bar(1, 3, 10)]
    assert counted([*lap, *bar(10, 10, 10)], BAR, steps=20).settle() == 20


def test_a_bar_leads_at_once_where_nobody_has_estimated_the_steps() -> None:
    assert told(bar(0, 9, 200), BAR, steps=1) == list(range(10)) and told(bar(0, 8, 200), BAR, steps=2) == []
    assert counted([*bar(0, 0, 20), *bar(20, 20, 20)], BAR, steps=1).settle() == 20


def test_a_series_whose_total_is_far_beyond_the_estimate_leads_after_ten_rises() -> None:
    assert told(bar(1, 60, 60), BAR) == list(range(10, 61)) and told(bar(1, 48, 48), BAR) == list(range(1, 49))
    assert told(bar(1, 60, 60, "Map:"), BAR) == [] and told(bar(1, 9, 60), BAR) == []


def test_a_series_takes_the_lead_from_one_that_stands_at_its_total_and_counts_on() -> None:
    first = bar(1, 20, 20)
    assert told([*first, *bar(1, 30, 30)], BAR) == list(range(1, 21)) + list(range(21, 42)), "its tenth rise is step 21"
    assert told([*first, *bar(15, 30, 30)], BAR) == list(range(1, 21)) + list(range(24, 31)), "it is ahead by then"
    assert told([*first[:18], *bar(1, 30, 30)], BAR) == list(range(1, 19)), "that one may go on"
    assert told([*first[:19], *bar(1, 9, 30), *first[19:], *bar(10, 18, 30)], BAR) == list(range(1, 21))
    assert told([*first, *bar(1, 30, 30, "eval")], BAR) == list(range(1, 21))
    assert told([*bar(1, 8, 8), *bar(1, 40, 40)], BAR) == UP_TO_40, "one whose total is the estimate's leads at once"
    assert told([*bar(1, 30, 30), *bar(1, 40, 40)], BAR) == list(range(1, 71)), "and counts on from far ahead"
    assert told([*bar(1, 40, 40), *bar(1, 45, 45)], BAR) == UP_TO_40, "and keeps it"


def test_a_climb_that_is_broken_begins_anew() -> None:
    assert told([*plain(1, 10), *plain(1, 2), *plain(1, 3)])[-1] == 13
    assert told([*plain(1, 10), *plain(1, 2), *plain(2, 2)])[-1] == 10
    assert told([*plain(1, 10), *plain(5, 9)])[-1] == 10, "it does not begin where the series did"
    assert told([*plain(1, 10), *plain(2, 4)])[-1] == 14 - 2 + 1
    assert told([*plain(1, 10), *plain(1, 2), *plain(11, 12), *plain(3, 3)])[-1] == 12


def test_a_rank_that_is_behind_in_another_epoch_changes_nothing() -> None:
    lines = ["epoch 0 step 9", "epoch 0 step 10", "epoch 1 step 1", "epoch 0 step 11", "epoch 1 step 2"]
    assert told(lines, WORDS) == [9, 10, 11, 12]
    headed = ["Epoch 1", *(f"step {n}" for n in range(1, 11)), "Epoch 2", "step 9", "step 1", "step 10", "step 2"]
    assert told(headed, WORDS)[-3:] == [10, 11, 20], "and where a heading alone names it, it counts too much at most"


def test_a_line_that_names_a_far_epoch_stops_nothing() -> None:
    """`epoch` may be their number in a line of the configuration."""
    assert told(["epoch 100 step 0", *(f"epoch 0 step {n}" for n in range(1, 11)), "epoch 1 step 1"], WORDS)[-1] == 11


@pytest.mark.parametrize(
    ("before", "first", "step"),
    [(Laps(20, 10, 10), 1, 21), (Laps(25, 20, 10), 6, 26), (Laps(25, 20, 10), 4, 24), (Laps(29, 20, 10), 1, 31),
     (Laps(7), 8, 8), (None, 8, 8)],
)  # fmt: skip
def test_the_first_number_after_a_resume_is_counted_from_what_was_known(
    before: Laps | None, first: int, step: int
) -> None:
    counter, reader = Steps(400, 2, before), LineReader()
    line = reader.read(f'{{"step": {first}}}')
    assert line is not None and counter.count(line) == step


def test_many_kinds_of_lines_are_not_kept_without_end() -> None:
    counter = counted([f"step 1/{total}" for total in range(1, 1000)], WORDS, steps=1000)
    assert counter.step == 1 and len(counter._series) <= 64
