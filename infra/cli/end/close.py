"""`bivouac close NAME`: what the closer's build runs, as `infra.campaign.closing` decides. It gives GPU nodes back that
nobody watches, or does what `bivouac down NAME` does, under the campaign's lease; else it says why not and tells people
what is due. No spec admits CodeBuild's network to the cluster's API, so it asks AWS's own APIs alone.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import partial

from rich.console import Console

from infra import target
from infra.aws.account import Account
from infra.campaign import billing
from infra.campaign.closing import Act, CloserView, judge, look
from infra.campaign.repairs.lost_storage import FileSystemLoss
from infra.campaign.repairs.repair import id_of
from infra.cli.end.down import ask_to_stop, end
from infra.cli.records import record_of
from infra.cluster.kubernetes import OF_WORLD
from infra.console.plain_console import say
from infra.engine.nodegroups import give_back
from infra.errors import LeaseHeld
from infra.notices.outbox import Outbox
from infra.notices.ways import ways
from infra.preview.read_only import read_only_context
from infra.record.events import CampaignState, Stage
from infra.record.payloads.attempts import NodesAtZero
from infra.record.payloads.stages import Closing, DataEnded, StageFailed
from infra.record.payloads.training import FileSystemLost
from infra.record.store import CampaignStore
from infra.session.closer import driver_of
from infra.session.context import Context, turns
from infra.session.session import opened, stored_plan, stored_spec
from infra.spec import waits
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
    if view.state.data_begun_at is not None:
        store.append(DataEnded(error=f"the closer gave their nodes back: {reason}"))
    if view.state.gpu_nodes_up or (groups and view.state.data_begun_at is None):
        store.append(NodesAtZero(group=names.gpu_group, **({"why": reason} if groups else {})))


_BEFORE_A_STEWARD = (Stage.BAKE, Stage.PROVISION, Stage.PREFLIGHT, Stage.LAUNCH)
_ASK_EVERY_S = 10.0


def attend(store: CampaignStore, console: Console) -> int:
    """Note what has happened to the campaign and send the notices that are due; return the number sent."""
    spec = stored_spec(store)
    context = read_only_context(spec, None, console)
    note_dead_driver(store, store.state())
    note_loss(store, store.state(), context)
    outbox = Outbox(store, spec.notify, ways(spec), lambda: datetime.now(UTC))
    count = outbox.tell(lambda: billing.bill(context).sentence(spec.campaign))
    if count:
        say(console, f"people were told of {spec.campaign}: {count}")
    return count


def note_dead_driver(store: CampaignStore, state: CampaignState) -> None:
    """Record the end of a stage whose driver died in it before there was a steward: else nothing tells of it."""
    driver = driver_of(store)
    is_dead = driver is not None and not driver.living and not driver.record.released
    if not is_dead or state.attempts or state.running_stage not in _BEFORE_A_STEWARD:
        return
    error = "its driver died, and nobody drives; `bivouac run` with the same spec goes on"
    store.append(StageFailed(stage=state.running_stage, error=error, cut_off=True))


def note_loss(store: CampaignStore, state: CampaignState, context: Context) -> None:
    """Record that the file system of a campaign that trains is lost and no driver is there to make a new one."""
    is_recorded = state.lost is not None and not state.lost.repair
    if is_recorded or not state.attempts or state.outcome is not None:
        return
    if (id := id_of(store, context.names.stack)) is None:
        return
    loss = FileSystemLoss(context.account, id)
    for _ in turns(waits.LOST_FILE_SYSTEM.seconds, _ASK_EVERY_S):
        word, sure = loss.look(time.monotonic())
        if not word:
            return
    if sure:
        reason = "no driver is there to make a new one"
        store.append(FileSystemLost(id=id, word=word, copied=state.copied, repair=False, why=reason))
