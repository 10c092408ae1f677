"""The ledger of a running attempt: each step adds a link to its checkpoint's chain."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.contract.ledger import CHAIN_START, Consumed, next_link
from trainer.errors import DataError

_LIMB = 2**32


@dataclass
class DataLedger:
    """The data consumed so far; `rows` goes into the manifest."""

    attempt: int
    world_size: int
    global_batch: int
    seed: int
    data_digest: str
    before: tuple[Consumed, ...] = ()
    """Rows of the checkpoint that this attempt began with."""
    current: Consumed | None = None
    generation: int = 0

    @property
    def rows(self) -> tuple[Consumed, ...]:
        return (*self.before, self.current) if self.current else self.before

    def add(self, step: int, position: int, digest: int) -> None:
        """Add a finished step. `digest`: `step_digest` over all ranks. Raises `DataError` if it does not follow."""
        newest = self.rows[-1] if self.rows else None
        expected = (newest.last_step + 1, newest.end_position) if newest else (step, position)
        if (step, position) != expected:
            raise DataError(
                "the data's ledger does not continue", f"step and position {step, position}, not {expected}"
            )
        chain = next_link(newest.chain if newest else CHAIN_START, step, position, self.global_batch, digest)
        if self.current is not None:
            self.current = self.current.model_copy(update={"last_step": step, "chain": chain})
            return
        self.current = Consumed(
            attempt=self.attempt,
            generation=self.generation,
            world_size=self.world_size,
            global_batch=self.global_batch,
            seed=self.seed,
            data_digest=self.data_digest,
            first_step=step,
            last_step=step,
            first_position=position,
            chain=chain,
        )


def to_limbs(digest: int) -> list[float]:
    """Split a digest in halves, whose sums over up to 2^21 ranks are exact in the gang's exchange of doubles."""
    return [float(digest % _LIMB), float(digest // _LIMB)]


def from_limbs(low: float, high: float) -> int:
    return (int(low) + int(high) * _LIMB) % 2**64
