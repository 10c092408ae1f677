"""The detectors: pure, over rolling statistics, on values that are equal on all ranks. `watch.py` gives them an action.

Each looks at one signal of a finished step and returns an alarm or None. One alarm is raised per episode: while a value
stays outside, and for some steps after, the detector is silent. Its state is saved in the checkpoint, so a resumed run
raises the same alarms at the same steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

from trainer.builtin.watch.statistics import Window

FEWEST = 24
"""Values before a detector judges."""
TINY = 1e-30
_JUMP = 15.0
"""Student's t with three degrees of freedom jumps so far once in 15,000 steps, but passes seven robust standard
deviations on one side once in 500."""
_TREND = 0.1
_LEAST_ROUNDING = 1e-6
"""Differences below it are alike."""
_BLUR = 8 * 2.0**-23
"""Relative error of a norm in float32: a step of a learning rate near zero moves weights by less."""


@dataclass(frozen=True)
class Alarm:
    detector: str
    value: float
    threshold: float
    onset: int
    """The step at which it began, as far as the detector can tell."""
    text: str


@dataclass(frozen=True)
class Seen:
    """One finished step; each value is equal on all ranks, None where it is not known."""

    step: int
    loss: float
    rate: float
    norm: float | None = None
    layers: tuple[tuple[str, float], ...] = ()
    """(group of layers, norm of its gradients)."""
    weights: tuple[tuple[str, float], ...] = ()
    """(group of layers, norm of its weights after the step)."""
    activation: float | None = None
    """Root mean square of the last block's output, in the step's first micro batch."""
    entropy: float | None = None
    """Mean entropy in nats of the tokens in a micro batch."""
    held_out: float | None = None
    """Held-out loss, newly evaluated after the step before."""
    rounding: float | None = None
    """Relative difference of the loss from what float32 gives, where it was looked for before the step."""


class Detector(Protocol):
    name: str

    def look(self, signals: Seen) -> Alarm | None: ...

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: dict[str, Any]) -> None: ...


class Outlier:
    """Judges one series: a value is outside when it is further from the rolling median than `sigmas` robust standard
    deviations and than `least`. What is outside does not enter the window, unless it stays: then it is the new normal.

    With `needs` above 1 one step alone makes an alarm only when no noise has such tails: it must be `far` times as far
    out, or, without `far`, out by `_JUMP` robust standard deviations of a change between two steps.
    """

    def __init__(
        self,
        window: int,
        sigmas: float,
        floor: float,
        checks_low: bool,
        *,
        needs: int = 1,
        settle: int = 32,
        far: float | None = None,
        ceiling: float = math.inf,
    ) -> None:
        """`needs`: steps in a row that make an alarm; a value that is `far` times as far out makes one at once.
        `settle`: steps after which what stays outside is the new normal, and for which there is no second alarm.
        `ceiling`: a distance that is outside in any noise, so also where a slow change has widened the window."""
        self._window = Window(window)
        self._sigmas, self._least, self._below, self._settle, self._needs = (sigmas, floor, checks_low, settle, needs)
        self._far, self._ceiling = far, max(floor, ceiling)
        self._outside: list[float] = []
        self._quiet = 0
        """Steps for which no new alarm is raised."""
        self._began = -1
        self._middle = 0.0

    @property
    def bound(self) -> float | None:
        """Upper bound of what is inside; None before the detector judges."""
        if len(self._window) < FEWEST:
            return None
        return self._window.median + self._distance(self._least)

    def _distance(self, floor: float) -> float:
        """Return how far from the median a value is inside."""
        return max(floor, min(self._ceiling, self._sigmas * self._window.deviation))

    def limit(self, value: float) -> float:
        """Return the value, or the upper bound if it is above it."""
        if len(self._window) < FEWEST or value <= self._window.median + self._least:
            return value
        bound = self.bound
        return value if bound is None else min(value, bound)

    def judge(self, step: int, value: float, blur: float = 0.0) -> tuple[float, int] | None:
        """Add a value. Return (bound that it passed, first step of the episode) when it raises an alarm. `blur`: how
        far a value may be off by its own rounding."""
        floor = max(self._least, blur)
        self._quiet = max(0, self._quiet - 1)
        self._middle = self._window.median if len(self._window) else 0.0
        if len(self._window) < FEWEST or abs(value - self._middle) <= floor:
            self._outside.clear()
            self._window.add(value)
            return None
        bound = self._middle + self._distance(floor)
        low = 2 * self._middle - bound
        is_high, is_low = value > bound, self._below and value < low
        if not is_high and not is_low:
            self._outside.clear()
            self._window.add(value)
            return None
        if not self._outside:
            self._began = step
        self._outside.append(value)
        alarm = (bound if is_high else low, self._began)
        if len(self._outside) >= self._settle:
            self._window.clear()
            for outside_value in self._outside:
                self._window.add(outside_value)
            self._outside.clear()
        if self._quiet or (0 < len(self._outside) < self._needs and not self._is_far(value, bound)):
            return None
        self._quiet = self._settle
        return alarm

    def _is_far(self, value: float, bound: float) -> bool:
        distance = abs(value - self._middle)
        return distance > (_JUMP * self._window.change if self._far is None else self._far * (bound - self._middle))

    def state(self) -> dict[str, Any]:
        return {
            "window": self._window.state(), "outside": list(self._outside), "quiet": self._quiet, "began": self._began,
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        self._window.restore(state["window"])
        self._outside = [float(value) for value in state["outside"]]
        self._quiet, self._began = int(state["quiet"]), int(state["began"])


class Series:
    """An outlier test of the logarithm of one signal of a step; with `trend` of its distance from a moving average,
    which hides no spike while the signal itself falls fast."""

    def __init__(self, name: str, title: str, signal: str, outlier: Outlier, trend: bool = False) -> None:
        self.name, self._what, self._signal = name, title, signal
        self.outlier, self._follows = outlier, trend
        self._trend: float | None = None

    def look(self, signals: Seen) -> Alarm | None:
        value: float | None = getattr(signals, self._signal)
        if value is None:
            return None
        log_value = math.log(max(value, TINY))
        trend = (log_value if self._trend is None else self._trend) if self._follows else 0.0
        if self._follows:
            self._trend = trend + _TREND * self.outlier.limit(log_value - trend)
        outlier = self.outlier.judge(signals.step, log_value - trend)
        if outlier is None:
            return None
        bound, onset = math.exp(trend + outlier[0]), outlier[1]
        return Alarm(self.name, value, bound, onset, f"{self._what} is {value:.4g}, beyond {bound:.4g}")

    def state(self) -> dict[str, Any]:
        return {"outlier": self.outlier.state(), "trend": self._trend}

    def restore(self, state: dict[str, Any]) -> None:
        self.outlier.restore(state["outlier"])
        self._trend = state["trend"]


class Layers:
    """The share of each group of layers in the gradient: an explosion or death of one group, not of all."""

    name = "layers"

    def __init__(self, window: int) -> None:
        self._window = window
        self._groups: dict[str, Outlier] = {}

    def look(self, signals: Seen) -> Alarm | None:
        alarm = None
        total_norm = math.sqrt(sum(norm * norm for _, norm in signals.layers))
        for group, norm in signals.layers:
            outlier = self._groups.setdefault(group, _of_layers(self._window))
            share = norm / max(total_norm, TINY)
            verdict = outlier.judge(signals.step, math.log(max(share, TINY)))
            if verdict is not None and alarm is None:
                bound, onset = math.exp(verdict[0]), verdict[1]
                text = f"{group} has {share:.3g} of the gradient's norm, beyond {bound:.3g}"
                alarm = Alarm(self.name, share, bound, onset, text)
        return alarm

    def state(self) -> dict[str, Any]:
        return {group: outlier.state() for group, outlier in self._groups.items()}

    def restore(self, state: dict[str, Any]) -> None:
        self._groups = {group: _of_layers(self._window) for group in state}
        for group, outlier in self._groups.items():
            outlier.restore(state[group])


def _of_layers(window: int) -> Outlier:
    # Of many groups, each has its chance of a false alarm.
    ceiling = math.log(10.0)
    return Outlier(window, sigmas=8.0, floor=math.log(2.5), checks_low=True, needs=3, far=10.0, ceiling=ceiling)


class Weights:
    """How far the norm of a group's weights moves in a step, divided by the learning rate: constant up to a slow drift.

    A learning rate that is not the one that was set, and a bit that flips in a weight, show here at their first step.
    """

    name = "weights"

    def __init__(self, window: int) -> None:
        self._window = window
        self._groups: dict[str, Outlier] = {}
        self._last: dict[str, float] = {}

    def look(self, signals: Seen) -> Alarm | None:
        alarm = None
        for group, norm in signals.weights:
            previous_norm, self._last[group] = self._last.get(group), norm
            if previous_norm is None or signals.rate <= 0:
                continue
            drift = (norm - previous_norm) / (max(previous_norm, TINY) * signals.rate)
            outlier = self._groups.setdefault(group, _of_weights(self._window))
            verdict = outlier.judge(signals.step, drift, _BLUR / signals.rate)
            if verdict is not None and alarm is None:
                text = f"the weights of {group} move {drift:.3g} x the learning rate in a step, beyond {verdict[0]:.3g}"
                alarm = Alarm(self.name, drift, verdict[0], verdict[1], text)
        return alarm

    def state(self) -> dict[str, Any]:
        return {"last": dict(self._last), "groups": {name: outlier.state() for name, outlier in self._groups.items()}}

    def restore(self, state: dict[str, Any]) -> None:
        self._last = {group: float(norm) for group, norm in state["last"].items()}
        self._groups = {group: _of_weights(self._window) for group in state["groups"]}
        for group, outlier in self._groups.items():
            outlier.restore(state["groups"][group])


def _of_weights(window: int) -> Outlier:
    return Outlier(window, sigmas=10.0, floor=0.02, checks_low=True, needs=2, far=4.0)


class Precision:
    """The loss in the computation's format leaves that of float32: by more than `most`, or further than it did."""

    name = "precision"
    most = 0.01

    def __init__(self, window: int) -> None:
        self._outlier = Outlier(window, 8.0, math.log(3.0), checks_low=False)
        self._over = False

    def look(self, signals: Seen) -> Alarm | None:
        if (value := signals.rounding) is None:
            return None
        verdict = self._outlier.judge(signals.step, math.log(max(value, _LEAST_ROUNDING)))
        is_over, was_over = value > self.most, self._over
        self._over = is_over
        if verdict is None and (was_over or not is_over):
            return None
        bound = min(self.most, math.exp(verdict[0])) if verdict else self.most
        text = f"the loss differs by {value:.3g} of itself from that in float32, beyond {bound:.3g}"
        return Alarm(self.name, value, bound, verdict[1] if verdict else signals.step, text)

    def state(self) -> dict[str, Any]:
        return {"outlier": self._outlier.state(), "over": self._over}

    def restore(self, state: dict[str, Any]) -> None:
        self._outlier.restore(state["outlier"])
        self._over = bool(state["over"])
