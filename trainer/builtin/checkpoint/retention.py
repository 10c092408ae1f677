"""What every tier has in common: its steps, which of them are committed, and which go. How it keeps them is its own."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from trainer.contract import Foreign, Manifest, Shard, parse_manifest
from trainer.contract.sealed import removable


@dataclass(frozen=True)
class Claim:
    """A step with a manifest file; `manifest` is None when the file is refused, for the reason `why`."""

    step: int
    manifest: Manifest | None
    why: str = ""
    passing: bool = False
    """The reason may pass: a later read may succeed."""
    foreign: bool = False
    """It is of another campaign of this name; it is never loaded and no retention removes it."""


def claim_of(step: int, content: bytes, campaign: str, identity: str) -> Claim:
    """Return what the bytes of a step's manifest claim."""
    try:
        return Claim(step, parse_manifest(content, step, campaign, identity))
    except ValueError as error:
        return Claim(step, None, str(error), foreign=isinstance(error, Foreign))


def twin_of(shard: Shard, older: Manifest | None) -> Shard | None:
    """Return this rank's shard of an earlier step with the same bytes, or None."""
    shards = older.shards if older is not None else ()
    return next((entry for entry in shards if entry.sha256 == shard.sha256 and entry.rank == shard.rank), None)


@dataclass(frozen=True)
class KeptLimits:
    """Limits on the steps that a tier keeps, besides their number."""

    hours: float | None = None
    free_bytes: int = 0


class TierSteps(ABC):
    """The steps of one campaign on one tier."""

    @abstractmethod
    def steps(self) -> list[int]:
        """Return the steps with anything on the tier, committed or not, newest first."""

    @abstractmethod
    def claims(self) -> Iterator[Claim]:
        """Yield the steps with a manifest, newest first; never raise for a single one. Raises a limit's error, which
        says nothing of any."""

    @abstractmethod
    def drop(self, step: int, attempt: int) -> bool:
        """Remove a step, its manifest first, unless an attempt after `attempt` made it. Return whether it is gone."""

    @abstractmethod
    def free_bytes(self) -> int: ...

    @abstractmethod
    def hours(self, step: int) -> float:
        """Return the hours since a step was published here."""

    def committed(self) -> list[Manifest]:
        """Return the valid manifests, newest step first."""
        return [claim.manifest for claim in self.claims() if claim.manifest is not None]

    def twins(self, shard: Shard, step: int) -> Iterator[tuple[int, Shard]]:
        """Yield the other steps that name a file with a shard's bytes, and that file; newest first."""
        other_manifests = (manifest for manifest in self.committed() if manifest.step != step)
        for manifest in other_manifests:
            yield from ((manifest.step, entry) for entry in manifest.shards if entry.sha256 == shard.sha256)

    def retain(
        self,
        keep: int,
        newest: int,
        protected_steps: Collection[int],
        attempt: int,
        start_step: int,
        limits: KeptLimits = KeptLimits(),
    ) -> list[int]:
        """Drop steps older than the `keep` newest committed ones up to `newest`. Return the dropped steps.

        Then drop steps older than `limits.hours`, and the oldest until `limits.free_bytes` are free; never `newest` or
        a protected step. Steps after `newest` are leftovers that a restore refused; training will replace them. Steps
        of earlier attempts after `start_step`, where this attempt began, do not count as kept.
        """
        eligible, untouchable = self._eligible_steps(attempt, start_step, newest)
        pins = {newest, *protected_steps}
        recent = [step for step in eligible[:keep] if limits.hours is None or self.hours(step) <= limits.hours]
        steps = self.steps()
        surplus = removable(steps, len(recent), {*steps} - {*recent}, {*pins, *untouchable})
        removals = [step for step in surplus if step < newest and self.drop(step, attempt)]
        for step in sorted({*recent} - pins):
            if self.free_bytes() < limits.free_bytes and self.drop(step, attempt):
                removals.append(step)
        return removals

    def reclaim(self, keep: Collection[int], attempt: int, start_step: int) -> list[int]:
        """Like `retain`, for a full disk: keep only `keep`, the newest committed step, foreign ones and those that
        cannot be read now."""
        eligible, untouchable = self._eligible_steps(attempt, start_step)
        keepers = {*eligible[:1], *keep, *untouchable}
        return [step for step in self.steps() if step not in keepers and self.drop(step, attempt)]

    def _eligible_steps(self, attempt: int, start: int, newest: float = math.inf) -> tuple[list[int], list[int]]:
        """Return the steps up to `newest` that count as kept, newest first, and those that no retention removes:
        foreign ones, and those whose manifest cannot be read now: any of them may be the newest sound one."""
        claims = list(self.claims())
        manifests = [claim.manifest for claim in claims if claim.manifest is not None and claim.step <= newest]
        eligible = [manifest.step for manifest in manifests if manifest.attempt == attempt or manifest.step <= start]
        return eligible, [claim.step for claim in claims if claim.foreign or claim.passing]
