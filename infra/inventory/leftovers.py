"""What keeps a teardown from its end: who holds the VPC, which node group hangs, which file system stays.

Looked up by the plain AWS client only when something is stuck. A look that is denied says so instead of nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from infra.aws.account import Account, every
from infra.inventory import tags_of
from infra.inventory.evidence import CLUSTER_TAG, OWNED
from infra.spec.names import CAMPAIGN_TAG, Names

_CNI = ("aws-K8S-", "aws-k8s-trunk-eni", "aws-k8s-branch-eni")
_SERVICES = {
    "ELB ": "load balancer",
    "Interface for NAT Gateway": "NAT gateway",
    "VPC Endpoint Interface": "VPC endpoint",
    "ENI for FSx": "FSx file system",
    "Amazon EKS": "EKS control plane",
    "AWS Lambda VPC ENI": "Lambda function",
    "EFS mount target": "EFS mount target",
    "RDSNetworkInterface": "RDS database",
}
"""How a service describes the interfaces that it makes -> what it is."""
_OWN = ("NAT gateway", "VPC endpoint", "FSx file system", "EKS control plane")


@dataclass(frozen=True)
class Remain:
    """One thing that is left, why, and what to do about it."""

    what: str
    why: str
    do: str
    ours: bool = False
    """Provably the campaign's."""
    waits: bool = False
    """It only waits for something else to go."""

    def __str__(self) -> str:
        return f"{self.what} is left: {self.why}; {self.do}"


def remains(account: Account, names: Names) -> tuple[Remain, ...]:
    """All that is known to hold up a teardown, in the order in which it would have to go."""
    looks = (_node_groups, _instances, _file_systems, _interfaces, _references, _foreign_groups, _foreign_endpoints)
    found: list[Remain] = []
    for look in looks:
        found += _bounded(account, names, look)
    return tuple(found)


_NETWORK = ("Subnet", "SecurityGroup", "Vpc", "InternetGateway", "InternetGatewayAttachment")
_TELLING = {"NodeGroup": ("node group", "instance"), "LustreFileSystem": ("file system",), "Cluster": ("node group",)}


def holding(kind: str, rows: tuple[Remain, ...]) -> Remain | None:
    """What most likely keeps a resource of this type (`NodeGroup`, `Subnet`) from going."""
    if kind in _NETWORK:
        held = [row for row in rows if row.what.startswith(("network interface", "security group", "VPC endpoint"))]
        return next((row for row in held if not row.waits), next(iter(held), None))
    return next((row for row in rows if row.what.startswith(_TELLING.get(kind, ("?",)))), None)


def _bounded(account: Account, names: Names, look: Callable[[Account, Names], Iterator[Remain]]) -> list[Remain]:
    try:
        return list(look(account, names))
    except (ClientError, BotoCoreError) as error:
        code = error.response["Error"]["Code"] if isinstance(error, ClientError) else type(error).__name__
        what = look.__name__.strip("_").replace("_", " ")
        return [Remain(f"perhaps more of: {what}", f"could not look: {code}", "allow the listing")]


def _vpcs(account: Account, names: Names) -> list[str]:
    """VPCs of the campaign; found by tag, since the state may be gone."""
    by_tag = [{"Name": f"tag:{CAMPAIGN_TAG}", "Values": [names.campaign]}]
    return [vpc["VpcId"] for vpc in every(account.client("ec2"), "describe_vpcs", "Vpcs", Filters=by_tag)]


def _pages(account: Account, names: Names, operation: str, result: str) -> Iterator[dict[str, Any]]:
    """Everything of a kind that lies in the campaign's VPC."""
    vpcs = _vpcs(account, names)
    if vpcs:
        client = account.client("ec2")
        for page in client.get_paginator(operation).paginate(Filters=[{"Name": "vpc-id", "Values": vpcs}]):
            yield from page[result]


def _node_groups(account: Account, names: Names) -> Iterator[Remain]:
    eks = account.client("eks")
    if names.cluster not in [
        name for page in eks.get_paginator("list_clusters").paginate() for name in page["clusters"]
    ]:
        return
    for name in list(every(eks, "list_nodegroups", "nodegroups", clusterName=names.cluster)):
        group = eks.describe_nodegroup(clusterName=names.cluster, nodegroupName=name)["nodegroup"]
        issues = "; ".join(f"{i['code']}: {i['message']}" for i in group.get("health", {}).get("issues", ()))
        yield Remain(
            f"node group {name}",
            f"{group['status']}{', ' + issues if issues else ', AWS gives no issue'}",
            f"{'mend the issue; ' if issues else ''}the same command deletes it again",
            ours=True,
        )


def _instances(account: Account, names: Names) -> Iterator[Remain]:
    pages = account.client("ec2").get_paginator("describe_instances")
    by_tag = pages.paginate(Filters=[{"Name": f"tag:{CAMPAIGN_TAG}", "Values": [names.campaign]}])
    in_ours = [i for page in by_tag for r in page["Reservations"] for i in r["Instances"]]
    vpcs = _vpcs(account, names)
    if vpcs:
        in_vpc = pages.paginate(Filters=[{"Name": "vpc-id", "Values": vpcs}])
        in_ours += [i for page in in_vpc for r in page["Reservations"] for i in r["Instances"]]
    for item in {item["InstanceId"]: item for item in in_ours}.values():
        state, ours = item["State"]["Name"], tags_of(item.get("Tags")).get(CAMPAIGN_TAG) == names.campaign
        if state != "terminated":
            why = f"{item['InstanceType']}, {state}" + ("" if ours else ", not the campaign's but in its VPC")
            do = f"`aws ec2 terminate-instances --instance-ids {item['InstanceId']}`" if ours else "its owner ends it"
            yield Remain(f"instance {item['InstanceId']}", why, do, ours)


def _file_systems(account: Account, names: Names) -> Iterator[Remain]:
    for page in account.client("fsx").get_paginator("describe_file_systems").paginate():
        for item in page["FileSystems"]:
            if tags_of(item.get("Tags")).get(CAMPAIGN_TAG) != names.campaign:
                continue
            said = (item.get("FailureDetails") or {}).get("Message")
            yield Remain(
                f"file system {item['FileSystemId']}",
                f"{item['Lifecycle']}{', ' + said if said else ''}",
                "wait while it is DELETING, and run the same command again; FAILED is for AWS Support",
                ours=True,
            )


def _interfaces(account: Account, names: Names) -> Iterator[Remain]:
    for item in _pages(account, names, "describe_network_interfaces", "NetworkInterfaces"):
        text, tags = str(item.get("Description") or ""), tags_of(item.get("TagSet"))
        what = f"network interface {item['NetworkInterfaceId']} in {item['SubnetId']}"
        service = next((name for start, name in _SERVICES.items() if text.startswith(start)), None)
        holder = (item.get("Attachment") or {}).get("InstanceId")
        if text.startswith(_CNI) or "node.k8s.amazonaws.com/instance_id" in tags:
            why = f"left by the cluster's network plugin ({text}), {item['Status']}"
            yield Remain(what, why, f"`bivouac sweep {names.campaign}` removes it", ours=True)
        elif service in _OWN:
            yield Remain(what, f"of the {service} ({text})", "it goes with that", ours=True, waits=True)
        elif service is not None:
            named = text.removeprefix("ELB ")
            yield Remain(what, f"of the {service} {named}", f"the owner of that {service} removes it, then it goes")
        elif holder:
            yield Remain(what, f"of instance {holder}", "it goes with the instance", ours=True, waits=True)
        else:
            made = f"made by {item.get('RequesterId') or item.get('OwnerId')}: {text or 'no description'}"
            yield Remain(what, f"{made}, {item['Status']}", f"`aws ec2 delete-network-interface --network-interface-id "
                         f"{item['NetworkInterfaceId']}`, if nobody needs it")  # fmt: skip


def _groups(account: Account, names: Names) -> list[dict[str, Any]]:
    return [
        g for g in _pages(account, names, "describe_security_groups", "SecurityGroups") if g["GroupName"] != "default"
    ]


def _is_ours(group: dict[str, Any], names: Names) -> bool:
    tags = tags_of(group.get("Tags"))
    return tags.get(CAMPAIGN_TAG) == names.campaign or tags.get(f"{CLUSTER_TAG}{names.cluster}") == OWNED


def _references(account: Account, names: Names) -> Iterator[Remain]:
    """Rules of other groups that name one of ours: they keep ours from being deleted."""
    ours = {group["GroupId"]: group for group in _groups(account, names) if _is_ours(group, names)}
    if not ours:
        return
    seen = account.client("ec2").get_paginator("describe_security_groups").paginate()
    for other in (group for page in seen for group in page["SecurityGroups"] if group["GroupId"] not in ours):
        rules = [*other.get("IpPermissions", ()), *other.get("IpPermissionsEgress", ())]
        named = {pair.get("GroupId") for rule in rules for pair in rule.get("UserIdGroupPairs", ())}
        for group_id in sorted(named & set(ours)):
            yield Remain(
                f"security group {group_id} ({ours[group_id]['GroupName']})",
                f"a rule of {other['GroupId']} ({other['GroupName']}) names it",
                f"the owner of {other['GroupId']} revokes that rule",
            )


def _foreign_groups(account: Account, names: Names) -> Iterator[Remain]:
    for group in _groups(account, names):
        if not _is_ours(group, names):
            what = f"security group {group['GroupId']} ({group['GroupName']})"
            yield Remain(what, "someone else made it in the campaign's VPC", "its owner deletes it")


def _foreign_endpoints(account: Account, names: Names) -> Iterator[Remain]:
    for item in _pages(account, names, "describe_vpc_endpoints", "VpcEndpoints"):
        if tags_of(item.get("Tags")).get(CAMPAIGN_TAG) != names.campaign:
            what = f"VPC endpoint {item['VpcEndpointId']} ({item['ServiceName']})"
            yield Remain(what, "someone else made it in the campaign's VPC", "its owner deletes it")
