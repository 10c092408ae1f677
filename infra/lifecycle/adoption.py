"""Creations whose end nobody saw: an engine was killed between AWS's answer and its state.

The state then holds a pending creation without an id. Dropping it would leave a second VPC, or a name that is taken; so
what AWS made is looked for, by its name or by its tags, and adopted into the state under its id. What can be made
again over itself needs no adoption, and small rules that lie inside an adopted resource are removed and made anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError
from lightkube.resources.core_v1 import Secret

from infra.account import Account
from infra.actions.cluster import from_outside
from infra.lifecycle import finders

RELEASE = "kubernetes:helm.sh/v3:Release"
Inputs = Mapping[str, Any]
Find = Callable[[Account, Inputs], list[str]]
"""Ids, as the provider writes them, of what has these inputs; the newest attempt's is not told from older ones."""


@dataclass(frozen=True)
class Pending:
    """A creation that was under way when its engine ended."""

    urn: str
    type: str
    inputs: Inputs


def pending_creates(deployment: Mapping[str, Any]) -> list[Pending]:
    found = []
    for operation in deployment.get("pending_operations") or ():
        resource = operation["resource"]
        if operation["type"] == "creating":
            found.append(Pending(resource["urn"], resource["type"], resource.get("inputs") or {}))
    return found


def adoptable(account: Account, cluster: str, deployment: Mapping[str, Any]) -> dict[str, str]:
    """Urn -> id for every pending creation that AWS did carry out; ids that the state knows already are not ours."""
    known = {(one["type"], one.get("id")) for one in deployment.get("resources", ())}
    found: dict[str, str] = {}
    for pending in pending_creates(deployment):
        find = FINDERS.get(pending.type)
        if pending.type == RELEASE:
            ids = _releases(account, cluster, pending.inputs)
        else:
            ids = [] if find is None else find(account, pending.inputs)
        fresh = [one for one in ids if (pending.type, one) not in known and one not in found.values()]
        if fresh:
            found[pending.urn] = fresh[0]
    return found


def _releases(account: Account, cluster: str, given: Inputs) -> list[str]:
    """Helm keeps each release's revisions in secrets of its namespace."""
    labels: dict[str, Any] = {"owner": "helm", "name": given["name"]}
    client = from_outside(account, cluster)
    found = any(True for _ in client.list(Secret, namespace=given["namespace"], labels=labels))
    return [f"{given['namespace']}/{given['name']}"] if found else []


def resolved(deployment: Mapping[str, Any], adopted: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """The deployment without pending operations, adopted creations as resources; and the urns to be looked at anew.

    What depends on a creation comes after it, so a resource that was never finished has nothing behind it: its place
    is at the end.
    """
    operations = deployment.get("pending_operations") or ()
    made = [
        {**one["resource"], "id": adopted[one["resource"]["urn"]], "outputs": {}}
        for one in operations
        if one["type"] == "creating" and one["resource"]["urn"] in adopted
    ]
    touched = [one["resource"]["urn"] for one in operations if one["type"] not in ("creating", "importing")]
    resources = [*deployment.get("resources", ()), *made]
    there = {one["urn"] for one in resources}
    look = [urn for urn in dict.fromkeys([*adopted, *touched]) if urn in there]
    return {**deployment, "resources": resources, "pending_operations": []}, look


def remove_rules(account: Account, deployment: Mapping[str, Any], guard: Callable[[], None]) -> list[str]:
    """Remove what pending creations of rules left inside their route table or group: they are made anew."""
    removed = []
    for pending in pending_creates(deployment):
        remove = RULE_REMOVERS.get(pending.type)
        if remove is not None:
            guard()
            if remove(account, pending.inputs):
                removed.append(pending.type.rpartition(":")[2])
    return removed


def _tagged(operation: str, result: str, id_key: str, alive: Mapping[str, str] | None = None, **inputs: str) -> Find:
    """EC2's things by their tags; `inputs` are filters taken from inputs, `alive` is a filter of states."""

    def find(account: Account, given: Inputs) -> list[str]:
        filters = [{"Name": f"tag:{key}", "Values": [value]} for key, value in (given.get("tags") or {}).items()]
        filters += [{"Name": name.replace("_", "-"), "Values": [str(given[key])]} for name, key in inputs.items()]
        filters += [{"Name": name, "Values": values.split(",")} for name, values in (alive or {}).items()]
        pages = account.client("ec2").get_paginator(operation).paginate(Filters=filters)
        return [item[id_key] for page in pages for item in page[result]]

    return find


def _addresses(account: Account, given: Inputs) -> list[str]:
    filters = [{"Name": f"tag:{key}", "Values": [value]} for key, value in (given.get("tags") or {}).items()]
    return [item["AllocationId"] for item in account.client("ec2").describe_addresses(Filters=filters)["Addresses"]]


def _there(service: str, operation: str, made: Callable[[Inputs], str], **arguments: str) -> Find:
    """What has a name: there when asking for it by name is answered. `arguments`: parameter -> input."""

    def find(account: Account, given: Inputs) -> list[str]:
        asked = {name: given[key] for name, key in arguments.items()}
        try:
            getattr(account.client(service), operation)(**asked)
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] == 404 or _says_missing(error):
                return []
            raise
        return [made(given)]

    return find


def _says_missing(error: ClientError) -> bool:
    return any(word in error.response["Error"]["Code"] for word in ("NotFound", "NoSuch", "404"))


def _log_groups(account: Account, given: Inputs) -> list[str]:
    name = given["name"]
    seen = account.client("logs").describe_log_groups(logGroupNamePrefix=name)["logGroups"]
    return [name for group in seen if group["logGroupName"] == name]


def _repositories(account: Account, given: Inputs) -> list[str]:
    pages = account.client("ecr").get_paginator("describe_repositories").paginate()
    return [r["repositoryName"] for page in pages for r in page["repositories"] if r["repositoryName"] == given["name"]]


def _file_systems(account: Account, given: Inputs) -> list[str]:
    wanted = set((given.get("tags") or {}).items())
    pages = account.client("fsx").get_paginator("describe_file_systems").paginate()
    seen = [one for page in pages for one in page["FileSystems"] if one["Lifecycle"] not in ("DELETING", "FAILED")]
    return [one["FileSystemId"] for one in seen if wanted <= {(t["Key"], t["Value"]) for t in one.get("Tags", ())}]


def _repository_links(account: Account, given: Inputs) -> list[str]:
    by_system = [{"Name": "file-system-id", "Values": [given["fileSystemId"]]}]
    seen = account.client("fsx").describe_data_repository_associations(Filters=by_system)["Associations"]
    return [one["AssociationId"] for one in seen if one["Lifecycle"] not in ("DELETING", "FAILED")]


def _pod_identities(account: Account, given: Inputs) -> list[str]:
    seen = account.client("eks").list_pod_identity_associations(
        clusterName=given["clusterName"], namespace=given["namespace"], serviceAccount=given["serviceAccount"]
    )
    return [one["associationId"] for one in seen["associations"]]


def _named(key: str) -> Callable[[Inputs], str]:
    return lambda given: str(given[key])


def _in_cluster(key: str) -> Callable[[Inputs], str]:
    return lambda given: f"{given['clusterName']}:{given[key]}"


FINDERS: dict[str, Find] = {
    "aws:ec2/vpc:Vpc": _tagged("describe_vpcs", "Vpcs", "VpcId"),
    "aws:ec2/subnet:Subnet": _tagged("describe_subnets", "Subnets", "SubnetId", vpc_id="vpcId"),
    "aws:ec2/routeTable:RouteTable": _tagged("describe_route_tables", "RouteTables", "RouteTableId", vpc_id="vpcId"),
    "aws:ec2/internetGateway:InternetGateway": _tagged(
        "describe_internet_gateways", "InternetGateways", "InternetGatewayId"
    ),
    "aws:ec2/securityGroup:SecurityGroup": _tagged(
        "describe_security_groups", "SecurityGroups", "GroupId", vpc_id="vpcId", group_name="name"
    ),
    "aws:ec2/natGateway:NatGateway": _tagged(
        "describe_nat_gateways", "NatGateways", "NatGatewayId", {"state": "pending,available"}, subnet_id="subnetId"
    ),
    "aws:ec2/vpcEndpoint:VpcEndpoint": _tagged(
        "describe_vpc_endpoints", "VpcEndpoints", "VpcEndpointId", vpc_id="vpcId", service_name="serviceName"
    ),
    "aws:ec2/launchTemplate:LaunchTemplate": _tagged(
        "describe_launch_templates", "LaunchTemplates", "LaunchTemplateId", launch_template_name="name"
    ),
    "aws:ec2/eip:Eip": _addresses,
    "aws:cloudwatch/logGroup:LogGroup": _log_groups,
    "aws:iam/role:Role": _there("iam", "get_role", _named("name"), RoleName="name"),
    "aws:iam/instanceProfile:InstanceProfile": _there(
        "iam", "get_instance_profile", _named("name"), InstanceProfileName="name"
    ),
    "aws:s3/bucket:Bucket": _there("s3", "head_bucket", _named("bucket"), Bucket="bucket"),
    "aws:ecr/repository:Repository": _repositories,
    "aws:budgets/budget:Budget": _there(
        "budgets", "describe_budget", lambda given: f"{given['accountId']}:{given['name']}",
        AccountId="accountId", BudgetName="name",
    ),
    "aws:scheduler/schedule:Schedule": _there(
        "scheduler", "get_schedule", lambda given: f"{given.get('groupName', 'default')}/{given['name']}",
        GroupName="groupName", Name="name",
    ),
    "aws:eks/cluster:Cluster": _there("eks", "describe_cluster", _named("name"), name="name"),
    "aws:eks/nodeGroup:NodeGroup": _there(
        "eks", "describe_nodegroup", _in_cluster("nodeGroupName"),
        clusterName="clusterName", nodegroupName="nodeGroupName",
    ),
    "aws:eks/addon:Addon": _there(
        "eks", "describe_addon", _in_cluster("addonName"), clusterName="clusterName", addonName="addonName"
    ),
    "aws:eks/accessEntry:AccessEntry": _there(
        "eks", "describe_access_entry", _in_cluster("principalArn"),
        clusterName="clusterName", principalArn="principalArn",
    ),
    "aws:eks/podIdentityAssociation:PodIdentityAssociation": _pod_identities,
    "aws:fsx/lustreFileSystem:LustreFileSystem": _file_systems,
    "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation": _repository_links,
    **finders.FURTHER_FINDERS,
}  # fmt: skip
"""Type -> how what AWS made is found again."""


def _remove_route(account: Account, given: Inputs) -> bool:
    return _gone(
        account, "delete_route", RouteTableId=given["routeTableId"], DestinationCidrBlock=given["destinationCidrBlock"]
    )


def _remove_association(account: Account, given: Inputs) -> bool:
    tables = account.client("ec2").describe_route_tables(RouteTableIds=[given["routeTableId"]])["RouteTables"]
    links = [link for table in tables for link in table["Associations"] if link.get("SubnetId") == given["subnetId"]]
    return any(
        [_gone(account, "disassociate_route_table", AssociationId=link["RouteTableAssociationId"]) for link in links]
    )


def _remove_group_rule(egress: bool) -> Callable[[Account, Inputs], bool]:
    def remove(account: Account, given: Inputs) -> bool:
        by_group = [{"Name": "group-id", "Values": [given["securityGroupId"]]}]
        seen = account.client("ec2").describe_security_group_rules(Filters=by_group)["SecurityGroupRules"]
        same = [one["SecurityGroupRuleId"] for one in seen if one["IsEgress"] == egress and _same_rule(one, given)]
        operation = f"revoke_security_group_{'egress' if egress else 'ingress'}"
        return bool(same) and _gone(account, operation, GroupId=given["securityGroupId"], SecurityGroupRuleIds=same)

    return remove


def _same_rule(rule: Mapping[str, Any], given: Inputs) -> bool:
    """A rule without ports is told from one with all of them by -1."""

    def port(value: Any) -> int:
        return -1 if value is None else int(value)

    return (
        str(rule["IpProtocol"]) == str(given["ipProtocol"])
        and port(rule.get("FromPort")) == port(given.get("fromPort"))
        and port(rule.get("ToPort")) == port(given.get("toPort"))
        and rule.get("CidrIpv4") == given.get("cidrIpv4")
        and (rule.get("ReferencedGroupInfo") or {}).get("GroupId") == given.get("referencedSecurityGroupId")
    )


def still_creating(account: Account, deployment: Mapping[str, Any], adopted: Mapping[str, str]) -> list[str]:
    """Ids of what was adopted and is not ready yet: what comes after would be refused."""
    types = {pending.urn: pending.type for pending in pending_creates(deployment)}
    return [id for urn, id in adopted.items() if types[urn] in _CREATING and _CREATING[types[urn]](account, id)]


def _eks_creating(operation: str, *parameters: str) -> Callable[[Account, str], bool]:
    def creating(account: Account, id: str) -> bool:
        answer = getattr(account.client("eks"), operation)(**dict(zip(parameters, id.split(":"), strict=True)))
        return any(one.get("status") == "CREATING" for one in answer.values())

    return creating


def _fsx_creating(operation: str, key: str, result: str) -> Callable[[Account, str], bool]:
    def creating(account: Account, id: str) -> bool:
        answer = getattr(account.client("fsx"), operation)(**{key: [id]})
        return any(one["Lifecycle"] == "CREATING" for one in answer[result])

    return creating


def _gateway_pending(account: Account, id: str) -> bool:
    answer = account.client("ec2").describe_nat_gateways(NatGatewayIds=[id])
    return any(one["State"] == "pending" for one in answer["NatGateways"])


_CREATING: dict[str, Callable[[Account, str], bool]] = {
    "aws:eks/cluster:Cluster": _eks_creating("describe_cluster", "name"),
    "aws:eks/nodeGroup:NodeGroup": _eks_creating("describe_nodegroup", "clusterName", "nodegroupName"),
    "aws:eks/addon:Addon": _eks_creating("describe_addon", "clusterName", "addonName"),
    "aws:fsx/lustreFileSystem:LustreFileSystem": _fsx_creating("describe_file_systems", "FileSystemIds", "FileSystems"),
    "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation": _fsx_creating(
        "describe_data_repository_associations", "AssociationIds", "Associations"
    ),
    "aws:ec2/natGateway:NatGateway": _gateway_pending,
}


def _gone(account: Account, operation: str, **arguments: Any) -> bool:
    """Whether there was something to remove."""
    try:
        getattr(account.client("ec2"), operation)(**arguments)
    except ClientError as error:
        if _says_missing(error):
            return False
        raise
    return True


RULE_REMOVERS: dict[str, Callable[[Account, Inputs], bool]] = {
    "aws:ec2/route:Route": _remove_route,
    "aws:ec2/routeTableAssociation:RouteTableAssociation": _remove_association,
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule": _remove_group_rule(egress=False),
    "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule": _remove_group_rule(egress=True),
}
"""Type -> how it is removed, so that it can be made anew: AWS refuses a second one."""
