"""The identity of a campaign: made once at its first session, kept in its record.

A name can be reused: its record or bucket was lost and made again, or another account has it. A resource with the same
name and another identity belongs to another campaign.
"""

from __future__ import annotations

import secrets
from datetime import UTC, datetime

from infra.record.store import CampaignStore
from trainer.contract.frozen import Frozen

IDENTITY = "identity.json"
"""Key in a campaign's record."""


class CampaignIdentity(Frozen):
    identity: str
    adopted: bool = False
    """The record is older than identities: its earlier resources carry none."""


def claim_identity(store: CampaignStore, is_adopted: bool) -> CampaignIdentity:
    """Return the campaign's identity; make it if the record has none. The first writer wins, all read its value."""
    token = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
    new_identity = CampaignIdentity(identity=token, adopted=is_adopted)
    store.put_if_absent(f"{store.prefix}/{IDENTITY}", new_identity.model_dump_json().encode())
    return read_identity(store) or new_identity


def read_identity(store: CampaignStore) -> CampaignIdentity | None:
    """Return a record's identity; None if it has none. Raise `Unreadable` for a damaged one."""
    return store.model(IDENTITY, CampaignIdentity)


def archive_prefix(campaign: str, identity: str) -> str:
    """Return a campaign's folder in the archive bucket, without a slash at its end.

    `identity` is empty for archives that are older than identities.
    """
    return "/".join(filter(None, ("campaigns", campaign, identity)))


def archive_prefix_of(store: CampaignStore) -> str:
    """Return the archive folder of a record's campaign: from its archive event, else from its identity."""
    event, owner = store.state().archive, read_identity(store)
    if event is not None and (owner is None or owner.adopted or "identity" in event.model_fields_set):
        return archive_prefix(store.campaign, event.identity)
    return archive_prefix(store.campaign, "" if owner is None else owner.identity)
