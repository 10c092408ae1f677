"""FSx for Lustre: file systems with lifecycles, each a folder of the site."""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

from moto.core.resource_tagging import TaggedResource
from moto.fsx.models import FSxBackend
from moto.fsx.responses import FSxResponse

from infra.rehearsal.aws.fsx import fsx_rules
from infra.rehearsal.aws.fsx.repositories import Repositories
from infra.rehearsal.aws.operations import AwsError, Parameters, add_backend, tag_list, wrap
from infra.rehearsal.aws.s3.kms import OF_FSX
from infra.rehearsal.aws.world import World
from infra.spec.names import CAMPAIGN_TAG

CREATION_S = 1.0
DELETION_S = 1.0
INTERFACES = 2
UPDATABLE = (
    "WeeklyMaintenanceStartTime",
    "DailyAutomaticBackupStartTime",
    "AutomaticBackupRetentionDays",
    "AutoImportPolicy",
    "DataCompressionType",
    "LogConfiguration",
    "RootSquashConfiguration",
    "PerUnitStorageThroughput",
    "MetadataConfiguration",
)


@dataclass
class FileSystem:
    """A file system, with the attributes that moto's FSxBackend reads."""

    file_system_id: str
    resource_arn: str
    owner_id: str
    dns_name: str
    vpc_id: str
    subnet_ids: list[str]
    network_interface_ids: list[str]
    storage_capacity: int
    storage_type: str
    version: str
    lustre: dict[str, Any]
    folder: Path
    token: str | None
    key: str | None = None
    """None for a scratch file system, whose key is not visible."""
    lifecycle: str = "CREATING"
    creation_time: float = field(default_factory=time.time)
    actions: list[dict[str, Any]] = field(default_factory=list)
    file_system_type: str = "LUSTRE"
    failure: str | None = None

    def describe(self, tags: dict[str, str]) -> dict[str, Any]:
        return (
            {
                "OwnerId": self.owner_id,
                "CreationTime": self.creation_time,
                "FileSystemId": self.file_system_id,
                "FileSystemType": self.file_system_type,
                "FileSystemTypeVersion": self.version,
                "Lifecycle": self.lifecycle,
                "StorageCapacity": self.storage_capacity,
                "StorageType": self.storage_type,
                "VpcId": self.vpc_id,
                "SubnetIds": self.subnet_ids,
                "NetworkInterfaceIds": self.network_interface_ids,
                "DNSName": self.dns_name,
                "ResourceARN": self.resource_arn,
                "Tags": tag_list(tags),
                "LustreConfiguration": self.lustre,
                "AdministrativeActions": self.actions,
            }
            | ({"KmsKeyId": self.key} if self.key else {})
            | ({"FailureDetails": {"Message": self.failure}} if self.failure else {})
        )


class Lustre:
    """The operations on file systems, and on the tags of all FSx resources."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.repositories = Repositories(world, self)

    @property
    def backend(self) -> FSxBackend:
        return self.world.backend("fsx")

    @property
    def file_systems(self) -> dict[str, FileSystem]:
        return self.backend.file_systems  # type: ignore[return-value]

    def find(self, file_system_id: str) -> FileSystem:
        try:
            return self.file_systems[file_system_id]
        except KeyError:
            raise AwsError("FileSystemNotFound", f"File system '{file_system_id}' does not exist.") from None

    def tags_of(self, arn: str) -> dict[str, str]:
        return self.backend.tagger.get_tag_dict_for_resource(arn)

    def create_file_system(self, params: Parameters) -> dict[str, Any]:
        token = params.get("ClientRequestToken")
        for file_system in self.file_systems.values():
            if token and file_system.token == token:
                return {"FileSystem": file_system.describe(self.tags_of(file_system.resource_arn))}
        if params.get("FileSystemType") != "LUSTRE":
            raise fsx_rules.bad_request("only FileSystemType LUSTRE is part of the rehearsal")
        lustre = fsx_rules.with_defaults(params)
        fsx_rules.check_lustre(params, lustre)
        file_system = self._create(params, lustre, token)
        self.backend.tagger.tag_resource(file_system.resource_arn, params.get("Tags") or [])
        self.world.schedule_once(
            self.world.takes("file system made", CREATION_S), lambda: self._become_available(file_system)
        )
        return {"FileSystem": file_system.describe(self.tags_of(file_system.resource_arn))}

    def _create(self, params: Parameters, lustre: dict[str, Any], token: str | None) -> FileSystem:
        world = self.world
        file_system_id = f"fs-{secrets.token_hex(9)[:17]}"
        subnet = self._subnet(params.get("SubnetIds") or [])
        groups = self._security_groups(subnet, params.get("SecurityGroupIds") or [], bool(lustre.get("EfaEnabled")))
        deployment = lustre["DeploymentType"]
        lustre["MountName"] = "fsx" if deployment == "SCRATCH_1" else secrets.token_hex(4)
        folder = world.fsx_root / file_system_id
        folder.mkdir(parents=True)
        file_system = FileSystem(
            file_system_id=file_system_id,
            resource_arn=f"arn:aws:fsx:{world.region}:{world.account}:file-system/{file_system_id}",
            owner_id=world.account,
            dns_name=f"{file_system_id}.fsx.{world.region}.amazonaws.com",
            vpc_id=subnet.vpc_id,
            subnet_ids=[subnet.id],
            network_interface_ids=[self._interface(subnet, groups, file_system_id) for _ in range(INTERFACES)],
            storage_capacity=params["StorageCapacity"],
            storage_type=params.get("StorageType") or "SSD",
            version=params.get("FileSystemTypeVersion") or fsx_rules.VERSIONS[deployment][-1],
            lustre=fsx_rules.with_metadata(lustre, params["StorageCapacity"]),
            folder=folder,
            token=token,
            key=self._key(params.get("KmsKeyId"), deployment),
        )
        self.file_systems[file_system_id] = file_system
        return file_system

    def _key(self, arn: str | None, deployment: str) -> str | None:
        """Return the customer's key, or FSx's own key of the account."""
        kms = self.world.backend("kms")
        if deployment.startswith("SCRATCH"):
            if arn is not None:
                raise fsx_rules.bad_request(f"KmsKeyId is not supported with deployment type {deployment}")
            return None
        if arn is None:
            return str(kms.keys[kms.get_key_id_from_alias(OF_FSX)].arn)
        if arn.rpartition("/")[2] not in kms.keys:
            raise fsx_rules.bad_request(f"The KMS key {arn} does not exist")
        return arn

    def _subnet(self, subnet_ids: list[str]) -> Any:
        if len(subnet_ids) != 1:
            raise fsx_rules.bad_request(f"exactly one subnet ID must be specified for Lustre, not {len(subnet_ids)}")
        for subnets in self.world.backend("ec2").subnets.values():
            if subnet_ids[0] in subnets:
                return subnets[subnet_ids[0]]
        raise AwsError("InvalidNetworkSettings", f"The subnet ID '{subnet_ids[0]}' does not exist")

    def _security_groups(self, subnet: Any, group_ids: list[str], efa: bool) -> list[str]:
        ec2 = self.world.backend("ec2")
        groups = [ec2.get_security_group_from_id(group_id) for group_id in group_ids]
        for group_id, group in zip(group_ids, groups, strict=True):
            if group is None or group.vpc_id != subnet.vpc_id:
                raise AwsError("InvalidNetworkSettings", f"Security group '{group_id}' is not in VPC {subnet.vpc_id}")
        if not groups:
            groups = [ec2.get_default_security_group(subnet.vpc_id)]
        rules = [[_rule_facts(rule) for rule in group.ingress_rules] for group in groups]
        fsx_rules.check_network(rules, [group.id for group in groups], efa)
        return [group.id for group in groups]

    def _interface(self, subnet: Any, groups: list[str], file_system_id: str) -> str:
        address = subnet.get_available_subnet_ip(instance=None)
        eni = self.world.backend("ec2").create_network_interface(
            subnet, address, group_ids=groups, description=f"ENI for FSx file system {file_system_id}"
        )
        eni.requester_managed, eni.status, eni.requester_id = True, "in-use", "amazon-fsx"
        return eni.id

    def _become_available(self, file_system: FileSystem) -> None:
        with self.world.lock:
            if file_system.lifecycle != "CREATING":
                return
            trouble = self.world.troubles.find("file-system", file_system.file_system_id, "create")
            if trouble is None:
                file_system.lifecycle = "AVAILABLE"
            elif trouble.outcome == "fail":
                file_system.lifecycle, file_system.failure = "FAILED", trouble.message
            else:
                self.world.schedule_once(CREATION_S, lambda: self._become_available(file_system))

    def describe_file_systems(self, params: Parameters) -> dict[str, Any]:
        ids = params.get("FileSystemIds") or list(self.file_systems)
        matches = [self.find(file_system_id) for file_system_id in ids]
        start, limit = int(params.get("NextToken") or 0), params.get("MaxResults") or len(matches)
        page = matches[start : start + limit]
        next_token = str(start + limit) if start + limit < len(matches) else None
        return {"FileSystems": [fs.describe(self.tags_of(fs.resource_arn)) for fs in page], "NextToken": next_token}

    def update_file_system(self, params: Parameters) -> dict[str, Any]:
        file_system = self.find(params["FileSystemId"])
        if file_system.lifecycle != "AVAILABLE":
            raise fsx_rules.bad_request(f"File system '{file_system.file_system_id}' is {file_system.lifecycle}")
        changes = dict(params.get("LustreConfiguration") or {})
        unknown = sorted(set(changes) - set(UPDATABLE))
        if unknown:
            raise fsx_rules.bad_request(f"{', '.join(unknown)} cannot be updated; updatable: {', '.join(UPDATABLE)}")
        if "PerUnitStorageThroughput" in changes and file_system.lustre.get("EfaEnabled"):
            raise fsx_rules.bad_request("the throughput tier of an EFA-enabled file system cannot change")
        document = file_system.lustre | changes
        capacity = params.get("StorageCapacity") or file_system.storage_capacity
        if capacity < file_system.storage_capacity or (
            capacity > file_system.storage_capacity and document["DeploymentType"] == "SCRATCH_1"
        ):
            raise fsx_rules.bad_request(f"StorageCapacity can only grow, and not on SCRATCH_1; asked for {capacity}")
        fsx_rules.check_lustre({"StorageCapacity": capacity, "StorageType": file_system.storage_type}, document)
        file_system.lustre, file_system.storage_capacity = fsx_rules.with_metadata(document, capacity), capacity
        action = {"AdministrativeActionType": "FILE_SYSTEM_UPDATE", "Status": "COMPLETED", "RequestTime": time.time()}
        file_system.actions.append(action)
        return {"FileSystem": file_system.describe(self.tags_of(file_system.resource_arn))}

    def delete_file_system(self, params: Parameters) -> dict[str, Any]:
        file_system = self.find(params["FileSystemId"])
        final_backup = (params.get("LustreConfiguration") or {}).get("SkipFinalBackup") is False
        if final_backup and file_system.lifecycle != "DELETING":
            self._back_up(file_system)
        if file_system.lifecycle != "DELETING":
            file_system.lifecycle = "DELETING"
            self.repositories.forget(file_system.file_system_id)
            self.world.schedule_once(self.world.takes("file system deleted", DELETION_S), lambda: self._go(file_system))
        return {"FileSystemId": file_system.file_system_id, "Lifecycle": file_system.lifecycle}

    def lose(self, campaign: str) -> tuple[int, dict[str, Any]]:
        """Delete a campaign's file systems behind its back; 404 if it has none."""
        with self.world.lock:
            lost_ids = [
                file_system.file_system_id
                for file_system in self.file_systems.values()
                if self.tags_of(file_system.resource_arn).get(CAMPAIGN_TAG) == campaign
            ]
            for file_system_id in lost_ids:
                self.delete_file_system({"FileSystemId": file_system_id})
        return (HTTPStatus.OK if lost_ids else HTTPStatus.NOT_FOUND), {"file_systems": lost_ids}

    def _back_up(self, file_system: FileSystem) -> None:
        associations = self.repositories.associations_of(file_system.file_system_id)
        if associations or file_system.lustre["DeploymentType"].startswith("SCRATCH"):
            raise fsx_rules.bad_request("A scratch or S3-linked file system cannot be backed up: SkipFinalBackup=true")
        backup = self.backend.create_backup(file_system.file_system_id, None, None, None)
        backup.lifecycle = "AVAILABLE"

    def _go(self, file_system: FileSystem) -> None:
        trouble = self.world.troubles.find("file-system", file_system.file_system_id, "delete")
        if trouble is None:
            self._vanish(file_system)
        elif trouble.outcome == "hang":
            self.world.schedule_once(DELETION_S, lambda: self._go(file_system))
        else:
            file_system.lifecycle, file_system.failure = "FAILED", trouble.message

    def _vanish(self, file_system: FileSystem) -> None:
        with self.world.lock:
            self.file_systems.pop(file_system.file_system_id, None)
            self.backend.tagger.delete_all_tags_for_resource(file_system.resource_arn)
            for eni_id in file_system.network_interface_ids:
                eni = self.world.backend("ec2").enis.get(eni_id)
                if eni:
                    eni.delete()
        self.world.spawn(lambda: shutil.rmtree(file_system.folder, ignore_errors=True))

    def _resource(self, arn: str) -> str:
        resource_arns = [fs.resource_arn for fs in self.file_systems.values()]
        resource_arns += [backup.resource_arn for backup in self.backend.backups.values()]
        if arn not in resource_arns + self.repositories.arns():
            raise AwsError("ResourceNotFound", f"The resource '{arn}' does not exist")
        return arn

    def tag_resource(self, params: Parameters) -> None:
        self.backend.tagger.tag_resource(self._resource(params["ResourceARN"]), params["Tags"])

    def untag_resource(self, params: Parameters) -> None:
        self.backend.tagger.untag_resource_using_names(self._resource(params["ResourceARN"]), params["TagKeys"])

    def list_tags_for_resource(self, params: Parameters) -> dict[str, Any]:
        return {"Tags": tag_list(self.tags_of(self._resource(params["ResourceARN"])))}


def _rule_facts(rule: Any) -> dict[str, Any]:
    low = -1 if rule.from_port is None else int(rule.from_port)
    high = 65535 if rule.to_port is None else int(rule.to_port)
    groups = [(rule.source_group or {}).get("GroupId", "")]
    return {"protocol": str(rule.ip_protocol), "from": low, "to": high, "groups": groups}


def install(world: World) -> None:
    """Add FSx for Lustre to moto; other file system types are refused."""
    lustre = Lustre(world)
    add_backend(world, FSxResponse, lustre)
    add_backend(world, FSxResponse, lustre.repositories)
    world.schedule_every(2.0, lustre.repositories.reconcile)
    world.routes["/_site/lost-file-systems"] = lambda query, body: lustre.lose(query.removeprefix("campaign="))

    def iter_tagged_resources(moto: Callable[..., Any], backend: FSxBackend) -> Iterator[TaggedResource]:
        yield from moto(backend)
        for arn in lustre.repositories.arns():
            kind = "task" if ":task/" in arn else "association"
            yield TaggedResource(arn, backend.tagger.get_tag_dict_for_resource(arn), f"fsx:{kind}")

    wrap(FSxBackend, "iter_tagged_resources", iter_tagged_resources)
