"""Rules of the storage protocol, one by one: who may publish, what is refused before a load, what is brought on."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.drills.parts import storage_gang
from tests.drills.parts.storage_gang import Camp, Orders, run_attempt
from tests.manifests import manifest_of
from tests.trainer.builtin.checkpoint.test_checkpoint_parts import Harmful, committed
from trainer.builtin.checkpoint.commit import TrainingProgress
from trainer.builtin.checkpoint.tiers import Tier
from trainer.contract import Manifest, Shard, parse_manifest
from trainer.errors import Fenced


@pytest.fixture
def camp(tmp_path: Path) -> Camp:
    """One rank, steps 10 to 30 committed on both tiers by attempt 1."""
    camp = Camp(tmp_path, 1, 1)
    assert run_attempt(camp, Orders(1, (10, 20, 30))) == [0]
    return camp


def restored(camp: Camp, attempt: int) -> list[tuple[int, bool]]:
    return [(event["step"], event["sound"]) for event in camp.events(attempt, "restored")]


def test_a_shard_that_would_execute_code_is_refused_though_its_digest_is_right(camp: Camp) -> None:
    for tier in camp.every_tier().values():
        newest = tier.committed()[0]
        harmful, *others = newest.shards
        path = tier.folder(newest.step) / harmful.file
        torch.save({"module": Harmful()}, path)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        forged = Shard(file=harmful.file, size_bytes=path.stat().st_size, sha256=digest, rank=0)
        sealed = newest.model_copy(update={"shards": (forged, *others)}).serialize()
        (tier.folder(newest.step) / "manifest.json").write_bytes(sealed)

    assert run_attempt(camp, Orders(2)) == [0]

    assert restored(camp, 2) == [(20, True)]
    seen = {event["tier"]: event["seen"] for event in camp.events(2, "refused_shard")}
    assert set(seen) == {"local", "shared"} and all("posix.system" in why for why in seen.values()), seen
    assert not Path("harmed").exists()


def test_a_last_step_that_only_the_nodes_hold_is_shared_by_the_next_attempt(camp: Camp) -> None:
    tiers = camp.every_tier()
    assert tiers["shared"].drop(30, attempt=1)
    assert run_attempt(camp, Orders(2)) == [0]
    assert restored(camp, 2) == [(30, True)] and committed(tiers["shared"])[0] == 30


def test_shards_of_two_steps_never_come_under_one_manifest(tmp_path: Path) -> None:
    camp = Camp(tmp_path, 2, 1)

    def a_step_late(rank: int) -> None:
        if rank == 1:
            vars(storage_gang)["TrainingProgress"] = lambda step, *rest: TrainingProgress(step + 1, *rest)

    codes = run_attempt(camp, Orders(1, (10,), sabotage=a_step_late))

    # Who is late with its own look finds the other one gone already.
    reasons = {event["reason"] for event in camp.events(1, "ended")}
    assert 0 not in codes and "diverged" in reasons and reasons <= {"diverged", "peer-lost"}
    assert not any(committed(tier) for tier in camp.every_tier().values())


def test_a_stale_attempt_never_replaces_the_manifest_of_a_newer_one(tmp_path: Path) -> None:
    tier = Tier("shared", tmp_path / "tiny")
    tier.publish(manifest_of(10, attempt=2), attempt=2)
    with pytest.raises(Fenced, match="attempt 2"):
        tier.publish(manifest_of(10, attempt=1), attempt=1)
    assert [m.attempt for m in tier.committed()] == [2]


def test_a_stale_attempt_never_drops_what_a_newer_one_has_made(tmp_path: Path) -> None:
    tier = Tier("shared", tmp_path / "tiny")
    (tier.folder(10) / "attempt-0002").mkdir(parents=True)
    tier.publish(manifest_of(10, attempt=2), attempt=2)
    tier.publish(manifest_of(20, attempt=1), attempt=1)
    assert tier.retain(keep=1, newest=20, protected_steps=(), attempt=1, start_step=-1) == []
    assert tier.reclaim(keep=(), attempt=1, start_step=-1) == []
    assert committed(tier) == [20, 10]


def test_steps_that_a_restore_refused_do_not_count_as_kept(tmp_path: Path) -> None:
    tier = Tier("local", tmp_path / "tiny")
    for step, attempt in ((10, 1), (20, 1), (30, 1), (25, 2), (35, 2)):
        tier.publish(manifest_of(step, attempt=attempt), attempt=attempt)
    tier.retain(keep=2, newest=35, protected_steps=(), attempt=2, start_step=20)
    assert committed(tier) == [35, 25]


@pytest.mark.parametrize("position", range(0, 500, 7))
def test_no_byte_of_a_manifest_can_change_unseen(position: int) -> None:
    content = bytearray(manifest_of(10).serialize())
    for bit in range(8):
        content[position % len(content)] ^= 1 << bit
        with pytest.raises(ValueError):
            parse_manifest(bytes(content), 10, "tiny")
        content[position % len(content)] ^= 1 << bit
    assert parse_manifest(bytes(content), 10, "tiny") == Manifest.model_validate_json(content)


def test_a_manifest_from_before_the_ledger_is_still_taken_and_with_a_ledger_it_is_forged() -> None:
    said = manifest_of(10).model_dump(mode="json") | {"format": 2, "seal": ""}
    ledger = said.pop("consumed")
    del said["identity"]
    seal = hashlib.sha256(json.dumps(said, separators=(",", ":")).encode()).hexdigest()
    content = json.dumps(said | {"seal": seal}, indent=1).encode() + b"\n"
    assert parse_manifest(content, 10, "tiny").serialize() == content
    with pytest.raises(ValueError, match="seal"):
        parse_manifest(json.dumps(said | {"consumed": ledger, "seal": seal}, indent=1).encode() + b"\n", 10, "tiny")


def test_a_manifest_from_before_identities_is_taken_and_forged_once_it_has_one() -> None:
    said = manifest_of(10).model_dump(mode="json") | {"format": 3, "seal": ""}
    del said["identity"]
    seal = hashlib.sha256(json.dumps(said, separators=(",", ":")).encode()).hexdigest()
    content = json.dumps(said | {"seal": seal}, indent=1).encode() + b"\n"
    assert parse_manifest(content, 10, "tiny", "mine").serialize() == content
    with pytest.raises(ValueError):
        parse_manifest(json.dumps(said | {"identity": "mine", "seal": seal}, indent=1).encode() + b"\n", 10, "tiny")


def test_the_seal_holds_the_identity() -> None:
    content = manifest_of(10, identity="mine").serialize()
    assert parse_manifest(content, 10, "tiny", "mine").identity == "mine"
    with pytest.raises(ValueError, match="seal"):
        parse_manifest(content.replace(b'"mine"', b'"none"'), 10, "tiny", "none")


def test_a_checkpoint_of_another_campaign_of_the_name_is_no_claim_and_is_not_removed(tmp_path: Path) -> None:
    theirs, ours = (Tier("shared", tmp_path / "tiny", identity) for identity in ("first", "second"))
    theirs.publish(manifest_of(900, identity="first"), attempt=1)
    theirs.publish(manifest_of(5, identity="first"), attempt=1)
    for step in (10, 20, 30):
        ours.publish(manifest_of(step, identity="second"), attempt=1)
    assert committed(ours) == [30, 20, 10]
    refused = {claim.step: claim.why for claim in ours.claims() if claim.manifest is None}
    assert refused.keys() == {900, 5} and "another campaign of this name: first" in refused[900]
    assert ours.retain(keep=1, newest=30, protected_steps=(), attempt=1, start_step=-1) == [20, 10]
    assert ours.reclaim(keep=(), attempt=1, start_step=-1) == []
    assert committed(theirs) == [900, 5]


def test_an_imported_checkpoint_without_an_identity_fits_any_campaign_of_the_name(tmp_path: Path) -> None:
    Tier("shared", tmp_path / "tiny").publish(manifest_of(10, attempt=0), attempt=0)
    assert committed(Tier("shared", tmp_path / "tiny", "second")) == [10]


@pytest.mark.parametrize("name", ["../attempt-0001/x", "/etc/passwd", "attempt-0001/../../x", "attempt-0001/.x", "x"])
def test_a_manifest_names_no_file_outside_of_its_attempt(name: str) -> None:
    with pytest.raises(ValueError):
        Shard(file=name, size_bytes=0, sha256="0" * 64, rank=0)


def test_a_log_on_a_full_disk_costs_lines_and_not_the_rank() -> None:
    code = "from trainer.events import emit; import os\nfor n in range(9): emit('step', step=n)\nos._exit(7)"
    with open("/dev/full", "w") as full:
        assert subprocess.run([sys.executable, "-c", code], stdout=full, env=os.environ).returncode == 7
