"""Look-ups by a running program (pulumi invokes)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from infra.rehearsal.plugins.aws.client import Clients
from infra.rehearsal.plugins.package import OperationFailed
from infra.rehearsal.plugins.wire import Props


def invoke(clients: Clients, token: str, arguments: Props) -> Props:
    if token not in FUNCTIONS:
        raise OperationFailed(f"unknown function {token}; the rehearsal knows: {', '.join(sorted(FUNCTIONS))}")
    return FUNCTIONS[token](clients, arguments)


def _caller_identity(clients: Clients, arguments: Props) -> Props:
    answer = clients.get("sts").get_caller_identity()
    account = answer["Account"]
    return {"accountId": account, "arn": answer["Arn"], "userId": answer["UserId"], "id": account}


def _region(clients: Clients, arguments: Props) -> Props:
    region = arguments.get("region") or arguments.get("name") or clients.region
    endpoint = f"ec2.{region}.amazonaws.com"
    return {"region": region, "name": region, "id": region, "endpoint": endpoint, "description": region}


def _partition(clients: Clients, arguments: Props) -> Props:
    return {"partition": "aws", "id": "aws", "dnsSuffix": "amazonaws.com", "reverseDnsPrefix": "com.amazonaws"}


def _parameter(clients: Clients, arguments: Props) -> Props:
    decrypt = arguments.get("withDecryption", True)
    ssm = clients.get("ssm", arguments.get("region"))
    parameter = ssm.get_parameter(Name=arguments["name"], WithDecryption=decrypt)["Parameter"]
    return {
        "arn": parameter["ARN"],
        "id": parameter["Name"],
        "name": parameter["Name"],
        "type": parameter["Type"],
        "value": parameter["Value"],
        "insecureValue": None if parameter["Type"] == "SecureString" else parameter["Value"],
        "version": parameter["Version"],
        "withDecryption": decrypt,
        "region": arguments.get("region") or clients.region,
    }


def _image(clients: Clients, arguments: Props) -> Props:
    filters = [{"Name": item["name"], "Values": item["values"]} for item in arguments.get("filters") or []]
    ec2 = clients.get("ec2", arguments.get("region"))
    pages = ec2.get_paginator("describe_images").paginate(Owners=arguments.get("owners") or [], Filters=filters)
    images = [image for page in pages for image in page["Images"]]
    if not images:
        raise OperationFailed(f"aws:ec2/getAmi: no image matches; seen: {arguments}; cure: change filters or owners")
    if len(images) > 1 and not arguments.get("mostRecent"):
        raise OperationFailed(f"aws:ec2/getAmi: {len(images)} images match; cure: narrow the filters or set mostRecent")
    image = max(images, key=lambda candidate: candidate.get("CreationDate", ""))
    return {
        "id": image["ImageId"],
        "imageId": image["ImageId"],
        "name": image.get("Name"),
        "architecture": image.get("Architecture"),
        "creationDate": image.get("CreationDate"),
        "ownerId": image.get("OwnerId"),
        "rootDeviceName": image.get("RootDeviceName"),
        "state": image.get("State"),
        "region": arguments.get("region") or clients.region,
    }


def _zones(clients: Clients, arguments: Props) -> Props:
    ec2 = clients.get("ec2", arguments.get("region"))
    zones = ec2.describe_availability_zones()["AvailabilityZones"]
    state = arguments.get("state")
    matching = [zone for zone in zones if not state or zone["State"] == state]
    region = arguments.get("region") or clients.region
    return {
        "id": region,
        "region": region,
        "names": [zone["ZoneName"] for zone in matching],
        "zoneIds": [zone["ZoneId"] for zone in matching],
        "groupNames": sorted({zone.get("GroupName", region) for zone in matching}),
    }


FUNCTIONS: dict[str, Callable[[Clients, dict[str, Any]], Props]] = {
    "aws:index/getCallerIdentity:getCallerIdentity": _caller_identity,
    "aws:index/getRegion:getRegion": _region,
    "aws:index/getPartition:getPartition": _partition,
    "aws:index/getAvailabilityZones:getAvailabilityZones": _zones,
    "aws:ssm/getParameter:getParameter": _parameter,
    "aws:ec2/getAmi:getAmi": _image,
}
