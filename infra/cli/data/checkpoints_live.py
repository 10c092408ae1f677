"""`bivouac checkpoints` on a campaign's live tiers, by requests to its steward: nobody outside can look there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from botocore.exceptions import ClientError

from infra.archive.bucket import forget_versions
from infra.checkpoints import work
from infra.checkpoints.find import FoundPlace, carry_place
from infra.checkpoints.requests import Answer, TierRequest, ask
from infra.errors import UserError
from infra.record.holder import Holder
from infra.record.store import CampaignStore

ARCHIVE, SHARED, LOCAL, ALL = "archive", "shared", "local", "all"
TIERS = (SHARED, LOCAL)
Tell = Callable[[str], None]


def chosen_tier(source: FoundPlace, tier: str | None, tiers: tuple[str, ...], default: str) -> str:
    """Return the tier. Raises `UserError` for one that this command does not know or the place does not have."""
    if tier is not None and tier not in tiers:
        cures = {
            LOCAL: "a node's disk holds its own ranks' shards only, and the trainer keeps as many as "
            "checkpoint.keep_local says: name the shared tier"
        }
        raise UserError(
            "this cannot be done on that tier", seen=tier, cure=cures.get(tier, f"one of: {', '.join(tiers)}")
        )
    if tier in TIERS and source.store is None:
        raise UserError("only a campaign whose record can be reached has tiers", seen=tier, cure="name a campaign")
    return tier or default


def verify(source: FoundPlace, tier: str, step: int | None, tell: Tell) -> Answer:
    """Verify the shared and local tiers that `tier` selects."""
    tiers = TIERS if tier == ALL else (tier,)
    steps = () if step is None else (step,)
    return ask(_store(source), _request("verify", tiers=tiers, steps=steps), tell)


def prune(source: FoundPlace, keep: int, plan: work.Pruning | None, tell: Tell) -> work.Pruning:
    """Return what may go; with a plan that was shown what was removed: of its steps, those that may still go."""
    request = _request("plan-prune", keep=keep)
    if plan is not None:
        request = _request("prune", keep=keep, steps=tuple(row.step for row in plan.drop))
    answer = ask(_store(source), request, tell)
    assert answer.proven is not None
    return work.Pruning(answer.keep, answer.drop, answer.proven)


def restore(source: FoundPlace, step: int | None, folder: Path, tell: Tell, as_sealed: bool = False) -> work.Restored:
    """Restore a step out of the cluster through the state bucket, and remove the copy there with its versions. The
    steward is asked also for a step that was carried before: meanwhile another attempt may have sealed it again."""
    store = _store(source)
    place = carry_place(store)
    step = ask(store, _request("carry", steps=() if step is None else (step,)), tell).carried
    assert step is not None
    restored_step = work.restore_for_use(place, step, folder, tell, as_sealed)
    tell("tidying up")
    place.remove(step)
    with suppress(ClientError):  # whoever may not see versions leaves them to the bucket's lifecycle
        forget_versions(store.s3, store.bucket, place.key(step, ""))
    return restored_step


def _store(source: FoundPlace) -> CampaignStore:
    assert source.store is not None
    return source.store


def _request(kind: str, **fields: object) -> TierRequest:
    body = {"kind": kind, "at": datetime.now(UTC), "asked_by": str(Holder.this_process()), **fields}
    return TierRequest.model_validate(body)
