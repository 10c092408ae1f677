"""The instances of the campaign's node groups, terminated directly where their group does not end them."""

from __future__ import annotations

from contextlib import suppress

from botocore.exceptions import ClientError

from infra.aws.account import every
from infra.session.context import Context
from infra.spec import waits


def living_instances(context: Context) -> list[str]:
    """Return the cluster's instances that do not end, whoever launched them. What is shutting down no longer bills."""
    filters = [
        {"Name": "tag:eks:cluster-name", "Values": [context.names.cluster]},
        {"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]},
    ]
    pages = context.account.client("ec2").get_paginator("describe_instances").paginate(Filters=filters)
    return [i["InstanceId"] for page in pages for r in page["Reservations"] for i in r["Instances"]]


def end_instances(context: Context) -> None:
    """Terminate the instances and wait within bounds: a group that hangs bills by its instances."""
    ids = living_instances(context)
    if not ids:
        return
    context.guard()
    _want_none(context)
    context.progress.note(f"instances of the node groups are terminated directly: {', '.join(ids)}")
    context.account.client("ec2").terminate_instances(InstanceIds=ids)
    for _ in context.turns(waits.ENDING.seconds):
        if not (ids := living_instances(context)):
            return
        context.progress.step(f"{len(ids)} instances are to end")
    context.progress.note(f"still not ending, and billing: {', '.join(ids)}")


def _want_none(context: Context) -> None:
    """Set the groups' sizes to zero: a group that is not being deleted would replace what is terminated."""
    eks, cluster = context.account.client("eks"), context.names.cluster
    with suppress(ClientError):  # the cluster is gone
        for group in every(eks, "list_nodegroups", "nodegroups", clusterName=cluster):
            with suppress(ClientError):  # it is being deleted, and takes no change
                scaling = {"minSize": 0, "desiredSize": 0}
                eks.update_nodegroup_config(clusterName=cluster, nodegroupName=group, scalingConfig=scaling)
