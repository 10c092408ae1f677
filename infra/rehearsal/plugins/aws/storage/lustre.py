"""FSx for Lustre file systems, and their links to S3."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from infra.rehearsal.plugins.aws.call import Call, NotReady, Resource
from infra.rehearsal.plugins.aws.table import LOCAL, Conversion, Input
from infra.rehearsal.plugins.aws.tags import by_arn, retagging, tag_list, tag_map
from infra.rehearsal.plugins.wire import Props

_OUTER = ("storageCapacity", "storageType", "securityGroupIds", "kmsKeyId", "fileSystemTypeVersion")
_LUSTRE = {
    "automaticBackupRetentionDays": Input(computed=True),
    "copyTagsToBackups": Input(replaces=True),
    "dailyAutomaticBackupStartTime": Input(computed=True),
    "dataCompressionType": Input(default="NONE"),
    "deploymentType": Input(replaces=True, default="SCRATCH_1"),
    "driveCacheType": Input(replaces=True),
    "efaEnabled": Input(replaces=True, computed=True),
    "logConfiguration": Input(fields={"destination": Input(), "level": Input()}, computed=True),
    "metadataConfiguration": Input(fields={"mode": Input(), "iops": Input(computed=True)}, computed=True),
    "perUnitStorageThroughput": Input(),
    "rootSquashConfiguration": Input(fields={"rootSquash": Input(), "noSquashNids": Input(kind=Conversion.SET)}),
    "throughputCapacity": Input(),
    "weeklyMaintenanceStartTime": Input(computed=True),
}


def create_system(call: Call) -> str:
    answer = call.client().create_file_system(
        FileSystemType="LUSTRE",
        # The SDK's `subnetIds` is one string, the API's a list.
        SubnetIds=[call.new["subnetIds"]],
        LustreConfiguration=call.request(*_LUSTRE),
        **({"Tags": tag_list(call.tags)} if call.tags else {}),
        **call.request(*_OUTER),
    )
    call.id = answer["FileSystem"]["FileSystemId"]
    call.wait(lambda: _is_available(call), f"file system {call.id} to become AVAILABLE")
    return call.id


def _describe(call: Call) -> dict[str, Any] | None:
    answer = call.or_none(lambda: call.client().describe_file_systems(FileSystemIds=[call.id]))
    return dict(answer["FileSystems"][0]) if answer and answer["FileSystems"] else None


def _is_available(call: Call) -> bool:
    found = _describe(call) or {}
    if found.get("Lifecycle") in ("FAILED", "MISCONFIGURED", "MISCONFIGURED_UNAVAILABLE"):
        reason = (found.get("FailureDetails") or {}).get("Message")
        raise NotReady(f"file system {call.id} {found['Lifecycle']}: {reason}")
    return found.get("Lifecycle") == "AVAILABLE"


def read_system(call: Call) -> Props | None:
    found = _describe(call)
    if not found:
        return None
    lustre = found.get("LustreConfiguration") or {}
    return {
        **call.observed({**lustre, **found}),
        "subnetIds": (found.get("SubnetIds") or [call.new.get("subnetIds")])[0],
        "tags": tag_map(found.get("Tags") or []),
    }


def update_system(call: Call) -> None:
    lustre = call.request(*(name for name, entry in _LUSTRE.items() if call.changed(name) and not entry.replaces))
    outer = call.request("storageCapacity") if call.changed("storageCapacity") else {}
    if lustre or outer:
        body = {"LustreConfiguration": lustre} if lustre else {}
        call.client().update_file_system(FileSystemId=call.id, **outer, **body)
        call.wait(lambda: _is_available(call) and not _pending(call), f"update of file system {call.id}")


def _pending(call: Call) -> bool:
    actions = (_describe(call) or {}).get("AdministrativeActions") or []
    for action in actions:
        if action.get("Status") == "FAILED":
            raise NotReady(f"update of file system {call.id} FAILED: {action.get('FailureDetails')}")
    return any(action.get("Status") in ("PENDING", "IN_PROGRESS") for action in actions)


def delete_system(call: Call) -> None:
    client = call.client()
    # Scratch file systems have no backups, and AWS refuses the field for them.
    scratch = str(call.state.get("deploymentType", "")).startswith("SCRATCH")
    skip = {"SkipFinalBackup": bool(call.state.get("skipFinalBackup", True))}
    body = {} if scratch else {"LustreConfiguration": skip}
    call.destroy(lambda: client.delete_file_system(FileSystemId=call.id, **body), "ServiceLimitExceeded")
    call.wait(lambda: _is_gone(call), f"file system {call.id} to go")


def _is_gone(call: Call) -> bool:
    found = _describe(call)
    if found and found.get("Lifecycle") == "FAILED":
        reason = (found.get("FailureDetails") or {}).get("Message")
        raise NotReady(f"file system {call.id} FAILED while it was deleted: {reason}")
    return not found


retag = retagging("ResourceARN", by_arn)


_LINK = {
    "fileSystemId": Input(required=True, replaces=True),
    "fileSystemPath": Input(required=True, replaces=True),
    "dataRepositoryPath": Input(required=True, replaces=True),
    "batchImportMetaDataOnCreate": Input(replaces=True),
    "importedFileChunkSize": Input(computed=True),
    "s3": Input(
        api="S3",
        computed=True,
        fields={
            "autoExportPolicy": Input(fields={"events": Input(kind=Conversion.SET)}),
            "autoImportPolicy": Input(fields={"events": Input(kind=Conversion.SET)}),
        },
    ),
}


def create_link(call: Call) -> str:
    tags = {"Tags": tag_list(call.tags)} if call.tags else {}
    answer = call.client().create_data_repository_association(**call.request(*_LINK), **tags)
    call.id = answer["Association"]["AssociationId"]
    call.wait(lambda: _link_is_available(call), f"data repository association {call.id} to become AVAILABLE")
    return call.id


def _link(call: Call) -> dict[str, Any] | None:
    answer = call.or_none(lambda: call.client().describe_data_repository_associations(AssociationIds=[call.id]))
    return dict(answer["Associations"][0]) if answer and answer["Associations"] else None


def _link_is_available(call: Call) -> bool:
    found = _link(call) or {}
    if found.get("Lifecycle") in ("FAILED", "MISCONFIGURED"):
        reason = (found.get("FailureDetails") or {}).get("Message")
        raise NotReady(f"data repository association {call.id} {found['Lifecycle']}: {reason}")
    return found.get("Lifecycle") == "AVAILABLE"


def read_link(call: Call) -> Props | None:
    found = _link(call)
    return {**call.observed(found), "tags": tag_map(found.get("Tags") or [])} if found else None


def update_link(call: Call) -> None:
    request = call.request("importedFileChunkSize", "s3")
    call.client().update_data_repository_association(AssociationId=call.id, **request)
    call.wait(lambda: _link_is_available(call), f"update of data repository association {call.id}")


def delete_link(call: Call) -> None:
    client = call.client()
    wipe = bool(call.state.get("deleteDataInFilesystem"))
    act = client.delete_data_repository_association
    call.destroy(lambda: act(AssociationId=call.id, DeleteDataInFileSystem=wipe))
    call.wait_gone(lambda: _link(call), f"data repository association {call.id} to go")


RESOURCES = (
    Resource(
        token="aws:fsx/lustreFileSystem:LustreFileSystem",
        service="fsx",
        inputs={
            "subnetIds": Input(api=LOCAL, required=True, replaces=True),
            "securityGroupIds": Input(replaces=True, kind=Conversion.SET),
            "storageCapacity": Input(),
            "storageType": Input(replaces=True, default="SSD"),
            "kmsKeyId": Input(replaces=True, computed=True),
            "fileSystemTypeVersion": Input(replaces=True, computed=True),
            "skipFinalBackup": Input(api=LOCAL, default=True),
            **_LUSTRE,
        },
        outputs={
            "arn": "ResourceARN",
            "dnsName": "DNSName",
            "mountName": None,
            "networkInterfaceIds": None,
            "ownerId": None,
            "vpcId": None,
        },
        patience=timedelta(minutes=30),
        create=create_system,
        read=read_system,
        update=update_system,
        delete=delete_system,
        tagger=retag,
    ),
    Resource(
        token="aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation",
        service="fsx",
        inputs={**_LINK, "deleteDataInFilesystem": Input(api=LOCAL, default=False)},
        outputs={"arn": "ResourceARN", "associationId": None},
        identity=("fileSystemId", "fileSystemPath", "dataRepositoryPath"),
        create=create_link,
        read=read_link,
        update=update_link,
        delete=delete_link,
        tagger=retag,
    ),
)
