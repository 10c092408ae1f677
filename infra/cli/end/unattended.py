"""What the closer does for a campaign that nobody drives and that is not over: it notes what no driver sees any more,
and people are told. It changes nothing at AWS, and takes no lease: whoever comes back finds theirs free."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from rich.console import Console

from infra.campaign import billing
from infra.campaign.repairs.lost_storage import FileSystemLoss, id_of
from infra.console.plain_console import say
from infra.notices.outbox import Outbox
from infra.notices.ways import ways
from infra.preview.read_only import read_only_context
from infra.record.events import CampaignState, Stage
from infra.record.payloads.stages import StageFailed
from infra.record.payloads.training import FileSystemLost
from infra.record.store import CampaignStore
from infra.session.closer import driver_of
from infra.session.context import Context, turns
from infra.session.session import stored_spec
from infra.spec import waits

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
