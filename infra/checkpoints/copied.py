"""A campaign's interval copies in S3, for people: which there are, since when, and whether every byte was read back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from infra.aws.transfer import Transfer
from infra.checkpoints.place import BucketPlace
from infra.record.identity import read_identity
from infra.record.payloads.checkpoints import CheckpointCopied
from infra.record.store import CampaignStore
from infra.spec.names import copies_prefix
from trainer.contract.listing import Listed

TIER = "copy"


@dataclass(frozen=True)
class Copied:
    row: Listed
    read_back_at: datetime | None
    """When its last byte was read back, by the record; None if the record does not say so, or it is whole no more."""


def copies_of(store: CampaignStore, archive_bucket: str) -> tuple[BucketPlace, tuple[Copied, ...]]:
    """Return the place of the copies, and each, newest first."""
    known = read_identity(store)
    prefix = copies_prefix(store.campaign, known.identity if known else "")
    place = BucketPlace(store.s3, archive_bucket, prefix, Transfer(store.s3, archive_bucket))
    read_back = {e.payload.step: e.at for e in store.events() if isinstance(e.payload, CheckpointCopied)}
    rows = [row.model_copy(update={"tier": TIER}) for row in place.rows()]
    whole = {row.step for row in rows if row.committed and not row.why}
    return place, tuple(Copied(row, read_back.get(row.step) if row.step in whole else None) for row in rows)
