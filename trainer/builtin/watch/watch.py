"""The watch of one attempt: detectors with their actions, and the interventions that last for some steps. It decides on
values that are equal on all ranks, so all ranks decide alike without another exchange."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from trainer.builtin.watch.detectors import Alarm, Detector, Layers, Outlier, Precision, Seen, Series, Weights
from trainer.builtin.watch.drift import Divergence, Drift
from trainer.builtin.watch.times import Straggler, ThroughputDetector
from trainer.contract import WatchConfig

_FORMAT = 3
"""1 had all layers of a named model in one group; 2 had four groups of blocks and no search for a slow rise."""


class Finding(NamedTuple):
    alarm: Alarm
    action: str
    rank: int | None = None
    """The rank that the alarm names."""


def numeric(window: int) -> tuple[Detector, ...]:
    """Return the detectors of values, in the order in which their alarms count."""
    return (
        Series(
            "data",
            "the entropy of a batch's tokens",
            "entropy",
            Outlier(window, 8.0, 0.04, checks_low=True, needs=2),
        ),
        Series("loss", "the loss", "loss", Outlier(window, 7.0, 0.1, checks_low=False, needs=2), trend=True),
        norm_series(window),
        Layers(window),
        Weights(window),
        Series(
            "activations",
            "the last block's output",
            "activation",
            Outlier(window // 2, 8.0, 0.1, checks_low=True, needs=2),
        ),
        Divergence(),
        Drift(window),
        Precision(window),
    )


def norm_series(window: int) -> Series:
    return Series("norm", "the gradient's norm", "norm", Outlier(window, 7.0, math.log(2.5), checks_low=False, needs=2))


class Watch:
    def __init__(self, config: WatchConfig) -> None:
        self._config = config
        self._detectors: dict[str, Detector] = {
            detector.name: detector for detector in numeric(config.window) if getattr(config, detector.name) != "off"
        }
        norm_detector = self._detectors.get("norm")
        self._norm: Series = norm_detector if isinstance(norm_detector, Series) else norm_series(config.window)
        self._throughput, self._straggler = ThroughputDetector(), Straggler()
        self._slow_until = 0
        """First step that has the whole learning rate again."""
        self.sound_step = -1
        """Newest step after which a replay found all bits equal, in whatever attempt; -1: none."""
        self.alarms = 0
        """Of this attempt."""

    def rate_factor(self, step: int) -> float:
        """Return the factor of the learning rate at the 0-based step."""
        return self._config.slow_factor if step < self._slow_until else 1.0

    def clip(self, usual: float) -> float:
        """Return the norm to which the next step's gradient is clipped."""
        bound = self._norm.outlier.bound if self._config.clip else None
        return usual if bound is None else min(usual, math.exp(bound))

    def judge(self, signals: Seen) -> list[Finding]:
        """Return the alarms of a finished step, and put into force what lasts: a lower learning rate."""
        findings = []
        if "norm" not in self._detectors and self._config.clip:
            self._norm.look(signals)  # its bound is needed
        for name, detector in self._detectors.items():
            if (alarm := detector.look(signals)) is None:
                continue
            action: str = getattr(self._config, name)
            if action == "slow":
                self._slow_until = signals.step + self._config.slow_steps
            findings.append(Finding(alarm, action))
        self.alarms += len(findings)
        return findings

    def judge_times(self, step: int, seconds: float, forward_s: Sequence[float]) -> list[Finding]:
        """`seconds`: of a step, without a save's stall, or 0; `forward_s`: by rank, empty where ranks wait for each
        other in it."""
        findings = []
        looks = seconds > 0 and self._config.throughput != "off"
        if looks and (alarm := self._throughput.look(step, seconds)) is not None:
            findings.append(Finding(alarm, self._config.throughput))
        if (
            forward_s
            and self._config.straggler != "off"
            and (slow := self._straggler.look(step, forward_s)) is not None
        ):
            findings.append(Finding(slow[0], self._config.straggler, slow[1]))
        self.alarms += len(findings)
        return findings

    def state(self) -> str:
        """Return what a checkpoint keeps, as JSON: equal on all ranks, and nothing that a clock has made."""
        states = {name: detector.state() for name, detector in self._detectors.items()}
        contents = {"format": _FORMAT, "slow_until": self._slow_until, "detectors": states, "norm": self._norm.state()}
        return json.dumps(contents | {"sound_step": self.sound_step})

    def restore(self, content: str) -> None:
        """Go on where a checkpoint was. A detector that was off then begins anew, and all do after another version."""
        state: dict[str, Any] = json.loads(content) if content else {}
        self._slow_until = int(state.get("slow_until", self._slow_until))
        self.sound_step = int(state.get("sound_step", -1))
        if state.get("format") != _FORMAT:
            return
        self._norm.restore(state["norm"])
        for name, detector in self._detectors.items():
            if name in state["detectors"]:
                detector.restore(state["detectors"][name])
