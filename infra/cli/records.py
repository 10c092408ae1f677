"""Finds the record of the campaign that a command names."""

from __future__ import annotations

from infra import target
from infra.aws.account import NoCredentials
from infra.errors import UserError
from infra.folders import kept_results
from infra.record.store import CampaignStore
from infra.report.record import PACKED, Record, unpacked
from infra.session import session

NO_RECORD = "not begun, no record yet"
"""Stage of a rehearsal that has no record."""


class NotBegun(UserError):
    """A rehearsal whose site runs and has no record of it: its first command was interrupted, or recorded nothing."""


def record_of(campaign: str, region: str) -> CampaignStore:
    """Return the record for reading. Raises `UserError` listing the known names, here or in the account, and `NotBegun`
    for a rehearsal without a record."""
    try:
        return session.record_of(campaign, region)
    except (session.NoSuchCampaign, NoCredentials) as error:
        rehearsals = target.rehearsals()
        if campaign in rehearsals:
            cure = f"`bivouac run` with its spec begins it anew, `bivouac down {campaign}` removes what is there"
            if rehearsals[campaign]:
                raise NotBegun("the rehearsal has not begun", seen=f"{campaign} has no record", cure=cure) from error
            raise UserError("the site of this rehearsal does not run", seen=campaign, cure=cure) from error
        if not isinstance(error, NoCredentials):
            raise
        raise UserError(
            "there is no rehearsal of this name, and without AWS credentials no other campaign can be found",
            seen=f"{campaign}; rehearsals on this machine: {', '.join(rehearsals) or 'none'}",
            cure=f"write the name of one that is here, or {error.cure}",
        ) from error


def kept_record(campaign: str, region: str, error: UserError) -> Record:
    """Return the record that the report left in the results folder; raise `error`, why there is no other, without."""
    try:
        return unpacked((kept_results(campaign, region) / PACKED).read_bytes())
    except (OSError, ValueError, TypeError, KeyError):
        raise error from None
