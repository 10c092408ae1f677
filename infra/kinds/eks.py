"""Clusters and their parts: node groups, add-ons, access entries, pod identities."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from botocore.exceptions import ClientError

from infra.aws.account import Account, every, says_missing
from infra.kinds.finding import by_call, status_of
from infra.kinds.kind import Ask, Checkpoints, Inputs, Remain, ResourceKind, Step
from infra.kinds.listed import arn_of, code_of, one_by_one, place_in
from infra.kinds.thing import Thing, thing
from infra.plan.catalogue import service_prices
from infra.spec.names import Names


def _clusters(account: Account) -> Iterator[Thing]:
    eks = account.client("eks")
    for name in every(eks, "list_clusters", "clusters"):
        try:
            yield thing(eks.describe_cluster(name=name)["cluster"], name, name)
        except ClientError as error:
            if not says_missing(error):
                yield Thing(name, name, unread=code_of(error))


def _remove_cluster(account: Account, thing: Thing) -> None:
    """Delete a cluster after its node groups, which terminate their instances."""
    eks = account.client("eks")
    for group in every(eks, "list_nodegroups", "nodegroups", clusterName=thing.id):
        eks.delete_nodegroup(clusterName=thing.id, nodegroupName=group)
    eks.delete_cluster(name=thing.id)


def _node_groups_left(account: Account, names: Names) -> Iterator[Remain]:
    eks = account.client("eks")
    if names.cluster not in list(every(eks, "list_clusters", "clusters")):
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


def _by_arn(operation: str, parameter: str, result: str) -> Ask:
    """Return a look-up of `.../<kind>/<cluster>/<name>/...`; a namesake has another ARN."""

    def exists(account: Account, arn: str) -> bool:
        _, cluster, name, *_ = place_in(arn).split("/")
        eks = account.client("eks")
        part = getattr(eks, operation)(**{"clusterName": cluster, parameter: name})[result]
        return bool(part[f"{result}Arn"] == arn)

    return _unless_gone(exists)


def _unless_gone(exists: Callable[[Account, str], bool]) -> Ask:
    """Treat a part as gone if its cluster is gone, even if the part may not be read."""

    def has_part(account: Account, arn: str) -> bool:
        try:
            return exists(account, arn)
        except ClientError as error:
            if says_missing(error):
                return False
            _in_living_cluster(account, arn)
            raise

    return one_by_one(has_part)


def _in_living_cluster(account: Account, arn: str) -> bool:
    account.client("eks").describe_cluster(name=place_in(arn).split("/")[1])
    return True


def _entry(account: Account, arn: str) -> bool:
    """Return True if the access entry exists; its ARN lacks part of the principal's, so all entries are compared."""
    cluster, eks = place_in(arn).split("/")[1], account.client("eks")
    for principal in every(eks, "list_access_entries", "accessEntries", clusterName=cluster):
        try:
            entry = eks.describe_access_entry(clusterName=cluster, principalArn=principal)["accessEntry"]
        except ClientError as error:
            if not says_missing(error):
                raise
            continue
        if entry["accessEntryArn"] == arn:
            return True
    return False


def _pod_identities(account: Account, inputs: Inputs) -> list[str]:
    subject = {key: inputs[key] for key in ("clusterName", "namespace", "serviceAccount")}
    associations = every(account.client("eks"), "list_pod_identity_associations", "associations", **subject)
    return [association["associationId"] for association in associations]


KINDS = (
    ResourceKind(
        "cluster", "eks", arn_of("eks", "cluster/"), list=_clusters,
        step=Step.CLUSTERS, remove=_remove_cluster, held_by=("node group",),
        price=lambda item: service_prices().eks_cluster_usd_per_hour, checkpoints=Checkpoints.FREE,
        type="aws:eks/cluster:Cluster", find=by_call("eks", "describe_cluster", "{name}", name="name"),
        status=status_of("eks", "describe_cluster", "cluster", "status", "name"), holds_state=True,
    ),
    ResourceKind(
        "node group", "eks", arn_of("eks", "nodegroup/"),
        ask=_by_arn("describe_nodegroup", "nodegroupName", "nodegroup"),
        step=Step.CLUSTERS, remains=_node_groups_left, held_by=("node group", "instance"), holds_state=True,
        type="aws:eks/nodeGroup:NodeGroup",
        find=by_call("eks", "describe_nodegroup", "{clusterName}:{nodeGroupName}",
                   clusterName="clusterName", nodegroupName="nodeGroupName"),
        status=status_of("eks", "describe_nodegroup", "nodegroup", "status", "clusterName", "nodegroupName"),
    ),
    ResourceKind(
        "add-on", "eks", arn_of("eks", "addon/"), ask=_by_arn("describe_addon", "addonName", "addon"),
        type="aws:eks/addon:Addon",
        find=by_call("eks", "describe_addon", "{clusterName}:{addonName}",
                   clusterName="clusterName", addonName="addonName"),
        status=status_of("eks", "describe_addon", "addon", "status", "clusterName", "addonName"),
    ),
    ResourceKind(
        "access entry", "eks", arn_of("eks", "access-entry/"), ask=_unless_gone(_entry),
        type="aws:eks/accessEntry:AccessEntry",
        find=by_call("eks", "describe_access_entry", "{clusterName}:{principalArn}",
                   clusterName="clusterName", principalArn="principalArn"),
    ),
    ResourceKind("access policy", type="aws:eks/accessPolicyAssociation:AccessPolicyAssociation", made_over=True),
    ResourceKind(
        "pod identity", "eks", arn_of("eks", "podidentityassociation/"),
        ask=_by_arn("describe_pod_identity_association", "associationId", "association"),
        type="aws:eks/podIdentityAssociation:PodIdentityAssociation", find=_pod_identities, id_output="associationId",
    ),
    ResourceKind("part of a cluster", "eks", arn_of("eks", "[a-z-]+/[^/]+/"), ask=one_by_one(_in_living_cluster)),
)  # fmt: skip
"""The last kind covers all other parts of a cluster; it follows the kinds with their own definition."""
