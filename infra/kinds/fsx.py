"""File systems, their links to buckets, and backups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from botocore.exceptions import ClientError

from infra.aws.account import Account, every, says_missing
from infra.kinds.finding import status_of, tags_of_its_own
from infra.kinds.kind import Checkpoints, Inputs, Remain, ResourceKind, Step
from infra.kinds.listed import arn_of, listed_kind, one_by_one, place_in
from infra.kinds.thing import tags_of
from infra.plan.catalogue import service_prices
from infra.plan.estimates.cost import HOURS_PER_MONTH
from infra.spec.names import CAMPAIGN_TAG, Names

_ENDED = ("DELETING", "FAILED")


def _left(account: Account, names: Names) -> Iterator[Remain]:
    for item in every(account.client("fsx"), "describe_file_systems", "FileSystems"):
        if tags_of(item.get("Tags")).get(CAMPAIGN_TAG) != names.campaign:
            continue
        reason = (item.get("FailureDetails") or {}).get("Message")
        yield Remain(
            f"file system {item['FileSystemId']}",
            f"{item['Lifecycle']}{', ' + reason if reason else ''}",
            "wait while it is DELETING, and run the same command again; FAILED is for AWS Support",
            ours=True,
        )


def _price(item: Mapping[str, Any]) -> Decimal | None:
    lustre = item.get("LustreConfiguration") or {}
    tiers = service_prices().lustre_usd_per_gb_month.get(str(lustre.get("DeploymentType")), {})
    price = next(iter(tiers.values())) if len(tiers) == 1 else tiers.get(lustre.get("PerUnitStorageThroughput") or 0)
    return None if price is None else int(item.get("StorageCapacity") or 0) * price / HOURS_PER_MONTH


def _file_systems(account: Account, inputs: Inputs) -> list[str]:
    own_tags = tags_of_its_own(inputs).items()
    systems = every(account.client("fsx"), "describe_file_systems", "FileSystems")
    living = [system for system in systems if system["Lifecycle"] not in _ENDED]
    return [system["FileSystemId"] for system in living if own_tags <= tags_of(system.get("Tags")).items()]


def _links(account: Account, inputs: Inputs) -> list[str]:
    by_system = [{"Name": "file-system-id", "Values": [inputs["fileSystemId"]]}]
    associations = every(
        account.client("fsx"), "describe_data_repository_associations", "Associations", Filters=by_system
    )
    links = [link for link in associations if link.get("FileSystemPath") == inputs["fileSystemPath"]]
    return [link["AssociationId"] for link in links if link["Lifecycle"] not in _ENDED]


def _link(account: Account, arn: str) -> bool:
    """Return True if the link exists; it is gone with its file system, even if the link may not be read."""
    fsx, (_, system, id) = account.client("fsx"), place_in(arn).split("/")
    try:
        return bool(fsx.describe_data_repository_associations(AssociationIds=[id])["Associations"])
    except ClientError as error:
        if says_missing(error):
            return False
        fsx.describe_file_systems(FileSystemIds=[system])
        raise


def _backup(account: Account, arn: str) -> bool:
    return bool(account.client("fsx").describe_backups(BackupIds=[arn.rpartition("/")[2]])["Backups"])


KINDS = (
    listed_kind(
        "file system", Step.SERVICES, "fsx", "describe_file_systems", "FileSystems", "FileSystemId",
        arn="file-system/", remove="delete_file_system",
        price=_price, remains=_left, held_by=("file system",), checkpoints=Checkpoints.HOLDS, holds_state=True,
        type="aws:fsx/lustreFileSystem:LustreFileSystem", find=_file_systems,
        status=status_of("fsx", "describe_file_systems", "FileSystems", "Lifecycle", "FileSystemIds"),
    ),
    ResourceKind(
        "data repository link", "fsx", arn_of("fsx", "association/"), ask=one_by_one(_link),
        type="aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation", find=_links,
        status=status_of("fsx", "describe_data_repository_associations", "Associations", "Lifecycle", "AssociationIds"),
    ),
    ResourceKind("backup", "fsx", arn_of("fsx", "backup/"), ask=one_by_one(_backup)),
)  # fmt: skip
