"""The steward's clocks: how long a gang hangs, nodes are short, pods are silent, nodes are sick. Pure.

They are stored beside the record as moments, so that a steward that restarts often still ends a hung gang in time.
Within a process they are seconds of the monotonic clock, which jumps of a wall clock do not change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from trainer.contract.frozen import Frozen

CLOCKS = "clocks.json"
"""Key in a campaign's record."""
EVERY_S = 15.0
"""Shortest time between two writes of a process."""
SAME = timedelta(seconds=5)
"""Moments that differ by less count as equal: clocks agree only to the second."""


class StoredClocks(Frozen, extra="ignore"):
    """Clocks as they are stored; moments are by `infra.clock.Clock`."""

    attempt: int
    launched: datetime
    stepped: datetime
    """Time at which the gang's slowest step last rose."""
    step: int
    """The highest that it was."""
    generation: int = 0
    """Restarts in place of the attempt."""
    short: datetime | None = None
    """Time since which fewer nodes are fit than wanted."""
    quiet: dict[str, datetime] = {}
    """Silent pod -> time since which it is silent."""
    sick: dict[str, datetime] = {}
    """Node, instance and sickness -> time since which it lasts."""

    def same_as(self, other_clocks: StoredClocks | None) -> bool:
        """Return whether storing this one would tell a successor nothing new."""
        if other_clocks is None or self._place() != other_clocks._place():
            return False
        left, right = self._moments(), other_clocks._moments()
        return left.keys() == right.keys() and all(abs(left[name] - right[name]) < SAME for name in left)

    def _place(self) -> tuple[int, int, int]:
        return self.attempt, self.generation, self.step

    def _moments(self) -> dict[str, datetime]:
        marks = {"launched": self.launched, "stepped": self.stepped, **({"short": self.short} if self.short else {})}
        return marks | {f"quiet {k}": v for k, v in self.quiet.items()} | {f"sick {k}": v for k, v in self.sick.items()}


@dataclass
class Clocks:
    """Marks in seconds of the monotonic clock."""

    attempt: int
    launched: float
    stepped: float
    step: int = 0
    short: float | None = None
    quiet: dict[str, float] = field(default_factory=dict)
    sick: dict[str, float] = field(default_factory=dict)
    generation: int = 0
    last: int | None = None
    """The gang's slowest step as it was seen last; None: not yet by this steward."""

    @classmethod
    def begin(cls, attempt: int, mono: float, previous_clocks: Clocks | None = None) -> Clocks:
        """Start the clocks of a new attempt; those of the nodes go on."""
        node_marks = (previous_clocks.short, previous_clocks.sick) if previous_clocks else (None, {})
        return cls(attempt, launched=mono, stepped=mono, short=node_marks[0], sick=node_marks[1])

    def note_step(self, step: int, mono: float) -> None:
        """Note the gang's slowest step as it is now. One that goes back, as a job that counts each epoch from 0 prints
        it, and then rises is progress too: only what stands still hangs."""
        if step > (self.step if self.last is None else self.last):
            self.stepped = mono
        self.last, self.step = step, max(self.step, step)

    def note_restart(self, generation: int, mono: float) -> None:
        """Note a restart in place: as after a launch, the gang takes a while to its first step, and repeats some."""
        if generation > self.generation:
            self.generation, self.step, self.last, self.launched, self.stepped = generation, 0, 0, mono, mono

    def lacks(self, short: bool, mono: float) -> None:
        if not short:
            self.short = None
        elif self.short is None:
            self.short = mono

    def to_stored(self, mono: float, now: datetime) -> StoredClocks:
        def moment(mark: float) -> datetime:
            return now - timedelta(seconds=mono - mark)

        return StoredClocks(
            attempt=self.attempt,
            launched=moment(self.launched),
            stepped=moment(self.stepped),
            step=self.step,
            generation=self.generation,
            short=None if self.short is None else moment(self.short),
            quiet={pod: moment(mark) for pod, mark in self.quiet.items()},
            sick={node: moment(mark) for node, mark in self.sick.items()},
        )


def taken_over(
    clocks: StoredClocks | None,
    attempt: int,
    launched_at: datetime | None,
    began_at: datetime | None,
    mono: float,
    now: datetime,
) -> Clocks:
    """Return clocks that continue a predecessor's.

    `launched_at` of the attempt and `began_at` of the campaign come from the events and bound every duration; none is
    negative. Without stored clocks of this attempt its clocks start at its launch.
    """

    def mark(moment: datetime, bound: datetime | None) -> float:
        age = now - (moment if bound is None else max(moment, bound))
        return mono - max(timedelta(), age).total_seconds()

    def marks(moments: Mapping[str, datetime]) -> dict[str, float]:
        return {name: mark(moment, began_at) for name, moment in moments.items()}

    launch_time = now if launched_at is None else launched_at
    current = clocks if clocks is not None and clocks.attempt == attempt else None
    return Clocks(
        attempt,
        launched=mark(current.launched if current else launch_time, launched_at),
        stepped=mark(current.stepped if current else launch_time, launched_at),
        step=current.step if current else 0,
        generation=current.generation if current else 0,
        short=mark(clocks.short, began_at) if clocks and clocks.short else None,
        quiet=marks(current.quiet) if current else {},
        sick=marks(clocks.sick) if clocks else {},
    )
