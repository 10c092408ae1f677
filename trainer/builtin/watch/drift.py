"""The detectors of what goes wrong slowly: a rise of the training loss, of the gradient's norm or of the held-out loss
that no single step shows."""

from __future__ import annotations

import math
from typing import Any

from trainer.builtin.watch.detectors import FEWEST, TINY, Alarm, Seen
from trainer.builtin.watch.statistics import Window

_WEIGHTS = (1 / 32, 1 / 256)
"""Weight of a new value in each level. The second finds what is small beside the noise."""
_SPREAD = 3.0
"""Robust standard deviations beyond which a value counts as if it lay there: one outlier moves no level."""
_ERRORS = 9.0
"""Standard errors of a level that make a rise. docs/benchmarks.md has the steps between two false alarms."""
_MOST_CORRELATED = 0.9
_WITNESSED = 0.5
"""Factor of both bounds while the held-out loss is above its least, too."""
_QUIET_STEPS = 512
"""Steps without an alarm after one, and after a warm-up: the second level has then come to where the signal is."""


class Rise:
    """Judges the logarithm of one signal: how far is its level above the lowest that it has had?

    A level is an exponentially weighted mean. Its distance from its own minimum is Page's statistic ("Continuous
    inspection schemes", 1954) of the smoothed series. The standard error of a level with weight w is
    s sqrt(w / (2 - w)) (Roberts 1959, "Control chart tests based on geometric moving averages"), with s the robust
    standard deviation x sqrt((1 + r) / (1 - r)), where r is the correlation of neighbouring values.
    """

    def __init__(self, window: int, least: float, healthy: float) -> None:
        """`least`: smallest rise, as a logarithm. `healthy`: what a sound signal may rise in a step, for ever."""
        self._least, self._healthy = least, healthy
        self._residuals, self._changes = Window(2 * window), Window(2 * window)
        self._previous = 0.0
        self._levels: list[float] = []
        self._lows: list[float] = []
        self._low_steps: list[int] = []
        self._quiet = 0

    def judge(self, step: int, value: float, factor: float = 1.0) -> tuple[float, float, int] | None:
        """Add a value. Return (level, the bound that it passed, first step of the rise) when it raises an alarm.
        `factor`: of the bounds. A value that is not finite says nothing here: it would stay in the levels for ever."""
        if not math.isfinite(value):
            return None
        if not self._levels:
            self._levels, self._previous = [value] * len(_WEIGHTS), value
            self._settle(step)
            return None
        self._follow(value)
        self._quiet = max(0, self._quiet - 1)
        if self._quiet or len(self._residuals) < 2 * FEWEST:
            self._settle(step)
            return None
        for index, level in enumerate(self._levels):
            self._lows[index] += self._healthy
            if level <= self._lows[index]:
                self._lows[index], self._low_steps[index] = level, step
        for index, level in enumerate(self._levels):
            rise = level - self._lows[index]
            if rise <= factor * self._least:
                continue
            bound = factor * max(self._least, _ERRORS * self._error(_WEIGHTS[index]))
            if rise > bound:
                alarm = (level, self._lows[index] + bound, self._low_steps[index])
                self._quiet = _QUIET_STEPS
                self._settle(step)
                return alarm
        return None

    def wait(self) -> None:
        """Judge nothing until the levels have come to where the signal is."""
        self._quiet = _QUIET_STEPS

    def _follow(self, value: float) -> None:
        residual, spread, middle = value - self._levels[0], math.inf, 0.0
        if len(self._residuals) >= FEWEST:
            spread, middle = _SPREAD * self._residuals.deviation, self._residuals.median
        # A level that lags behind a signal that falls, or has fallen, follows it.
        bounded_residual = min(max(residual, min(0.0, middle) - spread), max(0.0, middle) + spread)
        target = self._levels[0] + bounded_residual
        self._residuals.add(residual)
        self._changes.add(value - self._previous)
        self._previous = value
        self._levels = [level + w * (target - level) for level, w in zip(self._levels, _WEIGHTS, strict=True)]

    def _settle(self, step: int) -> None:
        self._lows, self._low_steps = list(self._levels), [step] * len(self._levels)

    def _error(self, weight: float) -> float:
        deviation, change = self._residuals.deviation, self._changes.deviation
        correlation = 1 - change**2 / max(2 * deviation**2, TINY)
        correlation = min(max(correlation, 0.0), _MOST_CORRELATED)
        return deviation * math.sqrt((1 + correlation) / (1 - correlation) * weight / (2 - weight))

    def state(self) -> dict[str, Any]:
        return {
            "residuals": self._residuals.state(), "changes": self._changes.state(), "previous": self._previous,
            "levels": self._levels, "lows": self._lows, "low_steps": self._low_steps, "quiet": self._quiet,
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        self._residuals.restore(state["residuals"])
        self._changes.restore(state["changes"])
        self._previous, self._quiet = float(state["previous"]), int(state["quiet"])
        self._levels, self._lows = list(state["levels"]), list(state["lows"])
        self._low_steps = list(state["low_steps"])


class Drift:
    """The training loss, or the gradient's norm, rises slowly. The held-out loss is a second witness of the first."""

    name = "drift"
    least_loss = math.log(1.03)
    healthy_loss = 2e-5
    """A sound loss may wander up by 2 % in 1,000 steps."""
    least_norm = math.log(2.5)
    healthy_norm = 1e-3
    """Norms rise while sound models learn: 2.6 times in 600 steps of the small model of `tests.bench.watch`."""
    held_out_margin = 0.02

    def __init__(self, window: int) -> None:
        self._loss = Rise(window, self.least_loss, self.healthy_loss)
        self._norm = Rise(window, self.least_norm, self.healthy_norm)
        self._rate = 0.0
        self._best: float | None = None
        self._excess = 0.0
        """How far the newest held-out loss is above its least, as a share."""

    def look(self, signals: Seen) -> Alarm | None:
        if (held_out := signals.held_out) is not None:
            self._best = held_out if self._best is None else min(self._best, held_out)
            self._excess = held_out / max(self._best, TINY) - 1
        is_witnessed = self._excess > self.held_out_margin
        factor = _WITNESSED if is_witnessed else 1.0
        witness = f", and the held-out loss is {self._excess:.1%} above its least" if is_witnessed else ""
        alarm = self._alarm("the loss", self._loss.judge(signals.step, _log(signals.loss), factor), witness)
        if signals.norm is None:
            return alarm
        if signals.rate > self._rate:
            # In a warm-up the norm goes where the learning rate takes it.
            self._norm.wait()
        self._rate = signals.rate
        rise = self._norm.judge(signals.step, _log(signals.norm))
        return alarm or self._alarm("the gradient's norm", rise, "")

    def _alarm(self, title: str, rise: tuple[float, float, int] | None, witness: str) -> Alarm | None:
        if rise is None:
            return None
        level, bound, onset = math.exp(rise[0]), math.exp(rise[1]), rise[2]
        text = f"{title} has risen since step {onset}: its level is {level:.4g}, beyond {bound:.4g}{witness}"
        return Alarm(self.name, level, bound, onset, text)

    def state(self) -> dict[str, Any]:
        return {
            "loss": self._loss.state(), "norm": self._norm.state(), "rate": self._rate, "best": self._best,
            "excess": self._excess,
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        self._loss.restore(state["loss"])
        self._norm.restore(state["norm"])
        self._rate, self._best, self._excess = state["rate"], state["best"], state["excess"]


class Divergence:
    """The held-out loss is twice in a row above its least, by more than its own noise."""

    name = "divergence"
    margin = 0.02
    """Least rise of the held-out loss over its best, as a share."""
    _sigmas = 8.0
    """Robust standard deviations of one evaluation; the least of many lies some of them too low."""
    _fewest = 8

    def __init__(self) -> None:
        self._smooth: float | None = None
        self._best: float | None = None
        self._at_best = 0.0
        """Training loss, smoothed, at the best evaluation."""
        self._since = -1
        self._over = 0
        self._previous = 0.0
        self._changes = Window(32)
        """Of the logarithm, between two evaluations."""

    def look(self, signals: Seen) -> Alarm | None:
        self._smooth = signals.loss if self._smooth is None else 0.95 * self._smooth + 0.05 * signals.loss
        if (held_out := signals.held_out) is None:
            return None
        if self._best is not None:
            self._changes.add(_log(held_out) - self._previous)
        self._previous = _log(held_out)
        if self._best is None or held_out < self._best:
            self._best, self._at_best, self._since, self._over = held_out, self._smooth, signals.step, 0
            return None
        bound = self._best * math.exp(max(math.log(1 + self.margin), self._noise()))
        self._over = self._over + 1 if held_out > bound else 0
        if self._over != 2:
            return None
        training = "falls" if self._smooth < self._at_best else "rises too"
        text = f"the held-out loss is {held_out:.4g}, {self._best:.4g} at its best, while the training loss {training}"
        return Alarm(self.name, held_out, bound, self._since, text)

    def _noise(self) -> float:
        if len(self._changes) < self._fewest:
            return 0.0
        return self._sigmas * self._changes.deviation / math.sqrt(2)

    def state(self) -> dict[str, Any]:
        return {
            "smooth": self._smooth, "best": self._best, "at_best": self._at_best, "since": self._since,
            "over": self._over, "previous": self._previous, "changes": self._changes.state(),
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        self._smooth, self._best = state["smooth"], state["best"]
        self._at_best, self._since, self._over = state["at_best"], state["since"], state["over"]
        self._previous = float(state["previous"])
        self._changes.restore(state["changes"])


def _log(value: float) -> float:
    return math.log(max(value, TINY))
