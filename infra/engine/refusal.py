"""Refuses changes that a living campaign would not survive: replacing what holds its state, or rolling training
nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pulumi import automation as auto

from infra.engine.drift import Row, StackLook, look, resources_of, short
from infra.engine.state_copy import stored_state
from infra.errors import UserError
from infra.kinds import kind_of_type
from infra.record.events import Stage
from infra.record.payloads.stages import StageStarted
from infra.session.context import Context
from infra.stack.program import holds_state

FILE_SYSTEM = "aws:fsx/lustreFileSystem:LustreFileSystem"
_CLUSTER, _NODE_GROUP, _BUCKET = "aws:eks/cluster:Cluster", "aws:eks/nodeGroup:NodeGroup", "aws:s3/bucket:Bucket"
_GENTLE = ("scalingConfig", "tags", "labels", "updateConfig")
"""Properties of a node group that change without a node's restart."""


@dataclass(frozen=True)
class CampaignProgress:
    """Progress of the campaign, as far as refusals need it."""

    begun: bool
    training: bool
    """An attempt was launched and nothing has ended it."""
    falling: bool
    """Its teardown has begun."""
    copied: int = -1
    """Newest step with an interval copy in S3, from which training goes on where the file system is lost."""


@dataclass(frozen=True)
class Refusal:
    row: Row
    why: str
    cure: str

    def __str__(self) -> str:
        return f"{self.row.title}: {self.why}"


def standing(context: Context) -> CampaignProgress:
    events, state = context.store.events(), context.state()
    falling = any(isinstance(e.payload, StageStarted) and e.payload.stage is Stage.TEARDOWN for e in events)
    return CampaignProgress(bool(events), bool(state.attempts) and state.outcome is None, falling, state.copied)


def refusals(outlook: StackLook, stage: CampaignProgress, campaign: str) -> tuple[Refusal, ...]:
    """Return why this plan must not be carried out; empty when it may."""
    if not stage.begun or stage.falling:
        return ()
    deletions = {row.urn for row in outlook.drifted if row.verb == "deleted"}
    rows = (_refusal(row, deletions, stage, campaign) for row in outlook.planned if row.urn not in outlook.broken)
    return tuple(refusal for refusal in rows if refusal is not None)


def error_of(refusals: Iterable[Refusal], campaign: str) -> UserError:
    rows = tuple(refusals)
    return UserError(
        f"this would destroy or stop what campaign {campaign} needs",
        seen=" | ".join(str(refusal) for refusal in rows),
        cure="; or ".join(dict.fromkeys(refusal.cure for refusal in rows)),
    )


def refuse_loss(context: Context, stack: auto.Stack) -> None:
    """Raise `UserError` if an `up` would replace, delete or make again what holds the campaign's state.

    Looks only at a stack that holds such resources, so a first `up` costs nothing; looks at AWS only if a killed engine
    left operations pending, since then the `up` begins with a refresh.
    """
    document = stored_state(context.store, stack.name)
    resources = resources_of(document).values()
    stateful = [row for row in resources if kind_of_type(row["type"]).holds_state and not row.get("initErrors")]
    stage = standing(context)
    if not stateful or not stage.begun or stage.falling:
        return
    pending = bool(((document or {}).get("checkpoint", {}).get("latest") or {}).get("pending_operations"))
    config = {key: value.value for key, value in stack.get_all_config().items()}
    refused_rows = refusals(look(context, stack.name, config, refresh=pending), stage, context.spec.campaign)
    if refused_rows:
        raise error_of(refused_rows, context.spec.campaign)


def _refusal(row: Row, deletions: set[str], stage: CampaignProgress, campaign: str) -> Refusal | None:
    down = f"`bivouac down {campaign}` archives what is sound and ends it; then begin a new campaign"
    if not holds_state(row.kind, row.name):
        return None
    if row.verb in ("replace", "delete"):
        return Refusal(
            row, f"it would be {_PAST[row.verb]}{_forcing_text(row)}", f"set back by hand what was changed, or {down}"
        )
    if row.verb == "create" and row.urn in deletions and row.kind == FILE_SYSTEM and stage.copied >= 0:
        return None
    if row.verb == "create" and row.urn in deletions and row.kind != _BUCKET:
        return Refusal(row, "it was deleted by hand, and a new one would be empty", down)
    if row.verb == "update" and row.kind == _CLUSTER and any(change.path == "version" for change in row.changes):
        version = next(change for change in row.changes if change.path == "version")
        reason = f"its Kubernetes version is {version.before} and EKS does not go back to {version.after}"
        return Refusal(row, reason, f"leave it as it is, or {down}")
    rough = [change.path for change in row.changes if not change.path.startswith(_GENTLE)]
    if row.verb == "update" and row.kind == _NODE_GROUP and stage.training and rough:
        reason = f"an update of {', '.join(rough)} would restart its nodes one by one while it trains"
        return Refusal(row, reason, f"repair it when training has ended, or {down}")
    return None


_PAST = {"replace": "replaced", "delete": "deleted"}


def _forcing_text(row: Row) -> str:
    forcing = [diff for diff in row.changes if diff.replaces]
    if not forcing:
        return ""
    return ", forced by " + ", ".join(f"{diff.path} ({short(diff.before)} -> {short(diff.after)})" for diff in forcing)
