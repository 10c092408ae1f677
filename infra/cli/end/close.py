"""`bivouac close NAME`: what the closer's build runs, as `infra.campaign.closing` decides. It gives GPU nodes back that
nobody watches, or does what `bivouac down NAME` does, under the campaign's lease; else it says why not and tells people
what is due. No spec admits CodeBuild's network to the cluster's API, so it asks AWS's own APIs alone.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial

from rich.console import Console

from infra import target
from infra.aws.account import Account
from infra.campaign.closing import Act, CloserView, judge, look
from infra.cli.end.down import ask_to_stop, end
from infra.cli.end.unattended import attend
from infra.cli.records import record_of
from infra.cluster.kubernetes import OF_WORLD
from infra.console.plain_console import say
from infra.engine.nodegroups import give_back
from infra.errors import LeaseHeld
from infra.record.payloads.attempts import NodesAtZero
from infra.record.payloads.stages import Closing
from infra.record.store import CampaignStore
from infra.session.closer import driver_of
from infra.session.session import opened, stored_plan, stored_spec
from infra.spec.names import Names


def close_command(campaign: str, region: str, console: Console) -> int:
    """End the campaign, or give its nodes back, or say why neither is done now. Raises what `down` raises."""
    store, say = record_of(campaign, region), partial(console.print, markup=False, soft_wrap=True)
    view = look(store, datetime.now(UTC))
    act, reason = judge(view)
    try:
        if act is Act.END:
            say(f"{campaign} is ended by the closer: {reason}")
            _end(store, view, reason, console)
            return 0
        if act is Act.GIVE_BACK:
            say(f"the GPU nodes of {campaign} are given back by the closer: {reason}")
            _set_to_zero(store, view, reason, console)
        else:
            say(f"{campaign} {reason}: nothing to do")
        if not view.state.ended and not view.driven:
            attend(store, console)
    except LeaseHeld as held:
        say(f"somebody was quicker: {held}")
    return 0


def _end(store: CampaignStore, view: CloserView, reason: str, console: Console) -> None:
    try:
        # First, and by what needs neither spec, engine nor cluster: GPU nodes bill most.
        _set_to_zero(store, view, reason, console)
    except OF_WORLD as error:
        say(console, f"GPU nodes may be up, and the teardown goes on: {error}")
    target.have_engine()
    spec = stored_spec(store)
    with opened(spec, stored_plan(store, spec), console, target.site_facts()) as context:
        context.enters_cluster = False
        store.append(Closing(why=reason))
        if view.state.outcome is None:
            ask_to_stop(store)
        end(context)


def _set_to_zero(store: CampaignStore, view: CloserView, reason: str, console: Console) -> None:
    """Give all nodes but the system's back and record it. Raises `LeaseHeld` if somebody begins to drive meanwhile."""

    def guard() -> None:
        driver = driver_of(store)
        if driver is not None and driver.living and not view.driven:
            raise LeaseHeld(f"{store.campaign} is driven again", seen=driver.record.holder)

    names, say = Names(store.campaign), partial(console.print, markup=False, soft_wrap=True)
    groups = give_back(Account(store.region), names, guard, say)
    if view.state.gpu_nodes_up or groups:
        store.append(NodesAtZero(group=names.gpu_group, **({"why": reason} if groups else {})))
