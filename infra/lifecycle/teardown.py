"""Teardown: only after the archive is verified, or when told to abandon it."""

from __future__ import annotations

from typing import Any

from infra.errors import NotProven
from infra.events import CampaignState, Stage
from infra.folders import writable
from infra.lifecycle.context import Context
from infra.lifecycle.engine import Engine
from infra.lifecycle.provision import campaign_settings


def run(context: Context, *, abandon: bool = False) -> dict[str, Any]:
    """Destroy the campaign's stack; done already when the stack is empty. The foundation stays."""
    state = context.state()
    refuse_unproven(state, context.spec.campaign, abandon)
    _terminate_builders(context)
    engine = Engine(context, writable(context.results / "pulumi"))
    provision = state.finished_stages.get(Stage.PROVISION, {})
    settings = campaign_settings(context, provision.get("data_digest", "0" * 64))
    stack = engine.stack(context.names.stack, settings.to_config())
    count = engine.resources(stack)
    engine.destroy(stack)
    context.progress.note(f"{count} resources destroyed")
    return {"resources": count, "abandoned": abandon}


def refuse_unproven(state: CampaignState, campaign: str, abandon: bool) -> None:
    """Raises `NotProven` while there is something to lose: training has begun and no archive is verified."""
    if abandon or state.archive is not None or not state.attempts:
        return
    newest = max((int(a.get("committed_at_end", a["committed_step"])) for a in state.attempts), default=-1)
    raise NotProven(
        f"campaign {campaign} is not archived",
        seen=f"{len(state.attempts)} attempts, newest checkpoint known: step {newest}, no verified archive",
        cure=f"`bivouac run` lets the steward finish and archive; or `bivouac down {campaign} --abandon` to lose it",
    )


def _terminate_builders(context: Context) -> None:
    """A builder that a killed bake left is not in the stack, and would hold its subnet."""
    ec2 = context.account.client("ec2")
    found = ec2.describe_instances(
        Filters=[
            {"Name": "tag:Name", "Values": [f"{context.names.prefix}-builder"]},
            {"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]},
        ]
    )
    ids = [i["InstanceId"] for r in found["Reservations"] for i in r["Instances"]]
    if ids:
        context.guard()
        ec2.terminate_instances(InstanceIds=ids)
        ec2.get_waiter("instance_terminated").wait(InstanceIds=ids)
