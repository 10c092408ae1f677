"""FSx for Lustre's limits on sizes, throughput tiers and EFA, as pure functions of a request's parameters."""

from __future__ import annotations

from typing import Any

from infra.rehearsal.aws.operations import AwsError

DEPLOYMENTS = ("SCRATCH_1", "SCRATCH_2", "PERSISTENT_1", "PERSISTENT_2")
SSD_TIERS = {"PERSISTENT_1": (50, 100, 200), "PERSISTENT_2": (125, 250, 500, 1000)}
HDD_TIERS = {12: 6000, 40: 1800}
"""MB/s per TiB -> size step in GiB."""
EFA_STEP_GIB = {125: 38400, 250: 19200, 500: 9600, 1000: 4800}
METADATA_IOPS = (1500, 3000, 6000, *range(12000, 192001, 12000))
VERSIONS = {"SCRATCH_1": ("2.10",), "SCRATCH_2": ("2.10", "2.12", "2.15"), "PERSISTENT_1": ("2.10", "2.12", "2.15")}
VERSIONS |= {"PERSISTENT_2": ("2.12", "2.15")}


def bad_request(message: str) -> AwsError:
    return AwsError("BadRequest", message)


def with_defaults(params: dict[str, Any]) -> dict[str, Any]:
    """Return the Lustre configuration of a CreateFileSystem with AWS's defaults."""
    lustre = dict(params.get("LustreConfiguration") or {})
    lustre.setdefault("DeploymentType", "SCRATCH_1")
    lustre.setdefault("WeeklyMaintenanceStartTime", "7:05:00")
    lustre.setdefault("DataCompressionType", "NONE")
    lustre.setdefault("CopyTagsToBackups", False)
    lustre.setdefault("LogConfiguration", {"Level": "DISABLED"})
    if lustre["DeploymentType"].startswith("PERSISTENT"):
        lustre.setdefault("AutomaticBackupRetentionDays", 0)
    if lustre["DeploymentType"] == "PERSISTENT_2":
        lustre.setdefault("EfaEnabled", False)
    if lustre.get("AutomaticBackupRetentionDays"):
        lustre.setdefault("DailyAutomaticBackupStartTime", "05:00")
    return lustre


def with_metadata(lustre: dict[str, Any], capacity_gib: int) -> dict[str, Any]:
    """Add the metadata IOPS that FSx chooses for the capacity in AUTOMATIC mode.

    https://docs.aws.amazon.com/fsx/latest/LustreGuide/managing-metadata-performance.html
    """
    metadata = lustre.get("MetadataConfiguration") or {}
    if metadata.get("Mode") != "AUTOMATIC":
        return lustre
    steps = ((1200, 1500), (2400, 3000), (9600, 6000), (45600, 12000))
    iops = next((iops for limit, iops in steps if capacity_gib <= limit), capacity_gib // 24000 * 12000)
    return lustre | {"MetadataConfiguration": metadata | {"Iops": iops}}


def check_lustre(params: dict[str, Any], lustre: dict[str, Any]) -> None:
    """Raise AWS's error for a CreateFileSystem; `lustre` comes from `with_defaults`."""
    deployment = lustre["DeploymentType"]
    if deployment not in DEPLOYMENTS:
        raise bad_request(f"DeploymentType '{deployment}' is not one of {', '.join(DEPLOYMENTS)}")
    if params.get("StorageType") == "INTELLIGENT_TIERING":
        raise bad_request("StorageType INTELLIGENT_TIERING is not part of the rehearsal")
    version = params.get("FileSystemTypeVersion")
    if version and version not in VERSIONS[deployment]:
        raise bad_request(f"FileSystemTypeVersion {version} is not supported with deployment type {deployment}")
    if lustre.get("ImportPath") or lustre.get("ExportPath"):
        raise bad_request("ImportPath and ExportPath are not part of the rehearsal; use data repository associations")
    throughput = lustre.get("PerUnitStorageThroughput")
    _check_throughput(deployment, params.get("StorageType") or "SSD", throughput)
    check_capacity(deployment, params.get("StorageType") or "SSD", throughput, params.get("StorageCapacity"))
    _check_persistent_2(deployment, lustre, params.get("StorageCapacity"), throughput)


def _check_throughput(deployment: str, storage: str, throughput: int | None) -> None:
    if deployment.startswith("SCRATCH"):
        if throughput is not None:
            raise bad_request(f"PerUnitStorageThroughput is not supported with deployment type {deployment}")
        return
    if storage == "HDD" and deployment == "PERSISTENT_2":
        raise bad_request("StorageType HDD is not supported with deployment type PERSISTENT_2")
    tiers = tuple(HDD_TIERS) if storage == "HDD" else SSD_TIERS[deployment]
    if throughput is None:
        raise bad_request(f"PerUnitStorageThroughput is required for deployment type {deployment}")
    if throughput not in tiers:
        raise bad_request(f"PerUnitStorageThroughput {throughput} is not one of {tiers} for {deployment} {storage}")


def check_capacity(deployment: str, storage: str, throughput: int | None, capacity_gib: int | None) -> None:
    if capacity_gib is None:
        raise bad_request("StorageCapacity is required")
    if storage == "HDD":
        step = HDD_TIERS[throughput or 12]
        fits = capacity_gib % step == 0
    else:
        step = 3600 if deployment == "SCRATCH_1" else 2400
        fits = capacity_gib == 1200 or (capacity_gib == 2400 or capacity_gib % step == 0)
    if capacity_gib <= 0 or not fits:
        raise bad_request(
            f"The specified storage capacity is not valid: {capacity_gib} GiB; "
            f"{deployment} {storage} takes {'' if storage == 'HDD' else '1200, 2400 or '}multiples of {step} GiB"
        )


def _check_persistent_2(deployment: str, lustre: dict[str, Any], capacity: int | None, throughput: int | None) -> None:
    metadata = lustre.get("MetadataConfiguration")
    if deployment != "PERSISTENT_2" and (metadata or lustre.get("EfaEnabled")):
        raise bad_request("MetadataConfiguration and EfaEnabled need deployment type PERSISTENT_2")
    if metadata:
        if metadata.get("Mode") == "USER_PROVISIONED" and metadata.get("Iops") not in METADATA_IOPS:
            raise bad_request(f"Metadata IOPS {metadata.get('Iops')} is not one of 1500, 3000, 6000 and 12000 * n")
        if metadata.get("Mode") == "AUTOMATIC" and metadata.get("Iops"):
            raise bad_request("Iops cannot be given with metadata mode AUTOMATIC")
    if lustre.get("EfaEnabled"):
        if not metadata:
            raise bad_request("EfaEnabled needs a MetadataConfiguration")
        step = EFA_STEP_GIB[throughput or 0]
        if (capacity or 0) % step:
            raise bad_request(
                f"An EFA-enabled file system at {throughput} MB/s/TiB takes multiples of {step} GiB, not {capacity}"
            )


def check_network(group_rules: list[list[dict[str, Any]]], own_ids: list[str], efa: bool) -> None:
    """Check ingress rules {protocol, from, to, groups}, a list per security group; `own_ids` are the groups' IDs."""
    rules = [rule for group in group_rules for rule in group]

    def covers(rule: dict[str, Any], port: int) -> bool:
        if rule["protocol"] == "-1":
            return True
        return rule["protocol"] in ("tcp", "6") and rule["from"] <= port <= rule["to"]

    if not any(covers(rule, 988) for rule in rules):
        raise AwsError(
            "InvalidNetworkSettings",
            "The file system cannot be created because the provided security groups do not permit Lustre LNET "
            "network traffic on port 988.",
        )
    to_itself = any(rule["protocol"] == "-1" and set(rule["groups"]) & set(own_ids) for rule in rules)
    if efa and not to_itself:
        raise AwsError(
            "InvalidNetworkSettings",
            "An EFA-enabled file system needs a security group that allows all traffic from itself.",
        )
