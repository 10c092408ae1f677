"""Finds the record of the campaign that a command names."""

from __future__ import annotations

from infra import target
from infra.aws.account import NoCredentials
from infra.errors import UserError
from infra.record.store import CampaignStore
from infra.session import session


def record_of(campaign: str, region: str) -> CampaignStore:
    """Return the record for reading. Raises `UserError` listing the known names, here or in the account."""
    try:
        return session.record_of(campaign, region)
    except NoCredentials as error:
        raise UserError(
            "there is no rehearsal of this name, and without AWS credentials no other campaign can be found",
            seen=f"{campaign}; rehearsals on this machine: {', '.join(target.rehearsed()) or 'none'}",
            cure=f"write the name of one that is here, or {error.cure}",
        ) from error
