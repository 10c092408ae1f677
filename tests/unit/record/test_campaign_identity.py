"""A campaign's identity: made once, read back by all, on everything that is made for it."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from infra.archive.manifest import ArchiveManifest, EvaluationProof
from infra.record.identity import archive_prefix_of, claim_identity, read_identity
from infra.record.payloads.training import ArchiveVerified
from infra.record.store import CampaignStore
from infra.stack.settings import CampaignSettings, read_settings
from infra.stack.tags import tags
from tests.example import example_spec


@pytest.fixture
def store(state_s3: Any) -> CampaignStore:
    return CampaignStore(state_s3, "state", "train", "test")


def test_the_first_writer_makes_it_and_whoever_comes_later_reads_the_same(store: CampaignStore) -> None:
    assert read_identity(store) is None
    first = claim_identity(store, is_adopted=False)
    other = CampaignStore(store.s3, "state", "train", "another")
    assert claim_identity(other, is_adopted=True) == first == read_identity(other)
    assert claim_identity(CampaignStore(store.s3, "state", "second", "test"), is_adopted=False) != first


def test_the_archive_of_a_campaign_lies_apart_from_that_of_an_earlier_one_of_its_name(store: CampaignStore) -> None:
    known = claim_identity(store, is_adopted=False)
    assert archive_prefix_of(store) == f"campaigns/train/{known.identity}"
    store.append(ArchiveVerified(manifest="s3://a/b", step=1, identity=known.identity))
    assert archive_prefix_of(store) == f"campaigns/train/{known.identity}"


def test_what_was_archived_before_identities_were_is_read_where_it_lies(store: CampaignStore) -> None:
    store.append(ArchiveVerified(manifest="s3://a/campaigns/train/archive-manifest.json", step=1))
    assert archive_prefix_of(store) == "campaigns/train"
    claim_identity(store, is_adopted=True)
    assert archive_prefix_of(store) == "campaigns/train"


def test_an_archive_without_an_identity_is_not_that_of_a_campaign_that_has_one(
    store: CampaignStore,
) -> None:
    known = claim_identity(store, is_adopted=False)
    store.append(ArchiveVerified(manifest="s3://a/campaigns/train/archive-manifest.json", step=1))
    assert archive_prefix_of(store) == f"campaigns/train/{known.identity}"
    assert archive_prefix_of(CampaignStore(store.s3, "state", "second", "test")) == "campaigns/second"


def test_an_archive_is_read_where_its_record_says_that_it_lies(store: CampaignStore) -> None:
    claim_identity(store, is_adopted=False)
    store.append(ArchiveVerified(manifest="s3://a/b", step=1, identity="earlier"))
    assert archive_prefix_of(store) == "campaigns/train/earlier"


def test_a_damaged_identity_is_no_missing_one(store: CampaignStore) -> None:
    for damaged in ({}, {"identity": None}, {"identity": "a", "of": "another version"}):
        store.put_json("identity.json", damaged)
        with pytest.raises(ValueError, match=r"identity|of"):
            read_identity(store)
    store.put_json("identity.json", {"identity": "a"})
    told = read_identity(store)
    assert told is not None and (told.identity, told.adopted) == ("a", False)
    known = claim_identity(CampaignStore(store.s3, "state", "second", "test"), is_adopted=True)
    assert known.adopted and re.fullmatch(r"\d{8}T\d{6}Z-[0-9a-f]{8}", known.identity)
    with pytest.raises(ValueError, match="frozen"):
        known.identity = "another"  # type: ignore[misc]


def test_it_is_a_tag_of_what_the_stack_makes_and_travels_in_its_configuration() -> None:
    spec, deadline = example_spec(), datetime(2026, 11, 1, tzinfo=UTC)
    assert tags(spec, deadline, "id-1")["bivouac:campaign-id"] == "id-1"
    assert "bivouac:campaign-id" not in tags(spec, deadline)
    settings = CampaignSettings(spec=spec, deadline=deadline, data_digest="d" * 64, identity="id-1")
    config = settings.to_config()
    assert read_settings(lambda key: config.get(f"bivouac:{key}")) == settings


@pytest.mark.parametrize(
    ("step", "refused", "accounts_for", "names"),
    [
        (40, (), 40, {40: True, 41: False, 39: False}),
        (40, ("step-00000050: no shard",), 50, {40: True, 50: True, 45: False, 5: False}),
        (40, ("step-00000050: a", "step-00000060: b"), 60, {60: True, 50: True, 55: False}),
    ],
)
def test_an_archive_accounts_for_its_step_and_for_what_it_refuses_by_name(
    step: int, refused: tuple[str, ...], accounts_for: int, names: dict[int, bool]
) -> None:
    plain: dict[str, Any] = {
        "campaign": "t",
        "tokens": 1,
        "proof": EvaluationProof.RECORDED,
        "recorded_evaluation_loss": 1.0,
    }
    plain |= {"reference_evaluation_loss": 1.0, "restored_evaluation_loss": 1.0, "objects": ()}
    manifest = ArchiveManifest(step=step, refused=refused, **plain)
    assert manifest.accounts_for == accounts_for and {name: manifest.names(name) for name in names} == names
