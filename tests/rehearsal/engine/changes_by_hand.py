"""What people do by hand behind the engine's back, and what of it must be seen."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from infra.spec.names import buckets
from tests.worlds.account_site import resize
from tests.worlds.campaign_site import CampaignSite

DENY = json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Deny", "Action": "*", "Resource": "*"}]})
READS = ("Describe", "Get", "List", "Head", "BatchGet", "BatchCheck", "AssumeRole")


@dataclass(frozen=True)
class Hand:
    """One change by hand; the row that must tell of it, and a word of its consequence or of the property."""

    name: str
    act: Callable[[CampaignSite], None]
    title: str
    verb: str
    word: str


def _group(camp: CampaignSite, name: str) -> str:
    wanted = [{"Name": "group-name", "Values": [f"{camp.names.prefix}-{name}"]}]
    return str(camp.client("ec2").describe_security_groups(Filters=wanted)["SecurityGroups"][0]["GroupId"])


def _revoke(camp: CampaignSite, group: str, port: int | None, *, egress: bool) -> None:
    ec2, sg = camp.client("ec2"), _group(camp, group)
    rules = ec2.describe_security_group_rules(Filters=[{"Name": "group-id", "Values": [sg]}])["SecurityGroupRules"]
    one = next(r for r in rules if r["IsEgress"] == egress and (port is None or r.get("FromPort") == port))
    revoke = ec2.revoke_security_group_egress if egress else ec2.revoke_security_group_ingress
    revoke(GroupId=sg, SecurityGroupRuleIds=[one["SecurityGroupRuleId"]])


def _remove_object(camp: CampaignSite, plural: str, name: str) -> None:
    objects = camp.plane().api.objects
    objects.pop(next(key for key in objects if key[1] == plural and key[3] == name))


def _schedule_off(camp: CampaignSite) -> None:
    scheduler = camp.client("scheduler")
    kept = ("Name", "GroupName", "ScheduleExpression", "ScheduleExpressionTimezone", "FlexibleTimeWindow", "Target",
            "Description")  # fmt: skip
    is_now = scheduler.get_schedule(Name=camp.names.schedule)
    scheduler.update_schedule(**{key: is_now[key] for key in kept if key in is_now}, State="DISABLED")


def _no_way_out(camp: CampaignSite) -> None:
    ec2 = camp.client("ec2")
    tables = ec2.describe_route_tables(Filters=[{"Name": "tag:bivouac:campaign", "Values": [camp.names.campaign]}])
    for table in tables["RouteTables"]:
        if any(route.get("NatGatewayId") for route in table["Routes"]):
            ec2.delete_route(RouteTableId=table["RouteTableId"], DestinationCidrBlock="0.0.0.0/0")


def _no_credentials(camp: CampaignSite) -> None:
    eks, cluster = camp.client("eks"), camp.names.cluster
    for association in eks.list_pod_identity_associations(clusterName=cluster)["associations"]:
        if association["serviceAccount"] == "trainer":
            eks.delete_pod_identity_association(clusterName=cluster, associationId=association["associationId"])


def _policies_off(camp: CampaignSite, role: str, part: str) -> None:
    iam = camp.client("iam")
    for policy in iam.list_attached_role_policies(RoleName=role)["AttachedPolicies"]:
        if part in policy["PolicyArn"]:
            iam.detach_role_policy(RoleName=role, PolicyArn=policy["PolicyArn"])


def _smaller(camp: CampaignSite) -> None:
    resize(
        camp.client("eks"), clusterName=camp.names.cluster, nodegroupName=camp.names.gpu_group,
        scalingConfig={"minSize": 0, "maxSize": 2, "desiredSize": 1},
    )  # fmt: skip


def _retag(camp: CampaignSite) -> None:
    eks = camp.client("eks")
    arn = eks.describe_cluster(name=camp.names.cluster)["cluster"]["arn"]
    eks.tag_resource(resourceArn=arn, tags={"bivouac:owner": "somebody"})


def _operator(camp: CampaignSite) -> None:
    eks, cluster = camp.client("eks"), camp.names.cluster
    admins = "arn:aws:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy"
    entries = eks.list_access_entries(clusterName=cluster, associatedPolicyArn=admins)["accessEntries"]
    (arn,) = [entry for entry in entries if "bivouac_closer" not in entry]
    for one in eks.list_associated_access_policies(clusterName=cluster, principalArn=arn)["associatedAccessPolicies"]:
        eks.disassociate_access_policy(clusterName=cluster, principalArn=arn, policyArn=one["policyArn"])


def _bucket(camp: CampaignSite, what: str) -> str:
    return str(getattr(buckets(camp.spec.account, camp.spec.region), what))


HANDS: tuple[Hand, ...] = (
    Hand("schedule deleted", lambda c: c.client("scheduler").delete_schedule(Name=c.names.schedule),
         "Schedule deadline", "deleted", "nothing stops the GPU nodes"),
    Hand("schedule disabled", _schedule_off, "Schedule deadline", "changed", "state: ENABLED -> DISABLED"),
    Hand("guard denied", lambda c: c.client("iam").put_role_policy(
        RoleName=c.names.role("guard"), PolicyName="guard", PolicyDocument=DENY),
        "RolePolicy guard", "changed", "Deny"),
    Hand("steward's rights deleted", lambda c: c.client("iam").delete_role_policy(
        RoleName=c.names.role("steward"), PolicyName="steward"), "RolePolicy steward", "deleted", "does not survive"),
    Hand("node policy detached", lambda c: _policies_off(c, c.names.role("node"), "PullOnly"),
         "RolePolicyAttachment node-AmazonEC2ContainerRegistryPullOnly", "deleted", "cannot join"),
    Hand("rule between nodes revoked", lambda c: _revoke(c, "nodes", None, egress=True),
         "SecurityGroupEgressRule nodes-", "deleted", ""),
    Hand("lustre cut off", lambda c: _revoke(c, "lustre", 988, egress=False),
         "SecurityGroupIngressRule lustre-", "deleted", "cut off from the shared file system"),
    Hand("way out deleted", _no_way_out, "Route private-nat", "deleted", "no way out"),
    Hand("add-on deleted", lambda c: c.client("eks").delete_addon(clusterName=c.names.cluster, addonName="coredns"),
         "Addon coredns", "deleted", "do not resolve"),
    Hand("pod identity deleted", _no_credentials, "PodIdentityAssociation trainer", "deleted", "no checkpoint"),
    Hand("group made smaller", _smaller, "NodeGroup gpu-nodes", "changed", "scalingConfig.maxSize: 3 -> 2"),
    Hand("owner's tag changed", _retag, "Cluster cluster", "changed", "somebody"),
    Hand("operator's policy taken", _operator, "AccessPolicyAssociation operator", "deleted", "cannot speak"),
    Hand("log group deleted", lambda c: c.client("logs").delete_log_group(logGroupName=c.names.log_group),
         "LogGroup logs", "deleted", "audit log"),
    Hand("service account deleted", lambda c: _remove_object(c, "serviceaccounts", "trainer"),
         "ServiceAccount trainer", "deleted", "no new attempt"),
    Hand("binding deleted", lambda c: _remove_object(c, "rolebindings", "steward"),
         "RoleBinding steward", "deleted", "does not survive"),
    Hand("priority class deleted", lambda c: _remove_object(c, "priorityclasses", "bivouac-training"),
         "PriorityClass training", "deleted", "no new attempt is admitted"),
    Hand("versioning suspended", lambda c: c.client("s3").put_bucket_versioning(
        Bucket=_bucket(c, "archive"), VersioningConfiguration={"Status": "Suspended"}),
        "BucketVersioning archive", "changed", "gone for good"),
    Hand("public access allowed", lambda c: c.client("s3").delete_public_access_block(Bucket=_bucket(c, "data")),
         "BucketPublicAccessBlock data", "deleted", "opened to the world"),
    Hand("bucket policy deleted", lambda c: c.client("s3").delete_bucket_policy(Bucket=_bucket(c, "archive")),
         "BucketPolicy archive", "deleted", "not encrypted"),
)  # fmt: skip


def desired(camp: CampaignSite, size: int) -> None:
    """As the steward does: no drift."""
    name = {"clusterName": camp.names.cluster, "nodegroupName": camp.names.gpu_group}
    is_now = camp.client("eks").describe_nodegroup(**name)["nodegroup"]["scalingConfig"]
    resize(camp.client("eks"), **name, scalingConfig={**is_now, "desiredSize": size})


def lose_file_system(camp: CampaignSite) -> None:
    fsx = camp.client("fsx")
    for system in fsx.describe_file_systems()["FileSystems"]:
        fsx.delete_file_system(FileSystemId=system["FileSystemId"])


@contextmanager
def mutations(camp: CampaignSite) -> Iterator[list[Any]]:
    """Every call that AWS gets in this block and that is not a look, as (service, action, path)."""
    heard = list[Any]()

    def hear(call: Any) -> None:
        if not str(call.action).startswith(READS):
            heard.append((call.service, call.action, call.path))

    camp.world.faults.append(hear)
    try:
        yield heard
    finally:
        camp.world.faults.remove(hear)
