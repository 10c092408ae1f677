"""A list of checkpoints calls committed only what a restore would read: one rule, written twice, held equal here."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from tests.manifests import manifest_of
from tests.tables import Table
from trainer.contract import Manifest, Shard, attempt_folder, parse_manifest
from trainer.contract import sealed as rules
from trainer.contract.rows import row_of
from trainer.contract.training import ParallelConfig

TABLE = Table(__file__)

FILE = f"{attempt_folder(1)}/a.pt"
SHARD = Shard(file=FILE, size_bytes=3, sha256="0" * 64, rank=0)


def sealed_with(**changes: Any) -> bytes:
    """A manifest whose seal fits, whatever it says."""
    body = json.loads(manifest_of(20, (SHARD,)).serialize()) | changes | {"seal": ""}
    seal = hashlib.sha256(json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()).hexdigest()
    return (json.dumps(body | {"seal": seal}, ensure_ascii=False, indent=1) + "\n").encode()


def row(content: bytes) -> dict[str, Any]:
    return row_of(content, {FILE: 3}.get, 20, "shared", "tiny", "", lambda name: b"")


def test_what_a_restore_reads_is_committed() -> None:
    assert parse_manifest(sealed_with(), 20, "tiny").shards == (SHARD,)
    assert row(sealed_with())["committed"] and row(sealed_with())["why"] == ""


@pytest.mark.parametrize("number", [2, 3, 4, 5])
def test_each_format_that_ever_was_is_read(number: int) -> None:
    content = manifest_of(20, (SHARD,)).model_copy(update={"format": number}).serialize()
    assert parse_manifest(content, 20, "tiny", "own").format == number
    assert rules.read_manifest(content, 20, "tiny", "own")["format"] == number and row(content)["committed"]


def test_a_manifest_with_every_field_of_the_model_is_read() -> None:
    every = {"format": 5, "generation": 1, "parallel": ParallelConfig(tensor=2), "evaluation_loss": 0.5}
    content = manifest_of(20, (SHARD,)).model_copy(update=every).serialize()
    assert set(json.loads(content)) == rules._FIELDS == set(rules.read_manifest(content, 20, "tiny"))
    assert parse_manifest(content).generation == 1


@TABLE.cases
def test_what_a_restore_refuses_is_listed_as_damaged(changes: dict[str, Any]) -> None:
    content = sealed_with(**changes)
    with pytest.raises(ValueError):
        parse_manifest(content, 20, "tiny")
    listed = row(content)
    assert not listed["committed"] and listed["damaged"] and listed["why"]


@pytest.mark.parametrize("content", [b"", b"7", b"{}", b"[" * 100_000, b'{"seal": 1}', b"null"])
def test_what_is_no_manifest_raises_a_value_error(content: bytes) -> None:
    with pytest.raises(ValueError):
        rules.read_manifest(content, 20, "tiny")


@pytest.mark.parametrize(
    ("step", "campaign", "identity"), [(21, "tiny", ""), (20, "other", ""), (20, "tiny", "another")]
)
def test_a_manifest_of_something_else_is_refused(step: int, campaign: str, identity: str) -> None:
    content = sealed_with(identity="own")
    assert rules.read_manifest(content, 20, "tiny", "own")["step"] == rules.read_manifest(content, 20, "")["step"]
    with pytest.raises(ValueError, match="it is of"):
        rules.read_manifest(content, step, campaign, identity)


@pytest.mark.parametrize("loss", [-1.5e-05, 1e-05, -9.25e-05, -2e-07, 1.25e-06, 3.0, -0.5, 1e16, -1e15, None])
def test_a_manifest_is_written_as_the_model_writes_it_whatever_the_loss(loss: float | None) -> None:
    identity = rules.Identity("tiny", "own", 1, 1, "c", "d", "e", "f")
    content = rules.serialize(identity, 20, 0, loss, [SHARD.model_dump()])
    manifest = parse_manifest(content, 20, "tiny")
    assert manifest.serialize() == content and manifest.loss == (None if loss and abs(loss) >= 1e15 else loss)


def test_the_fields_are_those_of_the_model() -> None:
    assert set(Manifest.model_fields) == rules._FIELDS
