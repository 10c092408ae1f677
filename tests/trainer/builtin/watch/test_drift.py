"""What rises slowly is found, with its begin; what a sound training does raises nothing. The noise is drawn here."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from trainer.builtin.watch.detectors import Alarm, Seen
from trainer.builtin.watch.drift import Drift
from trainer.builtin.watch.watch import Watch
from trainer.contract import WatchConfig

LENGTH, ONSET = 1400, 700
Noise = Callable[[random.Random], float]


def normal(chance: random.Random) -> float:
    return chance.gauss(0, 1)


def student(chance: random.Random) -> float:
    """Student's t with three degrees of freedom: normal / sqrt(chi-squared / 3)."""
    return chance.gauss(0, 1) / math.sqrt(sum(chance.gauss(0, 1) ** 2 for _ in range(3)) / 3)


def training(seed: int, noise: Noise = normal, loss_noise: float = 0.02, norm_noise: float = 0.1) -> list[Seen]:
    """A sound training: warm-up, a loss that falls, a held-out loss beside it, entropy and output that only waver."""
    chance, found = random.Random(f"{seed} {noise.__name__}"), []
    for step in range(1, LENGTH + 1):
        level = 2.5 + 4 * math.exp(-step / 60) + 0.5 * math.exp(-step / 900)
        found.append(
            Seen(
                step=step,
                loss=level * math.exp(loss_noise * noise(chance)),
                rate=1e-3 * min(1.0, step / 100),
                norm=0.5 * (1 + 3 * math.exp(-step / 40)) * math.exp(norm_noise * noise(chance)),
                activation=2 * math.exp(0.01 * chance.gauss(0, 1)),
                entropy=4 + 0.02 * chance.gauss(0, 1),
                held_out=1.02 * level * math.exp(0.002 * chance.gauss(0, 1)) if step % 50 == 0 else None,
            )
        )
    return found


def scaled(
    steps: list[Seen], factor: Callable[[int], float], *signals: str, first: int = ONSET, last: int = LENGTH
) -> list[Seen]:
    """Multiply signals by a factor that depends on the steps since `first`."""
    return [
        replace(
            step,
            **{
                name: getattr(step, name) * factor(step.step - first)
                for name in signals
                if getattr(step, name) is not None
            },
        )
        if first <= step.step <= last
        else step
        for step in steps
    ]


def alarms(steps: list[Seen]) -> Iterator[Alarm]:
    watch = Watch(WatchConfig())
    return (finding.alarm for step in steps for finding in watch.judge(step))


def drifts(steps: list[Seen]) -> list[tuple[int, Alarm]]:
    """Return (step, alarm) of each slow rise."""
    watch = Watch(WatchConfig())
    return [(step.step, one.alarm) for step in steps for one in watch.judge(step) if one.alarm.detector == "drift"]


@pytest.mark.parametrize("noise", [normal, student])
@pytest.mark.parametrize(("a_step", "latest"), [(0.001, 110), (0.002, 80), (0.004, 60), (0.008, 45)])
def test_a_loss_that_rises_with_the_held_out_loss_beside_it_is_found(a_step: float, latest: int, noise: Noise) -> None:
    for seed in range(3):
        steps = scaled(training(seed, noise), lambda since: (1 + a_step) ** min(since, 500), "loss", "held_out")
        step, alarm = drifts(steps)[0]
        assert ONSET < step <= ONSET + latest
        assert ONSET - 64 <= alarm.onset <= step, "it says since when"


@pytest.mark.parametrize("noise", [normal, student])
def test_a_loss_that_stays_higher_by_nine_percent_is_found_once(noise: Noise) -> None:
    ((step, alarm),) = drifts(scaled(training(5, noise), lambda since: 1.09, "loss"))
    assert ONSET <= step < ONSET + 60 and "the loss has risen" in alarm.text


@pytest.mark.parametrize("noise", [normal, student])
def test_a_norm_that_grows_tenfold_is_found_and_so_is_what_goes_on(noise: Noise) -> None:
    steps = scaled(training(6, noise), lambda since: 10 ** (min(since, 400) / 400), "norm")
    step, alarm = drifts(steps)[0]
    assert "norm" in alarm.text and ONSET < step < ONSET + 350


def test_a_loss_that_goes_on_rising_is_told_again_but_not_each_step() -> None:
    assert len(drifts(scaled(training(7), lambda since: 1.004**since, "loss"))) == 2


def test_the_held_out_loss_is_a_second_witness() -> None:
    """With it a rise is called that alone would be too small beside the noise."""
    rise = 1.025
    alone = scaled(training(8), lambda since: rise, "loss")
    both = scaled(training(8), lambda since: rise + 0.01, "held_out")
    both = scaled(both, lambda since: rise, "loss")
    assert drifts(alone) == []
    assert "the held-out loss is" in drifts(both)[0][1].text


def test_a_held_out_loss_that_rises_while_the_training_loss_stands_is_divergence() -> None:
    found = list(alarms(scaled(training(9), lambda since: 1.0003**since, "held_out")))
    assert found and found[0].detector == "divergence"


def test_a_noisy_held_out_loss_is_no_divergence() -> None:
    chance = random.Random(10)
    steps = [
        replace(seen, held_out=seen.held_out * math.exp(0.015 * chance.gauss(0, 1))) if seen.held_out else seen
        for seen in (training(10) + [replace(seen, step=seen.step + LENGTH) for seen in training(10)[200:]])
    ]
    assert [alarm for alarm in alarms(steps) if alarm.detector == "divergence"] == []


def batch_change(steps: list[Seen]) -> list[Seen]:
    """A quarter of the batch: twice the norm and the noise."""
    chance = random.Random(11)
    return [
        replace(step, loss=step.loss * math.exp(0.035 * chance.gauss(0, 1)), norm=1.9 * (step.norm or 0))
        if step.step >= ONSET
        else step
        for step in steps
    ]


def decayed(steps: list[Seen]) -> list[Seen]:
    """A cosine decay from `ONSET` on: the loss falls a little faster, the norm grows by half."""
    steps = [
        replace(step, rate=step.rate * 0.5 * (1 + math.cos(math.pi * (step.step - ONSET) / (LENGTH - ONSET + 1))))
        if step.step >= ONSET
        else step
        for step in steps
    ]
    steps = scaled(steps, lambda since: 1 - 0.03 * since / 700, "loss", "held_out")
    return scaled(steps, lambda since: 1 + 0.5 * since / 700, "norm")


HEALTHY: dict[str, Callable[[list[Seen]], list[Seen]]] = {
    "nothing happens": lambda steps: steps,
    "the rate decays": decayed,
    "the mix changes and the loss falls": lambda steps: scaled(steps, lambda since: 0.85, "loss", "held_out"),
    "an evaluation's pause": lambda steps: [step for step in steps if not ONSET <= step.step < ONSET + 20],
    "steps that are repeated after a restart": lambda steps: steps[:ONSET] + steps[ONSET - 60 :],
    "a smaller batch": batch_change,
    "one bad step": lambda steps: scaled(steps, lambda since: 1.3, "loss", "norm", last=ONSET),
}


@pytest.mark.parametrize("noise", [normal, student])
@pytest.mark.parametrize("name", HEALTHY)
def test_a_sound_training_raises_no_drift(name: str, noise: Noise) -> None:
    for seed in range(20, 23):
        assert drifts(HEALTHY[name](training(seed, noise))) == []


def test_the_norm_of_a_warm_up_is_no_level() -> None:
    steps = scaled(training(24), lambda since: 0.05, "norm", first=1, last=60)
    assert drifts(steps) == []


@pytest.mark.parametrize("seed", range(2))
def test_heavy_tails_raise_next_to_nothing(seed: int) -> None:
    """Two steps in a row, or one that no noise reaches."""
    raised = 0
    for part in range(8):
        raised += sum(1 for _ in alarms(training(100 * seed + part + 30, student)))
    assert raised <= 2, "in 11,200 steps"


def test_a_dead_block_among_eighty_is_found_within_three_steps() -> None:
    chance, watch = random.Random(12), Watch(WatchConfig())
    for step in range(1, 301):
        shares = [
            math.exp(0.2 * chance.gauss(0, 1)) * (1e-4 if index == 41 and step >= 200 else 1) for index in range(80)
        ]
        layers = tuple((f"block {index}", share) for index, share in enumerate(shares))
        for finding in watch.judge(Seen(step=step, loss=3.0, rate=1e-3, layers=layers)):
            assert finding.alarm.detector == "layers" and "block 41" in finding.alarm.text and 200 <= step <= 202
            return
    raise AssertionError("nothing was raised")


def test_a_block_that_dies_slowly_widens_no_bound_of_its_own() -> None:
    chance, watch = random.Random(13), Watch(WatchConfig())
    found = []
    for step in range(1, 501):
        dying = math.exp(-0.07 * max(0, step - 200))
        layers = tuple(
            (f"block {index}", math.exp(0.1 * chance.gauss(0, 1)) * (dying if index == 3 else 1)) for index in range(16)
        )
        found += [(step, finding.alarm) for finding in watch.judge(Seen(step=step, loss=3.0, rate=1e-3, layers=layers))]
    assert found and found[0][0] < 300 and "block 3" in found[0][1].text


def test_a_search_that_goes_on_from_its_state_decides_alike() -> None:
    steps = scaled(training(14), lambda since: 1.002 ** min(since, 400), "loss", "held_out")
    whole, first, second = Drift(128), Drift(128), Drift(128)
    rang = [(step.step, alarm) for step in steps if (alarm := whole.look(step)) is not None]
    before = [alarm for step in steps[:720] if (alarm := first.look(step)) is not None]
    second.restore(first.state())
    after = [(step.step, alarm) for step in steps[720:] if (alarm := second.look(step)) is not None]
    assert before == [] and after == rang and len(rang) >= 1
    assert second.state() == whole.state()


def test_drift_follows_the_policy_of_the_spec() -> None:
    steps = scaled(training(15), lambda since: 1.09, "loss")
    for action in ("log", "stop"):
        watch = Watch(WatchConfig(drift=action))
        assert [finding.action for step in steps for finding in watch.judge(step)] == [action]
    silent = Watch(WatchConfig(drift="off"))
    assert [finding for step in steps for finding in silent.judge(step)] == []
