"""The loss of the file system while training runs: AWS's word for it, and a new one where that is safe and bounded.

What lay on it is lost in any case. A new one costs an interval of training, if S3 has an interval copy.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from botocore.exceptions import BotoCoreError, ClientError

from infra.aws.account import Account
from infra.campaign import billing
from infra.campaign.driver_notices import tell
from infra.campaign.launch import recorded_config
from infra.campaign.repairs.repair import carry_out, id_of
from infra.engine.drift import StackLook
from infra.engine.failures import EngineFailed
from infra.engine.kubernetes_state import KUBERNETES
from infra.engine.refusal import FILE_SYSTEM, refusals, standing
from infra.errors import PermanentError
from infra.preview.read_only import look_at_stacks
from infra.record import meter
from infra.record.events import CampaignState
from infra.record.payloads.training import FileSystemLost
from infra.session.context import Context
from infra.spec import waits

MOST = 2
"""File systems that drivers make again of their own accord in one campaign: what takes a third one is no accident."""
_LOOK_EVERY_S = 30.0
_GONE, _FAILED = "does not exist", "has FAILED"
_OF_IT = (FILE_SYSTEM, "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation", f"{KUBERNETES}core/v1:Persistent")
"""Types, or their beginnings, of what a lost file system takes with it."""


@dataclass
class FileSystemLoss:
    """AWS's word on a file system, and since when it is the same without a break."""

    account: Account
    id: str
    since: float | None = None

    def look(self, now: float) -> tuple[str, bool]:
        """Return FSx's word that it is lost, and whether it was said for long enough to be believed; an empty word
        while it is there, and while nobody can say, which is no loss. `now`: seconds of a monotonic clock."""
        word = self._word()
        if not word:
            self.since = None
            return "", False
        self.since = now if self.since is None else self.since
        return word, now - self.since >= waits.LOST_FILE_SYSTEM.seconds

    def _word(self) -> str:
        fsx = self.account.client("fsx")
        try:
            systems = fsx.describe_file_systems(FileSystemIds=[self.id])["FileSystems"]
        except ClientError as error:
            return _GONE if error.response["Error"]["Code"] == "FileSystemNotFound" else ""
        except BotoCoreError:
            return ""
        if not systems or systems[0]["Lifecycle"] != "FAILED":
            return ""
        detail = (systems[0].get("FailureDetails") or {}).get("Message")
        return f"{_FAILED}{f' ({detail})' if detail else ''}"


class StorageWatch:
    """Watches the file system of a campaign that trains, and makes a lost one again, or says why not."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._loss: FileSystemLoss | None = None
        self._next, self._said = 0.0, ""

    def look(self) -> str:
        """Return a message for the progress line, empty while nothing is wrong. Raises what a repair raises."""
        now = time.monotonic()
        if now < self._next:
            return self._said
        self._next = now + min(_LOOK_EVERY_S, waits.LOST_FILE_SYSTEM.seconds / 4)
        state = self.context.state()
        if state.outcome is not None or not state.attempts:
            return ""
        if state.lost is not None and state.lost.repair:
            self._replace(state.lost.id, state.lost.word, state)  # begun by a driver that was killed
        if self._loss is None:
            if (id := id_of(self.context.store, self.context.names.stack)) is None:
                return ""
            self._loss = FileSystemLoss(self.context.account, id)
        word, sure = self._loss.look(now)
        self._said = f"FSx says that file system {self._loss.id} {word}" if word else ""
        if sure:
            self._said = self._replace(self._loss.id, word, state)
        return self._said

    def _replace(self, id: str, word: str, state: CampaignState) -> str:
        """Make the file system again; else return why not, which people are told once."""
        reason = refusal_reason(self.context, state, datetime.now(UTC))
        looks: tuple[StackLook, ...] = ()
        if not reason:
            try:
                looks = look_at_stacks(self.context, {self.context.names.stack})
            except EngineFailed as error:
                return f"file system {id} {word}; the stack cannot be compared with AWS yet: {error}"
            reason = _other_changes(self.context, looks)
        if reason:
            if state.lost is None or state.lost.repair:
                self._record(id, word, state, repair=False, reason=reason)
            return f"file system {id} {word}, and is not made again by itself: {reason}"
        self._record(id, word, state, repair=True, reason=_cost(self.context, state))
        if word.startswith(_FAILED):
            _remove(self.context, id)
            looks = look_at_stacks(self.context, {self.context.names.stack})
        carry_out(self.context, looks)
        self._loss = None
        return ""

    def _record(self, id: str, word: str, state: CampaignState, *, repair: bool, reason: str) -> None:
        context = self.context
        context.guard()
        context.store.append(FileSystemLost(id=id, word=word, copied=state.copied, repair=repair, why=reason))
        outcome = "it is made again" if repair else "it is not made again by itself"
        context.progress.note(f"file system {id} {word}; {outcome}: {reason}")
        tell(context, lambda: billing.bill(context).sentence(context.spec.campaign))


def refusal_reason(context: Context, state: CampaignState, now: datetime) -> str:
    """Return why no driver makes the lost file system again of its own accord; empty if it may."""
    name = context.spec.campaign
    if state.copied < 0:
        return f"S3 has no interval copy, and a new one would be empty; `bivouac down {name}` ends the campaign"
    if state.replacements >= MOST:
        return (
            f"{state.replacements} were made again already, and as many are lost: find out who or what takes them, "
            f"then Ctrl-C and `bivouac repair {name}`"
        )
    config = recorded_config(context.store, state.version)
    need = timedelta(seconds=waits.FILE_SYSTEM.seconds) + (config.interval_and_archive if config else timedelta())
    if now + need > context.deadline:
        return f"the deadline {context.deadline.isoformat()} leaves no time for it, an interval and the archive"
    money, budget = meter.read(context.plan.cost, context.store.events(), now), context.spec.money.budget_usd
    if money.spent_usd + money.usd_per_hour * Decimal(need.total_seconds()) / 3600 > budget:
        return (
            f"{money.spent_usd:.2f} of {budget} USD are spent: the rest does not cover it, an interval and the archive"
        )
    return ""


def _other_changes(context: Context, looks: tuple[StackLook, ...]) -> str:
    """Return what a repair would change besides the file system: a person changed that, and decides on it."""
    name = context.spec.campaign
    if refusal_list := [refusal for look in looks for refusal in refusals(look, standing(context), name)]:
        return "; ".join(f"{refusal}; {refusal.cure}" for refusal in refusal_list)
    rows = {row.title: row for look in looks for row in (*look.planned, *look.drifted)}
    titles = sorted(title for title, row in rows.items() if not row.kind.startswith(_OF_IT))
    if not titles:
        return ""
    return f"{', '.join(titles)} was changed by hand too: Ctrl-C, then `bivouac repair {name}` shows it and asks"


def _cost(context: Context, state: CampaignState) -> str:
    rate = meter.read(context.plan.cost, context.store.events(), datetime.now(UTC)).usd_per_hour
    hours = Decimal(waits.FILE_SYSTEM.minutes) / 60
    return (
        f"FSx takes {waits.FILE_SYSTEM.takes}, while {rate:.2f} USD/h bill, at most {rate * hours:.2f} USD; training "
        f"goes on from step {state.copied} in S3; the {state.replacements + 1}. of {MOST} that a driver makes by itself"
    )


def _remove(context: Context, id: str) -> None:
    """Delete a file system that has FAILED, which AWS calls unrecoverable: the engine would keep it as it is."""
    context.guard()
    fsx = context.account.client("fsx")
    with suppress(fsx.exceptions.FileSystemNotFound):  # a driver that was killed may have deleted it
        fsx.delete_file_system(FileSystemId=id)
        for _ in context.turns(waits.FILE_SYSTEM.seconds, 5.0):
            context.progress.step(f"file system {id} is being deleted: it has failed")
            fsx.describe_file_systems(FileSystemIds=[id])
        raise PermanentError(
            "the failed file system is not deleted", seen=id, cure="ask AWS Support, then run the same command again"
        )
