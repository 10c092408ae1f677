"""The instances behind the campaign's node groups, ended directly where their group does not end them."""

from __future__ import annotations

from infra.session.context import Context

_ENDING_S = 120.0


def living_instances(context: Context) -> list[str]:
    """Instances of the campaign's cluster that are not terminated, whoever launched them."""
    filters = [
        {"Name": "tag:eks:cluster-name", "Values": [context.names.cluster]},
        {"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped", "shutting-down"]},
    ]
    pages = context.account.client("ec2").get_paginator("describe_instances").paginate(Filters=filters)
    return [i["InstanceId"] for page in pages for r in page["Reservations"] for i in r["Instances"]]


def end_instances(context: Context) -> None:
    """Terminate what still runs, and wait a while for it; a group that hangs bills by its instances."""
    ids = living_instances(context)
    if not ids:
        return
    context.guard()
    context.progress.note(f"a node group hangs: its instances are ended directly: {', '.join(ids)}")
    context.account.client("ec2").terminate_instances(InstanceIds=ids)
    for _ in context.turns(_ENDING_S):
        if not (ids := living_instances(context)):
            return
        context.progress.step(f"{len(ids)} instances are terminating")
    context.progress.note(f"still not terminated, and billing: {', '.join(ids)}")
