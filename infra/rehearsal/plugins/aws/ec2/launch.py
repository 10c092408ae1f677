"""Launch templates and placement groups."""

from __future__ import annotations

from typing import Any

from infra.rehearsal.plugins.aws.call import Call, NotReady, Resource
from infra.rehearsal.plugins.aws.ec2.kind import Ec2Kind, retag
from infra.rehearsal.plugins.aws.table import LOCAL, Conversion, Input, Naming
from infra.rehearsal.plugins.wire import Props

TEMPLATE = Ec2Kind("launch_template")
GROUP = Ec2Kind("placement_group", id_field="GroupId", ids_field="GroupIds")

_DATA = {
    "imageId": Input(),
    "instanceType": Input(),
    "keyName": Input(),
    "userData": Input(),
    "ebsOptimized": Input(kind=Conversion.FLAG),
    "instanceInitiatedShutdownBehavior": Input(),
    "disableApiTermination": Input(),
    "vpcSecurityGroupIds": Input(api="SecurityGroupIds", kind=Conversion.SET),
    "iamInstanceProfile": Input(fields={"arn": Input(), "name": Input()}),
    "monitoring": Input(fields={"enabled": Input()}),
    "blockDeviceMappings": Input(
        fields={
            "deviceName": Input(),
            "noDevice": Input(),
            "virtualName": Input(),
            "ebs": Input(
                fields={
                    "deleteOnTermination": Input(kind=Conversion.FLAG),
                    "encrypted": Input(kind=Conversion.FLAG),
                    "iops": Input(),
                    "kmsKeyId": Input(),
                    "snapshotId": Input(),
                    "throughput": Input(),
                    "volumeSize": Input(),
                    "volumeType": Input(),
                }
            ),
        }
    ),
    "capacityReservationSpecification": Input(
        fields={
            "capacityReservationPreference": Input(),
            "capacityReservationTarget": Input(
                fields={"capacityReservationId": Input(), "capacityReservationResourceGroupArn": Input()}
            ),
        }
    ),
    "instanceMarketOptions": Input(
        fields={
            "marketType": Input(),
            "spotOptions": Input(
                fields={"maxPrice": Input(), "spotInstanceType": Input(), "instanceInterruptionBehavior": Input()}
            ),
        }
    ),
    "metadataOptions": Input(
        computed=True,
        fields={
            "httpEndpoint": Input(),
            "httpTokens": Input(),
            "httpPutResponseHopLimit": Input(),
            "httpProtocolIpv6": Input(),
            "instanceMetadataTags": Input(),
        },
    ),
    "networkInterfaces": Input(
        fields={
            "deviceIndex": Input(),
            "networkCardIndex": Input(),
            "interfaceType": Input(),
            "subnetId": Input(),
            "description": Input(),
            "securityGroups": Input(api="Groups", kind=Conversion.SET),
            "associatePublicIpAddress": Input(kind=Conversion.FLAG),
            "deleteOnTermination": Input(kind=Conversion.FLAG),
            "ipv4PrefixCount": Input(),
        }
    ),
    "placement": Input(
        fields={
            "groupName": Input(),
            "groupId": Input(),
            "availabilityZone": Input(),
            "tenancy": Input(),
            "partitionNumber": Input(),
        }
    ),
    "tagSpecifications": Input(fields={"resourceType": Input(), "tags": Input(kind=Conversion.TAGS)}),
}


def create_template(call: Call) -> str:
    note = {"VersionDescription": call.new["description"]} if call.new.get("description") else {}
    data = call.request(*_DATA)
    TEMPLATE.create(call, LaunchTemplateName=call.new["name"], LaunchTemplateData=data, **note)
    return call.id


def update_template(call: Call) -> None:
    client, version = call.client(), call.new.get("defaultVersion")
    if call.changed("description", *_DATA):
        note = {"VersionDescription": call.new["description"]} if call.new.get("description") else {}
        answer = client.create_launch_template_version(
            LaunchTemplateId=call.id, LaunchTemplateData=call.request(*_DATA), **note
        )
        if call.new.get("updateDefaultVersion"):
            version = answer["LaunchTemplateVersion"]["VersionNumber"]
    if version:
        client.modify_launch_template(LaunchTemplateId=call.id, DefaultVersion=str(version))


def read_template(call: Call) -> Props | None:
    found = TEMPLATE.describe(call)
    if not found:
        return None
    latest = str(found["LatestVersionNumber"])
    versions = call.client().describe_launch_template_versions(LaunchTemplateId=call.id, Versions=[latest])
    data: dict[str, Any] = versions["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    return {
        **call.observed(data),
        "name": found["LaunchTemplateName"],
        "arn": call.arn("ec2", f"launch-template/{call.id}"),
        "latestVersion": found["LatestVersionNumber"],
        "defaultVersion": found["DefaultVersionNumber"],
        "tags": found["Tags"],
    }


def delete_template(call: Call) -> None:
    call.destroy(lambda: call.client().delete_launch_template(LaunchTemplateId=call.id))


def create_group(call: Call) -> str:
    client = call.client()
    client.create_placement_group(
        GroupName=call.new["name"], **call.request("strategy", "partitionCount", "spreadLevel"), **GROUP.tagged(call)
    )
    call.id = call.new["name"]
    call.wait(lambda: (_group(call) or {}).get("State") == "available", f"placement group {call.id} to exist")
    return call.id


def _group(call: Call) -> dict[str, Any] | None:
    answer = call.or_none(lambda: call.client().describe_placement_groups(GroupNames=[call.id]))
    found = [item for item in (answer or {}).get("PlacementGroups", []) if item.get("State") != "deleted"]
    return found[0] if found else None


def read_group(call: Call) -> Props | None:
    found = _group(call)
    if not found:
        return None
    return {
        **call.observed(found),
        "name": found["GroupName"],
        "placementGroupId": found.get("GroupId"),
        "arn": found.get("GroupArn") or call.arn("ec2", f"placement-group/{call.id}"),
        "tags": {tag["Key"]: tag["Value"] for tag in found.get("Tags") or []},
    }


def delete_group(call: Call) -> None:
    client = call.client()
    call.destroy(lambda: client.delete_placement_group(GroupName=call.id), "InvalidPlacementGroup.InUse")
    try:
        call.wait(lambda: not _group(call), f"placement group {call.id} to go")
    except NotReady as error:
        raise NotReady(f"{error}: instances in it may still be shutting down") from error


def retag_group(call: Call, fresh: dict[str, str], stale: list[str]) -> None:
    call_id, call.id = call.id, str(call.state.get("placementGroupId"))
    retag(call, fresh, stale)
    call.id = call_id


RESOURCES = (
    Resource(
        token="aws:ec2/launchTemplate:LaunchTemplate",
        service="ec2",
        inputs={
            **_DATA,
            "description": Input(api=LOCAL),
            "defaultVersion": Input(api=LOCAL, computed=True),
            "updateDefaultVersion": Input(api=LOCAL),
        },
        outputs={"arn": LOCAL, "latestVersion": LOCAL},
        naming=Naming(longest=125),
        identity=("name",),
        volatile=("latestVersion", "defaultVersion"),
        create=create_template,
        read=read_template,
        update=update_template,
        delete=delete_template,
        tagger=retag,
    ),
    Resource(
        token="aws:ec2/placementGroup:PlacementGroup",
        service="ec2",
        inputs={
            "strategy": Input(required=True, replaces=True),
            "partitionCount": Input(replaces=True, computed=True),
            "spreadLevel": Input(replaces=True, computed=True),
        },
        outputs={"arn": LOCAL, "placementGroupId": LOCAL},
        naming=Naming(prefix_property=None),
        identity=("name",),
        create=create_group,
        read=read_group,
        delete=delete_group,
        tagger=retag_group,
    ),
)
