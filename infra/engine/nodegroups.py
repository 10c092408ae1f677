"""The campaign's node groups and instances, by the APIs of EKS and EC2 alone: groups are set to zero, and what their
group does not end is terminated directly."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from botocore.exceptions import ClientError

from infra.aws.account import Account, every, says_missing
from infra.cluster.nodes import Guard, NodeGroup, instances_with
from infra.session.context import Context, turns
from infra.spec import waits
from infra.spec.names import DATA_POOL, Names


def living_instances(account: Account, names: Names, excluded_group: str = "") -> list[str]:
    """Return the cluster's instances that do not end, whoever launched them. What is shutting down no longer bills.
    `excluded_group`: a node group whose instances are left out."""
    tag = {"eks:cluster-name": names.cluster}
    instances = instances_with(account, "pending", "running", "stopping", "stopped", **tag)
    left_out = {"Key": "eks:nodegroup-name", "Value": excluded_group}
    return [i["InstanceId"] for i in instances if left_out not in i.get("Tags", ())]


def give_back(account: Account, names: Names, guard: Guard, say: Callable[[str], None]) -> bool:
    """Set the node groups to zero, but not the system's, where the steward lives; terminate what has not ended after
    `waits.SHUTDOWN`. Return whether there was anything to give back. Raises what AWS answers, after both were tried.
    Neither the cluster's API nor an engine is needed."""
    errors, any_change = list[ClientError](), False
    for group in (names.gpu_group, names.of("node group", DATA_POOL)):
        try:
            any_change |= NodeGroup(account, names, guard, group).set_desired(0)
        except ClientError as error:
            errors += [] if says_missing(error) else [error]
    instances = left = living_instances(account, names, names.system_group)
    for _ in turns(0.0 if errors else waits.SHUTDOWN.seconds):
        if not (left := living_instances(account, names, names.system_group)):
            break
        say(f"{len(left)} instances are to end")
    if left:
        guard()
        say(f"instances are terminated directly: {', '.join(left)}")
        account.client("ec2").terminate_instances(InstanceIds=left)
    if errors:
        raise errors[0]
    return any_change or bool(instances)


def end_instances(context: Context) -> None:
    """Terminate the instances and wait within bounds: a group that hangs bills by its instances."""
    ids = living_instances(context.account, context.names)
    if not ids:
        return
    context.guard()
    eks, cluster = context.account.client("eks"), context.names.cluster
    with suppress(ClientError):  # the cluster is gone
        for group in every(eks, "list_nodegroups", "nodegroups", clusterName=cluster):
            with suppress(ClientError):  # it is being deleted; else it would replace what is terminated
                scaling = {"minSize": 0, "desiredSize": 0}
                eks.update_nodegroup_config(clusterName=cluster, nodegroupName=group, scalingConfig=scaling)
    context.progress.note(f"instances of the node groups are terminated directly: {', '.join(ids)}")
    context.account.client("ec2").terminate_instances(InstanceIds=ids)
    for _ in context.turns(waits.ENDING.seconds):
        if not (ids := living_instances(context.account, context.names)):
            return
        context.progress.step(f"{len(ids)} instances are to end")
    context.progress.note(f"still not ending, and billing: {', '.join(ids)}")
