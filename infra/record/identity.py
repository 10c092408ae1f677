"""The identity of a campaign beyond its name: made once, at its first opening, kept in its record, read back by all.

A name can come back: its record was lost, its bucket was made again, somebody else took it in another account. What
carries the same name and another identity belongs to another campaign.
"""

from __future__ import annotations

import secrets
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict

from infra.record.store import CampaignStore

IDENTITY = "identity.json"
"""In a campaign's record."""


class CampaignIdentity(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    identity: str
    adopted: bool = False
    """The record was there before identities were: what it says so far names none."""


def claim_identity(store: CampaignStore, adopted: bool) -> CampaignIdentity:
    """Return the campaign's identity; make it where the record has none. The first writer wins, all read it back."""
    token = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"
    made = CampaignIdentity(identity=token, adopted=adopted)
    store.put_if_absent(f"{store.prefix}/{IDENTITY}", made.model_dump_json().encode())
    return read_identity(store) or made


def read_identity(store: CampaignStore) -> CampaignIdentity | None:
    """Return the identity that a record has; None without one. Raises `ValueError` for a damaged one."""
    stored = store.get_json(IDENTITY)
    return None if stored is None else CampaignIdentity.model_validate(stored)


def archive_prefix(campaign: str, identity: str) -> str:
    """Return the folder of a campaign's archive in the archive bucket; no slash at its end.

    `identity` is empty for what was archived before identities were.
    """
    return "/".join(filter(None, ("campaigns", campaign, identity)))


def archive_prefix_of(store: CampaignStore) -> str:
    """Return the folder of the archive of a record's campaign: as its archive said, else by its identity."""
    archived, known = store.state().archive, read_identity(store)
    if archived is not None and (known is None or known.adopted or "identity" in archived):
        return archive_prefix(store.campaign, str(archived.get("identity", "")))
    return archive_prefix(store.campaign, "" if known is None else known.identity)
