"""Search of a place by a user's text: a folder, an s3:// prefix, or a campaign's name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from infra.archive.manifest import GOLDEN, MANIFEST_NAME, ArchiveManifest
from infra.aws.account import Account
from infra.aws.transfer import Transfer
from infra.checkpoints.place import BucketPlace, FolderPlace, Place
from infra.checkpoints.requests import CARRIED
from infra.cluster.standing.connection import open_account
from infra.errors import UserError
from infra.folders import kept_results
from infra.record import borrowing
from infra.record.events import Stage
from infra.record.identity import archive_prefix_of, read_identity
from infra.record.payloads.checkpoints import CheckpointCopied
from infra.record.store import CampaignStore
from infra.spec import names
from infra.spec.names import copies_prefix
from trainer.contract import step_of_folder
from trainer.contract.listing import Listed, Listing

COPY = "copy"
"""Tier of an interval copy."""
TIERS = "checkpoints.json"
"""Key in the record: the steward's newest listing of local and shared tier."""
TIERS_EVERY_S = 15.0
"""Seconds between two of these listings."""


@dataclass(frozen=True)
class FoundPlace:
    """A place with further facts."""

    place: Place
    step: int | None = None
    """The step, if the text named one."""
    tiers: tuple[Listed, ...] = ()
    """Listing of a campaign's nodes and shared file system, as the steward last saw them."""
    archive: ArchiveManifest | None = None
    unread: str = ""
    """Error in the existing archive manifest."""
    store: CampaignStore | None = None
    """Record of a campaign, if it can be reached; requests to its steward go through it."""


def is_campaign(text: str) -> bool:
    """Return True if the text can only be a campaign's name."""
    return not text.startswith("s3://") and "/" not in text and not Path(text).exists()


def find(text: str, region: str, archive: bool = True) -> FoundPlace:
    """Find a place. Without `archive` a campaign's archive is not read, so that its errors do not hide the live tiers.

    Raises `UserError` if the text is neither a folder, nor a prefix, nor a known campaign.
    """
    if text.startswith("s3://"):
        return _in_bucket(text, region)
    if not is_campaign(text):
        return _in_folder(Path(text))
    return _of_campaign(text, region, archive)


def _in_folder(path: Path) -> FoundPlace:
    if not path.is_dir():
        raise UserError("there is no such folder", seen=path, cure="name a folder, an s3:// prefix or a campaign")
    if (step := step_of_folder(path.resolve().name)) is not None:
        return FoundPlace(FolderPlace(path.resolve().parent), step)
    holding = [folder for folder in (path, path / GOLDEN) if _holds_steps(folder)]
    if not holding:
        names = sorted(folder.name for folder in path.iterdir() if folder.is_dir() and _holds_steps(folder))
        cure = f"one of: {', '.join(names)}" if names else "name the folder in which step-<8 digits> lie"
        raise UserError("there are no checkpoints in this folder", seen=path, cure=cure)
    return FoundPlace(FolderPlace(holding[0]))


def _in_bucket(address: str, region: str) -> FoundPlace:
    bucket, _, prefix = address.removeprefix("s3://").partition("/")
    return _in_archive(Account(region).client("s3"), bucket, prefix.rstrip("/"))


def _in_archive(s3: Any, bucket: str, prefix: str) -> FoundPlace:
    transfer = Transfer(s3, bucket)
    head, _, name = prefix.rpartition("/")
    if (step := step_of_folder(name)) is not None:
        return FoundPlace(BucketPlace(s3, bucket, head, transfer), step)
    inner = "/".join(filter(None, (prefix, GOLDEN)))
    archive = BucketPlace(s3, bucket, inner, transfer)
    manifest, unread = _manifest(archive, f"{prefix}/{MANIFEST_NAME}")
    if manifest is not None or (archive.objects(f"{inner}/") and not BucketPlace(s3, bucket, prefix, transfer).rows()):
        return FoundPlace(archive, archive=manifest, unread=unread)
    return FoundPlace(BucketPlace(s3, bucket, prefix, transfer), unread=unread)


def _of_campaign(campaign: str, region: str, archive: bool) -> FoundPlace:
    if (spec := borrowing.recall(campaign)) is not None:
        s3, folder = open_account(spec)[0].client("s3"), f"{spec.bucket_root}campaigns/{campaign}"
        store = CampaignStore(s3, spec.buckets.state, campaign, "checkpoints", folder)
        return _archived(store, spec.buckets.archive, archive)
    account = Account(region)
    s3 = account.client("s3")
    try:
        identity = account.identity()
        campaign_buckets = names.buckets(identity["Account"], region)
        store = CampaignStore(s3, campaign_buckets.state, campaign, "checkpoints")
        exists = store.has("spec.json")
    except UserError:
        if not export_folder(campaign, region).is_dir():
            raise
        exists = False
    if not exists:
        if export_folder(campaign, region).is_dir():
            return _in_folder(export_folder(campaign, region))
        cure = "name a campaign of this account, a folder, or an s3:// prefix"
        raise UserError("there is no such campaign here", seen=campaign, cure=cure)
    return _archived(store, campaign_buckets.archive, archive)


def _archived(store: CampaignStore, bucket: str, archive: bool) -> FoundPlace:
    """Return the place of a campaign's checkpoints: its archive with the manifest, or what lies there now."""
    prefix = f"{store.root}{archive_prefix_of(store)}"
    if archive:
        place = _in_archive(store.s3, bucket, prefix)
    else:
        place = FoundPlace(BucketPlace(store.s3, bucket, f"{prefix}/{GOLDEN}", Transfer(store.s3, bucket)))
    return replace(place, tiers=_tiers(store), store=store)


def carry_place(store: CampaignStore) -> BucketPlace:
    """Return the place for steps that a steward copies out of its cluster."""
    return BucketPlace(store.s3, store.bucket, f"{store.prefix}/{CARRIED}", Transfer(store.s3, store.bucket))


def export_folder(campaign: str, region: str) -> Path:
    """Return the folder of a campaign's archive that a rehearsal site's end exported; the newest for a reused name."""
    root = kept_results(campaign, region) / "archive"
    return max((path.parent for path in root.glob(f"*/{GOLDEN}")), default=root)


def _tiers(store: CampaignStore) -> tuple[Listed, ...]:
    """Return the steward's newest listing without tiers that are gone with the nodes or the teardown."""
    listing, state = store.figures(TIERS, Listing), store.state()
    if listing is None or Stage.TEARDOWN in state.finished_stages:
        return ()
    return tuple(row for row in listing.rows if not (state.closed and row.node))


def _holds_steps(folder: Path) -> bool:
    return folder.is_dir() and any(step_of_folder(path.name) is not None for path in folder.iterdir())


def _manifest(place: BucketPlace, key: str) -> tuple[ArchiveManifest | None, str]:
    """Return the archive's manifest; None with the error if it exists but cannot be read."""
    content = place.get(key)
    try:
        return (None if content is None else ArchiveManifest.model_validate_json(content)), ""
    except ValueError as error:
        return None, f"s3://{place.bucket}/{key}: {str(error).splitlines()[0]}"


@dataclass(frozen=True)
class Copied:
    """An interval copy in S3."""

    row: Listed
    read_back_at: datetime | None
    """When its last byte was read back, by the record; None if the record does not say so, or it is whole no more."""


def copies_of(store: CampaignStore, archive_bucket: str) -> tuple[BucketPlace, tuple[Copied, ...]]:
    """Return the place of the copies, and each, newest first."""
    owner = read_identity(store)
    prefix = f"{store.root}{copies_prefix(store.campaign, owner.identity if owner else '')}"
    place = BucketPlace(store.s3, archive_bucket, prefix, Transfer(store.s3, archive_bucket))
    read_back = {e.payload.step: e.at for e in store.events() if isinstance(e.payload, CheckpointCopied)}
    rows = [row.model_copy(update={"tier": COPY}) for row in place.rows()]
    whole_steps = {row.step for row in rows if row.committed and not row.why}
    return place, tuple(Copied(row, read_back.get(row.step) if row.step in whole_steps else None) for row in rows)
