"""The three stages of a preparation whose items are independent of each other, each with its items' files."""

from __future__ import annotations

import json
from collections.abc import Sequence

from trainer.builtin.data.prepare.assemble import Assemble, Draft, assemble, counts_path, shard_path
from trainer.builtin.data.prepare.documents import Unit
from trainer.builtin.data.prepare.encode import (
    PARTS,
    Encode,
    encode,
    ids_path,
    lengths_path,
    read_lengths_of,
    told_path,
)
from trainer.builtin.data.prepare.scan import RECORD, Scan, excerpt_path, record_path, sample_path, scan
from trainer.builtin.data.prepare.workers import Stage


def reading(task: Scan, units: Sequence[Unit]) -> Stage:
    """Return the first pass. Every worker needs all that it writes, for the choice between the passes."""
    work = task.work
    return Stage(
        name="read",
        span=(0.0, 0.15),
        function=scan,
        task=task,
        items=units,
        sizes=[unit.bytes for unit in units],
        files=lambda unit: (
            sample_path(work, unit.number),
            excerpt_path(work, unit.number),
            record_path(work, unit.number),
        ),
        documents=lambda unit: record_path(work, unit.number).stat().st_size // RECORD.itemsize,
    )


def encoding(task: Encode, units: Sequence[Unit]) -> Stage:
    """Return the second pass. Every worker needs the lengths, by which shards are cut; the ids only who writes them."""
    work, chats = task.work, task.parameters.chat is not None
    return Stage(
        name="encode",
        span=(0.2, 0.9),
        function=encode,
        task=task,
        items=units,
        sizes=[unit.bytes for unit in units],
        files=lambda unit: (
            *((told_path(work, unit.number),) if chats else ()),
            lengths_path(work, unit.number),
        ),
        documents=lambda unit: sum(map(len, read_lengths_of(work, unit.number).values())),
        large=lambda unit: tuple(ids_path(work, unit.number, part) for part in PARTS),
    )


def shards(task: Assemble, drafts: Sequence[Draft]) -> Stage:
    """Return the writing of shards from ids."""
    return Stage(
        name="write",
        span=(0.9, 1.0),
        function=assemble,
        task=task,
        items=drafts,
        sizes=[draft.tokens for draft in drafts],
        files=lambda draft: (counts_path(task.work, draft.name), shard_path(task.work, draft.name)),
        documents=lambda draft: int(json.loads(shard_path(task.work, draft.name).read_bytes())["shard"]["documents"]),
        large=lambda draft: (task.out / f"{draft.name}.bin", task.out / f"{draft.name}.idx"),
        needs=lambda draft: tuple(ids_path(task.work, unit, draft.part) for unit, *_ in draft.stretches),
    )
