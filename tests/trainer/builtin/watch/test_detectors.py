"""What each detector raises, and that a detector that goes on from its state decides alike, bit for bit."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import replace

import pytest

from trainer.builtin.watch.detectors import Seen
from trainer.builtin.watch.statistics import Window
from trainer.builtin.watch.times import Straggler, ThroughputDetector
from trainer.builtin.watch.watch import Watch
from trainer.contract import WatchConfig

GROUPS = ("embedding", "blocks 0-1", "blocks 2-3", "norm")


def steps(count: int, seed: int = 1) -> list[Seen]:
    """A quiet training: the loss falls, all else is noise around a slow drift."""
    chance, found = random.Random(seed), []
    weights = dict.fromkeys(GROUPS, 10.0)
    for step in range(1, count + 1):
        weights = {name: norm * (1 + 1e-4 * (1 + chance.gauss(0, 0.02))) for name, norm in weights.items()}
        found.append(
            Seen(
                step=step,
                loss=3 + 4 * math.exp(-step / 40) + chance.gauss(0, 0.02),
                rate=1e-3,
                norm=0.5 * math.exp(chance.gauss(0, 0.1)),
                layers=tuple((name, 0.2 * math.exp(chance.gauss(0, 0.05))) for name in GROUPS),
                weights=tuple(weights.items()),
                activation=2 * math.exp(chance.gauss(0, 0.01)),
                entropy=4 + chance.gauss(0, 0.02),
            )
        )
    return found


def rang(watch: Watch, given: Iterable[Seen]) -> list[tuple[int, str]]:
    return [(seen.step, one.alarm.detector) for seen in given for one in watch.judge(seen)]


def changed(given: list[Seen], step: int, **values: object) -> list[Seen]:
    return [replace(seen, **values) if seen.step == step else seen for seen in given]  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(5))
def test_a_quiet_training_raises_nothing(seed: int) -> None:
    assert rang(Watch(WatchConfig()), steps(400, seed)) == []


@pytest.mark.parametrize(
    ("detector", "values"),
    [
        ("loss", {"loss": 4.5}),
        ("norm", {"norm": 5.0}),
        ("activations", {"activation": 3.0}),
        ("data", {"entropy": 0.0}),
        ("data", {"entropy": 5.0}),
        ("weights", {"weights": (("embedding", 10.5), ("blocks 0-1", 10.0), ("blocks 2-3", 10.0), ("norm", 10.0))}),
    ],
)
def test_each_detector_sees_its_trouble_at_its_first_step(detector: str, values: dict[str, object]) -> None:
    found = rang(Watch(WatchConfig()), changed(steps(120), 100, **values))
    assert (100, detector) in found and all(step >= 100 for step, _ in found)


def test_a_group_of_layers_that_dies_is_seen_at_once() -> None:
    given = steps(120)
    for step in (100, 101, 102):
        given = changed(given, step, layers=(("embedding", 1e-6), *given[step - 1].layers[1:]))
    assert rang(Watch(WatchConfig()), given) == [(100, "layers")]


def test_a_wrong_learning_rate_shows_in_how_far_the_weights_move() -> None:
    given = steps(120)
    for index in range(99, 120):
        before = dict(given[index - 1].weights)
        given[index] = replace(given[index], weights=tuple((name, norm * 1.001) for name, norm in before.items()))
    assert rang(Watch(WatchConfig()), given)[0] == (100, "weights")


def test_one_episode_is_one_alarm_and_what_stays_is_the_new_normal() -> None:
    given = steps(300)
    for step in range(100, 301):
        given = changed(given, step, activation=4.0 + 0.01 * (step % 3))
    assert rang(Watch(WatchConfig()), given) == [(100, "activations")]


def test_the_held_out_loss_that_rises_twice_while_the_training_loss_falls_is_divergence() -> None:
    given = steps(200)
    for step, held_out in ((50, 4.2), (100, 3.9), (130, 4.1), (160, 4.3), (190, 4.5)):
        given = changed(given, step, held_out=held_out)
    assert rang(Watch(WatchConfig()), given) == [(160, "divergence")]


def test_a_watch_that_goes_on_from_its_state_raises_the_same_alarms() -> None:
    given = changed(changed(steps(300), 120, loss=5.0), 180, norm=6.0)
    given = changed(given, 128, entropy=1.0)
    whole, first, second = Watch(WatchConfig()), Watch(WatchConfig()), Watch(WatchConfig())
    alarms = rang(whole, given)
    before = rang(first, given[:125])
    second.restore(first.state())
    assert second.state() == first.state()
    assert before + rang(second, given[125:]) == alarms and len(alarms) >= 3
    assert second.state() == whole.state()


def test_a_lower_learning_rate_lasts_for_its_steps_also_over_a_restart() -> None:
    config = WatchConfig(loss="slow", slow_factor=0.25, slow_steps=30)
    watch = Watch(config)
    rang(watch, changed(steps(100), 100, loss=6.0))
    resumed = Watch(config)
    resumed.restore(watch.state())
    assert [resumed.rate_factor(step) for step in (100, 129, 130)] == [0.25, 0.25, 1.0]


def test_what_is_switched_off_raises_nothing_and_clips_nothing() -> None:
    off = WatchConfig(loss="off", norm="off")
    watch = Watch(off)
    assert rang(watch, changed(changed(steps(100), 99, loss=9.0), 100, norm=50.0)) == []
    assert watch.clip(1.0) == 1.0


def test_clipping_bounds_only_what_is_an_outlier() -> None:
    watch = Watch(WatchConfig(clip=True, norm="off"))
    assert watch.clip(3.0) == 3.0, "nothing is known yet"
    rang(watch, steps(100))
    assert 0.5 < watch.clip(3.0) < 3.0


def test_the_window_has_the_median_of_its_last_values() -> None:
    window, chance = Window(16), random.Random(3)
    values = [chance.choice((1.0, 2.0, chance.random())) for _ in range(200)]
    for index, value in enumerate(values):
        window.add(value)
        last = sorted(values[max(0, index - 15) : index + 1])
        half = len(last) // 2
        assert window.median == (last[half] if len(last) % 2 else (last[half - 1] + last[half]) / 2)


def test_a_rank_that_grows_slow_is_named_once_and_a_hiccup_is_not() -> None:
    chance, watch, found = random.Random(5), Straggler(), []
    for step in range(1, 301):
        seconds = [0.1 * (1 + abs(chance.gauss(0, 0.02))) for _ in range(32)]
        seconds[3] *= 5 if step in (60, 61) else 1
        seconds[17] *= 1.4 if step > 120 else 1
        if (alarm := watch.look(step, seconds)) is not None:
            found.append((step, alarm[1]))
    assert len(found) == 1 and found[0][1] == 17 and 130 < found[0][0] < 160


def test_when_many_ranks_are_slow_none_is_blamed() -> None:
    watch = Straggler()
    slow = [0.1] * 24 + [0.2] * 8
    assert all(watch.look(step, slow) is None for step in range(1, 100))


def test_a_slow_decline_of_throughput_is_told_once() -> None:
    chance, watch = random.Random(5), ThroughputDetector()
    given = [(0.2 + max(0, step - 200) * 1e-4) * (1 + chance.gauss(0, 0.01)) for step in range(1, 501)]
    found = [step for step, seconds in enumerate(given, 1) if watch.look(step, seconds) is not None]
    assert len(found) == 1 and 300 < found[0] < 400


def test_at_a_rate_near_zero_the_rounding_of_a_norm_is_no_movement_of_the_weights() -> None:
    """The norm's last bits in float32 change by chance, and a cosine decay divides them by almost nothing."""
    watch, chance, norm, total = Watch(WatchConfig()), random.Random(3), 10.0, 2000
    found = []
    for step in range(1, total):
        rate = 3e-4 * 0.5 * (1 + math.cos(math.pi * step / total))
        norm *= 1 + 0.1 * rate
        given = Seen(step=step, loss=3.0, rate=rate, norm=None, weights=(("all", norm * (1 + chance.gauss(0, 6e-8))),))
        found += watch.judge(given)
    assert found == []
