"""The instances of the campaign's node groups, terminated directly where their group hangs."""

from __future__ import annotations

from infra.session.context import Context

_ENDING_S = 120.0


def living_instances(context: Context) -> list[str]:
    """Return the cluster's instances that are not terminated, whoever launched them."""
    filters = [
        {"Name": "tag:eks:cluster-name", "Values": [context.names.cluster]},
        {"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped", "shutting-down"]},
    ]
    pages = context.account.client("ec2").get_paginator("describe_instances").paginate(Filters=filters)
    return [i["InstanceId"] for page in pages for r in page["Reservations"] for i in r["Instances"]]


def end_instances(context: Context) -> None:
    """Terminate the instances and wait within bounds: a group that hangs bills by its instances."""
    ids = living_instances(context)
    if not ids:
        return
    context.guard()
    context.progress.note(f"a node group hangs: its instances are terminated directly: {', '.join(ids)}")
    context.account.client("ec2").terminate_instances(InstanceIds=ids)
    for _ in context.turns(_ENDING_S):
        if not (ids := living_instances(context)):
            return
        context.progress.step(f"{len(ids)} instances are terminating")
    context.progress.note(f"still not terminated, and billing: {', '.join(ids)}")
