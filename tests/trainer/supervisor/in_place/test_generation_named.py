"""Manifests, ledgers and the record name the generation, and a first one leaves no trace of the word."""

from __future__ import annotations

from typing import Any

import pytest

from infra.data.audit import executed_steps
from infra.steward.seeing.trainer_events import TrainerEvents
from tests.unit.steward.seeing.test_watch_alarms import Store
from trainer.contract import Manifest, parse_manifest
from trainer.contract.ledger import CHAIN_START, Consumed, audit, next_link


def manifest(**more: Any) -> Manifest:
    given = {"campaign": "tiny", "attempt": 1, "step": 2, "tokens": 2, "world_size": 1, "zero_stage": 1, "position": 2}
    given |= {"loss": 1.0, "config_digest": "c", "data_digest": "d", "shards": ()}
    return Manifest.model_validate(given | more)


def rows(*generations: int) -> tuple[Consumed, ...]:
    """One step for each generation, of one attempt."""
    made: list[Consumed] = []
    for position, generation in enumerate(generations):
        step = position + 1
        chain = next_link(made[-1].chain if made else CHAIN_START, step, position, 1, step)
        same = {"attempt": 1, "world_size": 1, "global_batch": 1, "seed": 1, "data_digest": "d", "chain": chain}
        made.append(
            Consumed.model_validate(
                same | {"generation": generation, "first_step": step, "last_step": step, "first_position": position}
            )
        )
    return tuple(made)


def test_a_first_generations_manifest_has_the_bytes_of_versions_that_knew_no_other() -> None:
    content = manifest(consumed=rows(0)).serialize()
    assert b"generation" not in content and parse_manifest(content).generation == 0


def test_a_later_generation_is_sealed_with_the_manifest() -> None:
    content = manifest(generation=1, consumed=rows(0, 1)).serialize()
    read = parse_manifest(content)
    assert (read.generation, [row.generation for row in read.consumed]) == (1, [0, 1])
    with pytest.raises(ValueError, match="seal"):
        parse_manifest(content.replace(b'"generation": 1', b'"generation": 2', 1))


def test_the_audit_compares_each_generations_rows_with_its_own_lines_and_counts_repeats() -> None:
    lines = [(0, 1, 1), (0, 2, 2), (1, 2, 2)]  # generation, step, digest: the second step was lost and repeated
    log = "".join(
        f'{{"event": "step", "attempt": 1, "generation": {generation}, "step": {step}, "samples": "{digest:016x}"}}\n'
        for generation, step, digest in lines
    ).replace('"generation": 0, ', "")
    found = audit(rows(0, 1), 2, executed_steps([log, log]), None)
    assert found.passes and (found.checked_by_log, found.repeated_steps) == (2, 1)


def test_the_record_has_each_restart_once() -> None:
    store = Store()
    events = TrainerEvents(store)  # type: ignore[arg-type]
    line = {"event": "restarted_in_place", "attempt": 1, "generation": 1, "step": 7, "culprit": 3, "seconds": 6.5}
    for at in (1.0, 2.0):
        events.take("c-a1-0", line | {"time": at})
    assert [(one.kind, one.data["culprit"]) for one in store.kept] == [("attempt.restarted-in-place", 3)]
