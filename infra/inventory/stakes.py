"""Decides what would be lost with a campaign's resources, which stay until an archive is proven or a person gives up.

A file system may hold the only checkpoints and can be read only from its network. Both stay, unless the archive bucket
holds a manifest of the identity on the resource's tag, or the campaign's own record proves that nothing is lost. A
record that is missing, or another campaign's of this name, proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from botocore.exceptions import BotoCoreError, ClientError

from infra.archive.manifest import MANIFEST_NAME, ArchiveManifest, parse
from infra.aws.account import Account
from infra.console.words import plural
from infra.errors import NotProven, PermanentError
from infra.inventory import LOOKS
from infra.kinds import KINDS, Checkpoints, Thing
from infra.record.events import CampaignState, Stage
from infra.record.identity import CampaignIdentity, archive_prefix
from infra.record.objects import is_missing, object_or_none
from infra.spec.names import CAMPAIGN_ID_TAG, CAMPAIGN_TAG

MAY_HOLD = frozenset(kind.name for kind in KINDS if kind.checkpoints is Checkpoints.HOLDS)
NEVER_HOLD = frozenset(kind.name for kind in KINDS if kind.checkpoints is Checkpoints.FREE)


def identity_of(kind: str, thing: Thing, neighbours: Iterable[Thing]) -> str:
    """Return the identity on a resource's tag; for parts of a network, the one that all its neighbours share."""
    identity = str(thing.tags.get(CAMPAIGN_ID_TAG, ""))
    if identity or kind in MAY_HOLD:
        return identity
    identities = {str(neighbour.tags.get(CAMPAIGN_ID_TAG, "")) for neighbour in neighbours} - {""}
    return identities.pop() if len(identities) == 1 else ""


def may_hold_checkpoints(account: Account, campaign: str) -> bool:
    """Return whether anything with the campaign's tag may hold checkpoints; True if nobody could look."""
    try:
        return any(
            thing.tags.get(CAMPAIGN_TAG) == campaign and not thing.leaving
            for look in LOOKS
            if look.name in MAY_HOLD
            for thing in look.things(account)
        )
    except (ClientError, BotoCoreError):
        return True


def sound_archive(account: Account, bucket: str, campaign: str, identity: str) -> ArchiveManifest | None:
    """Return the manifest of an identity's archive if its objects exist in their sizes, else None. A failed look counts
    as none."""
    if not identity:
        return None
    s3, prefix = account.client("s3"), archive_prefix(campaign, identity)
    try:
        body = object_or_none(s3, bucket, f"{prefix}/{MANIFEST_NAME}")
        if body is None:
            return None
        manifest = parse(body, campaign, identity)
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/")
        sizes = {item["Key"]: item["Size"] for page in pages for item in page.get("Contents", ())}
    except (PermanentError, BotoCoreError):
        return None
    except ClientError as error:
        if is_missing(error) or error.response["Error"]["Code"] == "AccessDenied":
            return None
        raise
    is_whole = manifest.objects and all(sizes.get(item.key) == item.size_bytes for item in manifest.objects)
    rest_ok = not manifest.unproven or manifest.unproven in sizes  # written last of what is copied beside it
    return manifest if is_whole and rest_ok else None


def refuse_unproven(state: CampaignState, campaign: str, identity: CampaignIdentity | None) -> None:
    """Raise `NotProven` while something may be lost: training has begun, and what it left is neither archived, nor
    copied as it is, nor known to be nothing, nor abandoned. A record without any event proves nothing."""
    if state.abandoned or state.nothing_to_lose or Stage.TEARDOWN in state.finished_stages:
        return
    if state.tells_nothing:
        facts = "its record has no events"
    elif (reason := _not_proven(state, identity)) is None:
        return
    else:
        newest = f"newest checkpoint known: step {state.newest_committed}" if state.newest_committed >= 0 else ""
        parts = (f"{len(state.attempts)} attempts", newest or "no committed checkpoint is known", reason, _left(state))
        facts = ", ".join(filter(None, parts))
    raise NotProven(
        f"campaign {campaign} is not archived",
        seen=facts,
        cure=f"`bivouac run` lets the steward finish and archive; or `bivouac down {campaign} --abandon` to lose it",
    )


def at_stake(state: CampaignState, identity: CampaignIdentity | None) -> bool:
    """Return whether the stack may hold what is nowhere else, or will once its driver goes on to train in it. A stack
    that only a person has made, by `pulumi up`, does not."""
    if not state.attempts:
        return not state.nothing_to_lose or Stage.PROVISION in {state.running_stage, *state.finished_stages}
    return not (state.abandoned or state.nothing_to_lose or _not_proven(state, identity) is None)


def _left(state: CampaignState) -> str:
    """Return what the job left that no format recognises, as far as it is known; empty if there is none."""
    if state.unrecognised is None:
        return "and nobody could look at what the job left" if state.outcome is not None else ""
    return state.unrecognised.sentence() if state.unrecognised.files else ""


def _not_proven(state: CampaignState, record: CampaignIdentity | None) -> str | None:
    """Return why the record's archive does not cover all training; None if it does."""
    archive = state.archive
    if state.doubted:
        return (
            f"{plural(state.unreadable, 'object')} of its record cannot be read, and may have been a launch or a commit"
        )
    if state.copied_as_it_is:
        return None
    if archive is None:
        return "no verified archive"
    own_id = "" if record is None else record.identity
    archive_id = archive.identity
    if archive_id != own_id and (archive_id or (record is not None and not record.adopted)):
        return f"the archive of step {archive.step} is of campaign {archive_id or 'without identity'}, not of {own_id}"
    if (archive.step if archive.accounts_for is None else archive.accounts_for) < state.newest_committed:
        return f"the archive is of step {archive.step}"
    return None
