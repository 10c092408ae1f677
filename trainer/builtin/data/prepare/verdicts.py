"""Between the passes: the choice of duplicates and held-out documents, by digest alone and in bounded memory."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainer.builtin.data.prepare.chat import refuse_waste
from trainer.builtin.data.prepare.documents import Unit
from trainer.builtin.data.prepare.filters import DUPLICATE, KEPT, REASONS
from trainer.builtin.data.prepare.samples import SampleOutcomes
from trainer.builtin.data.prepare.scan import read_records
from trainer.builtin.data.store import write_whole
from trainer.contract import Parameters
from trainer.errors import DataError

LEFT_OUT, TRAIN, HELD_OUT = 0, 1, 2
GROUP_RECORDS = 8 * 2**20
"""Approximate number of digests that are compared at once; 33 bytes each."""


class Verdicts:
    """One byte per document, by unit, and counts by source."""

    def __init__(self, work: Path, units: list[Unit], sources: int) -> None:
        self._work, self._units = work, units
        self.dropped: list[Counter[str]] = [Counter() for _ in range(sources)]
        self.kept_bytes, self.cut = [0] * sources, [0] * sources
        self.documents = self.held_out = 0

    def settle(self, parameters: Parameters) -> None:
        """Decide on every document. Raises `DataError` when fewer than two are left, or too few of a chat's samples."""
        counts = [len(read_records(self._work, unit.number)) for unit in self._units]
        duplicates = self._duplicates(sum(counts)) if parameters.deduplicate else {}
        smallest: tuple[int, int, int] | None = None
        for unit in self._units:
            records = read_records(self._work, unit.number)
            keep = records["reason"] == KEPT
            keep[duplicates.get(unit.number, [])] = False
            hold = keep & (_mix(records, parameters.seed) < int(parameters.held_out * 2**64))
            self._count(unit, records, keep, hold)
            self._write(unit.number, keep, hold)
            if keep.any() and (best := int(records["low"][keep].min())) is not None:
                document = int(np.flatnonzero(keep & (records["low"] == best))[0])
                smallest = min(smallest or (best, unit.number, document), (best, unit.number, document))
        if parameters.chat is not None:
            refuse_waste(self.dropped, self.documents)
        if self.documents < 2 or smallest is None:
            raise DataError(
                "too few documents with text to train on",
                f"{self.documents} of {sum(counts)} documents are left; left out: {dict(sum(self.dropped, Counter()))}",
                "give at least two UTF-8 text files",
            )
        if self.held_out in (0, self.documents):
            # With few documents one part may be empty by chance: then the smallest digest is held out.
            self._hold_out_only(smallest)

    def lose(self, unit: Unit, losses: SampleOutcomes) -> None:
        """Take out the samples that their encoding showed to be unfit."""
        self.cut[unit.source] += losses.cut
        for reason, by_part in losses.lost.items():
            count = sum(by_part.values())
            self.dropped[unit.source][reason] += count
            self.documents -= count
            self.held_out -= by_part.get(HELD_OUT, 0)

    def of(self, number: int) -> NDArray[np.uint8]:
        return np.fromfile(self._path(number), dtype=np.uint8)

    def _duplicates(self, total: int) -> dict[int, NDArray[np.int64]]:
        """Return, by unit, the documents whose digest an earlier one has; compare group by group of digests."""
        groups = max(1, -(-total // GROUP_RECORDS))
        duplicates: dict[int, list[NDArray[np.int64]]] = {}
        for group in range(groups):
            highs, lows, places = [], [], []
            for unit in self._units:
                records = read_records(self._work, unit.number)
                rows = np.flatnonzero((records["reason"] == KEPT) & (records["high"] % np.uint64(groups) == group))
                highs.append(records["high"][rows])
                lows.append(records["low"][rows])
                places.append(np.stack([np.full(len(rows), unit.number), rows], axis=1))
            high, low, place = np.concatenate(highs), np.concatenate(lows), np.concatenate(places)
            order = np.lexsort((low, high))  # stable: the earliest of equal ones comes first
            high, low = high[order], low[order]
            repeats = np.flatnonzero((high[1:] == high[:-1]) & (low[1:] == low[:-1])) + 1
            for number, index in place[order[repeats]]:
                duplicates.setdefault(int(number), []).append(index)
        return {number: np.array(indices, dtype=np.int64) for number, indices in duplicates.items()}

    def _count(self, unit: Unit, records: NDArray[np.void], keep: NDArray[np.bool_], hold: NDArray[np.bool_]) -> None:
        for code, count in zip(*np.unique(records["reason"], return_counts=True), strict=True):
            if code != KEPT:
                self.dropped[unit.source][REASONS[code]] += int(count)
        if repeats := int((records["reason"] == KEPT).sum() - keep.sum()):
            self.dropped[unit.source][DUPLICATE] += repeats
        self.kept_bytes[unit.source] += int(records["bytes"][keep].sum(dtype=np.int64))
        self.documents += int(keep.sum())
        self.held_out += int(hold.sum())

    def _hold_out_only(self, smallest: tuple[int, int, int]) -> None:
        _, number, index = smallest
        for unit in self._units:
            keep = self.of(unit.number) != LEFT_OUT
            hold = np.zeros(len(keep), dtype=bool)
            if unit.number == number:
                hold[index] = True
            self._write(unit.number, keep, hold)
        self.held_out = 1

    def _write(self, number: int, keep: NDArray[np.bool_], hold: NDArray[np.bool_]) -> None:
        verdict = np.where(hold, HELD_OUT, np.where(keep, TRAIN, LEFT_OUT)).astype(np.uint8)
        write_whole(self._path(number), verdict.tobytes())

    def _path(self, number: int) -> Path:
        return verdict_path(self._work, number)


def verdict_path(work: Path, number: int) -> Path:
    return work / f"verdict-{number:06d}"


def _mix(records: NDArray[np.void], seed: int) -> NDArray[np.uint64]:
    """Return 64 bits per document, from its text and the seed alone, so that no text is on both sides of the split."""
    keys = np.frombuffer(hashlib.blake2b(f"split:{seed}".encode(), digest_size=16).digest(), dtype="<u8")
    bits = (records["high"] ^ keys[0]) * np.uint64(0x9E3779B97F4A7C15)
    bits ^= (bits >> np.uint64(29)) ^ records["low"] ^ keys[1]
    bits *= np.uint64(0xBF58476D1CE4E5B9)
    return bits ^ (bits >> np.uint64(32))
