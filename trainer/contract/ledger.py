"""The ledger of consumed data in every checkpoint's manifest: rows of data positions with a chain of digests, and its
audit: a committed checkpoint's ledger must hold each planned sample exactly once.

Steps after an attempt's last commit are not in the ledger: the next attempt repeats them, and they count once.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from pydantic import Field

from trainer.contract.frozen import Frozen

CHAIN_START = hashlib.sha256(b"bivouac ledger 1").hexdigest()
_SUM = 2**64
_SHOWN = 20


class Consumed(Frozen):
    """Consecutive steps of one attempt and generation with the same batch, data and order."""

    attempt: int
    generation: int = Field(default=0, exclude_if=lambda number: number == 0)
    """Start of the ranks within the attempt: each restart in place begins a row."""
    world_size: int
    global_batch: int = Field(ge=1)
    """Sequences per step."""
    seed: int
    data_digest: str
    first_step: int = Field(ge=1)
    last_step: int
    first_position: int = Field(ge=0)
    """Data position of the first sequence of `first_step`."""
    chain: str
    """Digest over every step up to `last_step`, in this row and all rows before."""

    @property
    def end_position(self) -> int:
        """One past the last sequence of `last_step`."""
        return self.first_position + (self.last_step - self.first_step + 1) * self.global_batch


def sample_digest(position: int, tokens: bytes) -> int:
    """Return a 64-bit digest of a sequence and its position. The sum over a step does not depend on the world size."""
    digest = hashlib.blake2b(tokens, key=position.to_bytes(8, "little"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def step_digest(samples: Iterable[int]) -> int:
    return sum(samples) % _SUM


def next_link(chain: str, step: int, position: int, count: int, digest: int) -> str:
    """Return the chain after a step of `count` sequences from `position`; `digest` is the sum of their digests."""
    link = struct.pack("<32sQQQQ", bytes.fromhex(chain), step, position, count, digest % _SUM)
    return hashlib.sha256(link).hexdigest()


class Executed(NamedTuple):
    """A step in a rank's log."""

    attempt: int
    step: int
    samples: int
    """Digest of the sequences that all ranks consumed."""
    generation: int = 0


class AuditFinding(Frozen, extra="ignore"):
    """A range of positions that contradicts the claim; `end_position` is one past the last."""

    kind: Literal["missing", "repeated", "beyond", "other-samples"]
    first_position: int
    end_position: int
    why: str


class Audit(Frozen, extra="ignore"):
    planned: int
    """Planned sequences."""
    consumed: int
    rows: tuple[Consumed, ...]
    findings: tuple[AuditFinding, ...]
    repeated_steps: int
    """Steps that ran again after a restart; the committed run of each counts."""
    checked_by_log: int
    """Steps whose digest was found in a log."""
    checked_by_data: int
    """Steps whose samples were read from the data set again."""
    unlooked: tuple[str, ...]
    """Sources that could not be read, with the reasons."""

    @property
    def passes(self) -> bool:
        return not self.findings and self.consumed == self.planned


def audit(
    rows: tuple[Consumed, ...],
    sequences: int,
    log_lines: Iterable[Executed],
    expected: Mapping[int, int] | None,
    unread_sources: Iterable[str] = (),
) -> Audit:
    """Audit the planned `sequences`. `expected`: step -> digest of its samples by seed and data, if derived."""
    findings = list(_ranges(rows, sequences))
    lines, notes = list(log_lines), list(unread_sources)
    by_start = {(line.attempt, line.generation, line.step): line.samples for line in lines}
    steps_of = ((step, (row.attempt, row.generation, step)) for row, step in _steps(rows))
    log_digests = {step: by_start[key] for step, key in steps_of if key in by_start}
    steps = sum(row.last_step - row.first_step + 1 for row in rows)
    if expected is not None:
        findings += _chain(rows, expected, "data set and seed give other samples than were consumed")
    if len(log_digests) == steps:
        findings += _chain(rows, log_digests, "the log has other samples than the ledger")
    elif steps:
        notes.append(f"the log holds {len(log_digests)} of {steps} steps: the chain was not checked by it")
    findings += _contradictions(lines)
    return Audit(
        planned=sequences,
        consumed=_count_planned(rows, sequences),
        rows=rows,
        findings=tuple(findings[:_SHOWN]),
        repeated_steps=len(by_start) - len({line.step for line in lines}),
        checked_by_log=len(log_digests),
        checked_by_data=0 if expected is None else steps,
        unlooked=tuple(notes),
    )


def _steps(rows: tuple[Consumed, ...]) -> Iterator[tuple[Consumed, int]]:
    return ((row, step) for row in rows for step in range(row.first_step, row.last_step + 1))


def _ranges(rows: tuple[Consumed, ...], sequences: int) -> Iterator[AuditFinding]:
    """Yield gaps, overlaps, and positions beyond the plan."""
    position = 0
    for row in sorted(rows, key=lambda row: (row.first_position, row.end_position)):
        steps = f"steps {row.first_step} to {row.last_step} of attempt {row.attempt}"
        if row.first_position > position:
            reason = f"no committed step consumed them; next are {steps}"
            yield AuditFinding(kind="missing", first_position=position, end_position=row.first_position, why=reason)
        elif row.first_position < position:
            end = min(position, row.end_position)
            yield AuditFinding(
                kind="repeated", first_position=row.first_position, end_position=end, why=f"again in {steps}"
            )
        if row.end_position > sequences:
            begin = max(sequences, row.first_position)
            yield AuditFinding(kind="beyond", first_position=begin, end_position=row.end_position, why=f"in {steps}")
        position = max(position, row.end_position)
    if position < sequences:
        yield AuditFinding(
            kind="missing", first_position=position, end_position=sequences, why="training ended before them"
        )


def _count_planned(rows: tuple[Consumed, ...], sequences: int) -> int:
    """Return the number of planned sequences in any row."""
    position = count = 0
    for row in sorted(rows, key=lambda row: row.first_position):
        begin, end = max(position, row.first_position), min(row.end_position, sequences)
        count += max(0, end - begin)
        position = max(position, end)
    return count


def _chain(rows: tuple[Consumed, ...], digests: Mapping[int, int], fault: str) -> Iterator[AuditFinding]:
    """Follow the chain row by row. Yield a row that does not match, and continue from its recorded digest."""
    chain = CHAIN_START
    for row in rows:
        for step in range(row.first_step, row.last_step + 1):
            position = row.first_position + (step - row.first_step) * row.global_batch
            chain = next_link(chain, step, position, row.global_batch, digests[step])
        if chain != row.chain:
            reason = f"{fault}: steps {row.first_step} to {row.last_step} of attempt {row.attempt}"
            begin, end = row.first_position, row.end_position
            yield AuditFinding(kind="other-samples", first_position=begin, end_position=end, why=reason)
        chain = row.chain


def _contradictions(lines: list[Executed]) -> Iterator[AuditFinding]:
    """Yield steps that had other samples in a second attempt or generation."""
    first_runs: dict[int, Executed] = {}
    for line in sorted(lines):
        first_run = first_runs.setdefault(line.step, line)
        if first_run.samples != line.samples:
            reason = f"step {line.step} had other samples in attempt {line.attempt} than in attempt {first_run.attempt}"
            yield AuditFinding(kind="other-samples", first_position=-1, end_position=-1, why=reason)
