"""Creations whose end nobody saw: an engine was killed between AWS's answer and its state.

The state then holds a pending creation without an id. Dropping it would leave a second VPC, or a name that is taken; so
what AWS made is looked for, by its name or by its tags, and adopted into the state under its id. What can be made
again over itself needs no adoption, and small rules that lie inside an adopted resource are removed and made anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx2
from botocore.exceptions import ClientError
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Secret

from infra.aws.account import Account, every, says_missing
from infra.cluster.kubernetes import OF_WORLD, from_outside
from infra.engine import finders
from infra.engine.failures import RETRIED, Cause, cause_of
from infra.engine.finders import Find, Inputs, tagged_as, tags_of_its_own
from infra.engine.liveness import Life, life
from infra.engine.rule_removal import RULE_REMOVERS
from infra.engine.state_copy import bare
from infra.errors import BivouacError, PermanentError

RELEASE = "kubernetes:helm.sh/v3:Release"
KUBERNETES = "kubernetes:"


@dataclass(frozen=True)
class Pending:
    """A creation that was under way when its engine ended."""

    urn: str
    type: str
    inputs: Inputs

    @property
    def title(self) -> str:
        """`Vpc network`."""
        return f"{self.type.rpartition(':')[2]} {self.urn.rpartition('::')[2]}"


Failed = Callable[[Pending, Exception], None]
"""What becomes of a creation of which nobody can say whether it was carried out: told, or raised."""


def refuse(pending: Pending, error: Exception) -> None:
    """Raises: making a second one is worse than stopping here."""
    if passes(error):
        raise error
    raise PermanentError(
        f"nobody can say whether AWS made {pending.title} before its engine was ended",
        seen=f"{type(error).__name__}: {error}"[:400],
        cure="allow what is denied; else `bivouac down` tears down without it, and then removes what carries the "
        "campaign's tag",
    ) from error


def passes(error: Exception) -> bool:
    """Whether the same question may be answered another time, or with other credentials; or is not ours to judge."""
    if isinstance(error, BivouacError):
        return True
    if not isinstance(error, OF_WORLD):
        return False
    if isinstance(error, httpx2.HTTPError):
        return not isinstance(error, ApiError)
    return cause_of(str(error)) in RETRIED | {Cause.CREDENTIALS}


def pending_creates(deployment: Mapping[str, Any]) -> list[Pending]:
    found = []
    for operation in deployment.get("pending_operations") or ():
        resource = operation["resource"]
        if operation["type"] == "creating":
            found.append(Pending(resource["urn"], resource["type"], bare(resource.get("inputs") or {})))
    return found


def adoptable(account: Account, cluster: str, deployment: Mapping[str, Any], failed: Failed = refuse) -> dict[str, str]:
    """Urn -> id for every pending creation that AWS did carry out; ids that the state knows already are not ours."""
    known = {(one["type"], one.get("id")) for one in deployment.get("resources", ())}
    found: dict[str, str] = {}
    for pending in pending_creates(deployment):
        try:
            ids = _ids(account, cluster, pending)
        except Exception as error:  # whatever a finder stumbles over, a teardown goes on
            failed(pending, error)
            continue
        fresh = [one for one in ids if (pending.type, one) not in known and one not in found.values()]
        if fresh:
            found[pending.urn] = fresh[0]
    return found


def _ids(account: Account, cluster: str, pending: Pending) -> list[str]:
    if pending.type == RELEASE:
        return _releases(account, cluster, pending.inputs)
    find = FINDERS.get(pending.type)
    return [] if find is None else find(account, pending.inputs)


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
        {**one["resource"], "id": (id := adopted[one["resource"]["urn"]]), "outputs": _known(one["resource"], id)}
        for one in operations
        if one["type"] == "creating" and one["resource"]["urn"] in adopted
    ]
    touched = [one["resource"]["urn"] for one in operations if one["type"] not in ("creating", "importing")]
    resources = [*deployment.get("resources", ()), *made]
    there = {one["urn"] for one in resources}
    look = [urn for urn in dict.fromkeys([*adopted, *touched]) if urn in there]
    return {**deployment, "resources": resources, "pending_operations": []}, look


def _known(resource: Mapping[str, Any], id: str) -> dict[str, Any]:
    """Outputs to begin with; the refresh fills in the rest.

    Without any, pulumi-aws takes a refresh for an import (bridge, `Provider.Read`): it would forget what AWS does not
    keep (whether to empty a bucket, to make a last backup), and ask a pod identity for another id than its own.
    """
    if str(resource["type"]).startswith(KUBERNETES):
        return {}
    own = _ID_OUTPUTS.get(str(resource["type"]))
    return {**bare(resource.get("inputs") or {}), "id": id, **({own: id} if own else {})}


_ID_OUTPUTS = {"aws:eks/podIdentityAssociation:PodIdentityAssociation": "associationId"}
"""Type -> the output that its plugin reads by, beside the id."""


def remove_rules(
    account: Account, deployment: Mapping[str, Any], guard: Callable[[], None], failed: Failed = refuse
) -> list[str]:
    """Remove what pending creations of rules left inside their route table or group: they are made anew."""
    removed = []
    for pending in pending_creates(deployment):
        remove = RULE_REMOVERS.get(pending.type)
        if remove is None:
            continue
        guard()
        try:
            if remove(account, pending.inputs):
                removed.append(pending.type.rpartition(":")[2])
        except Exception as error:
            failed(pending, error)
    return removed


def _tagged(operation: str, result: str, id_key: str, alive: Mapping[str, str] | None = None, **inputs: str) -> Find:
    """EC2's things by their tags; `inputs` are filters taken from inputs, `alive` is a filter of states."""

    def find(account: Account, given: Inputs) -> list[str]:
        filters = tagged_as(given)
        filters += [{"Name": name.replace("_", "-"), "Values": [str(given[key])]} for name, key in inputs.items()]
        filters += [{"Name": name, "Values": values.split(",")} for name, values in (alive or {}).items()]
        pages = account.client("ec2").get_paginator(operation).paginate(Filters=filters)
        return [item[id_key] for page in pages for item in page[result]]

    return find


def _addresses(account: Account, given: Inputs) -> list[str]:
    seen = account.client("ec2").describe_addresses(Filters=tagged_as(given))["Addresses"]
    return [item["AllocationId"] for item in seen]


def _there(service: str, operation: str, made: Callable[[Inputs], str], **arguments: str) -> Find:
    """What has a name: there when asking for it by name is answered. `arguments`: parameter -> input."""

    def find(account: Account, given: Inputs) -> list[str]:
        asked = {name: given[key] for name, key in arguments.items()}
        try:
            getattr(account.client(service), operation)(**asked)
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] == 404 or says_missing(error):
                return []
            raise
        return [made(given)]

    return find


def _log_groups(account: Account, given: Inputs) -> list[str]:
    name = given["name"]
    seen = every(account.client("logs"), "describe_log_groups", "logGroups", logGroupNamePrefix=name)
    return [name for group in seen if group["logGroupName"] == name]


def _repositories(account: Account, given: Inputs) -> list[str]:
    pages = account.client("ecr").get_paginator("describe_repositories").paginate()
    return [r["repositoryName"] for page in pages for r in page["repositories"] if r["repositoryName"] == given["name"]]


def _file_systems(account: Account, given: Inputs) -> list[str]:
    wanted = set(tags_of_its_own(given).items())
    pages = account.client("fsx").get_paginator("describe_file_systems").paginate()
    seen = [one for page in pages for one in page["FileSystems"] if one["Lifecycle"] not in ("DELETING", "FAILED")]
    return [one["FileSystemId"] for one in seen if wanted <= {(t["Key"], t["Value"]) for t in one.get("Tags", ())}]


def _repository_links(account: Account, given: Inputs) -> list[str]:
    by_system = [{"Name": "file-system-id", "Values": [given["fileSystemId"]]}]
    seen = every(account.client("fsx"), "describe_data_repository_associations", "Associations", Filters=by_system)
    return [one["AssociationId"] for one in seen if one["Lifecycle"] not in ("DELETING", "FAILED")]


def _budgets(account: Account, given: Inputs) -> list[str]:
    """Of the caller's own account, unless the program names another."""
    named = {"accountId": account.identity()["Account"], **given}
    find = _there(
        "budgets", "describe_budget", lambda made: f"{made['accountId']}:{made['name']}",
        AccountId="accountId", BudgetName="name",
    )  # fmt: skip
    return find(account, named)


def _schedules(account: Account, given: Inputs) -> list[str]:
    """In AWS's own group, unless the program names another."""
    find = _there(
        "scheduler", "get_schedule", lambda made: f"{made['groupName']}/{made['name']}",
        GroupName="groupName", Name="name",
    )  # fmt: skip
    return find(account, {"groupName": "default", **given})


def _pod_identities(account: Account, given: Inputs) -> list[str]:
    subject = {key: given[key] for key in ("clusterName", "namespace", "serviceAccount")}
    seen = every(account.client("eks"), "list_pod_identity_associations", "associations", **subject)
    return [one["associationId"] for one in seen]


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
    "aws:s3/bucket:Bucket": _there("s3", "head_bucket", _named("bucket"), Bucket="bucket"),
    "aws:ecr/repository:Repository": _repositories,
    "aws:budgets/budget:Budget": _budgets,
    "aws:scheduler/schedule:Schedule": _schedules,
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


def still_creating(account: Account, deployment: Mapping[str, Any], adopted: Mapping[str, str]) -> list[str]:
    """Ids of what was adopted and is not ready yet: what comes after would be refused."""
    types = {pending.urn: pending.type for pending in pending_creates(deployment)}
    return [id for urn, id in adopted.items() if _coming(account, types[urn], id)]


def _coming(account: Account, kind: str, id: str) -> bool:
    """What may not be asked is not waited for."""
    try:
        return life(account, {"type": kind, "id": id}) is Life.COMING
    except OF_WORLD as error:
        if passes(error):
            raise
        return False
