"""What was trained, as a part of the report: losses and norms by attempt, evaluations, alarms."""

from __future__ import annotations

from trainer.contract.frozen import Frozen


class LossPoint(Frozen):
    step: int
    loss: float
    repeated: bool = False


class Losses(Frozen):
    attempt: int
    points: tuple[LossPoint, ...]
    steps: int
    """Number of its steps; more than points if the series is thinned."""


class Evaluated(Frozen):
    attempt: int
    step: int
    loss: float


class Repeats(Frozen):
    """Steps that more than one attempt ran, compared bit by bit."""

    steps: int
    equal: int
    first_step: int | None = None
    last_step: int | None = None
    greatest_difference: float = 0.0
    uncompared: int = 0
    """Of the steps, those whose loss is not known of both runs."""

    @property
    def compared(self) -> int:
        return self.steps - self.uncompared

    @property
    def bitwise_equal(self) -> bool:
        return self.equal == self.compared


class WatchAlarm(Frozen):
    """One alarm of the watch over training, and what it did."""

    step: int
    detector: str
    text: str
    did: str


class TrainingCurves(Frozen):
    losses: tuple[Losses, ...] = ()
    norms: tuple[Losses, ...] = ()
    """The norm of all gradients before clipping, in the place of the loss."""
    alarms: tuple[WatchAlarm, ...] = ()
    evaluations: tuple[Evaluated, ...] = ()
    unigram_loss: float | None = None
    """Loss of a model that knows only the frequency of each token."""
    repeats: Repeats = Repeats(steps=0, equal=0)
    steps_logged: int = 0
    """Newest step in the logs."""
    steps_done: int = 0
    """The same; where the logs have none, by what the attempts' ends say."""
    steps_wanted: int = 0
