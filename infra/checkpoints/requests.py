"""Requests to the steward for a campaign's live tiers, made and answered through the record.

Nodes' disks and the shared file system cannot be reached from outside. The steward, which reaches both, finds requests
in the campaign's folder of the state bucket and writes its answers there. No other network path is needed, on AWS or in
a rehearsal, and without a living steward a request fails.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

from infra.cluster.steward_config import LEASE_TTL, STEWARD_LEASE
from infra.errors import PermanentError, UserError
from infra.record.store import CampaignStore
from trainer.contract.frozen import Frozen
from trainer.contract.listing import Listed, StepVerdict

FOLDER, CARRIED, SUFFIX = "requests", "carried", ".answer.json"
_FIRST_WORD_S = 60.0
_POLL_S = 1.0
_LOOK_AT_LEASE_S = 10.0


class TierRequest(Frozen):
    kind: Literal["verify", "plan-prune", "prune", "carry"]
    at: datetime
    tiers: tuple[str, ...] = ("shared",)
    steps: tuple[int, ...] = ()
    """Steps to verify (none: every committed one), to remove, or the one to carry (none: the newest)."""
    keep: int = 0
    asked_by: str = ""


class Answer(Frozen):
    done: bool = False
    said: str = ""
    """Progress of the steward; newer answers replace older ones."""
    verdicts: tuple[StepVerdict, ...] = ()
    unreachable: tuple[str, ...] = ()
    """Nodes that did not answer, with reasons."""
    keep: tuple[int, ...] = ()
    proven: int | None = None
    drop: tuple[Listed, ...] = ()
    carried: int | None = None
    """Step that is in the state bucket now."""
    refused: tuple[str, str, str] | None = None
    """(what, seen, cure) of a refusal."""


def ask(store: CampaignStore, request: TierRequest, tell: Callable[[str], None]) -> Answer:
    """Write a request, wait for its answer, and delete both.

    Raises `UserError` if no steward runs, `PermanentError` if it refuses, does not answer, or is too old.
    """
    _insist_on_steward(store)
    name = f"{FOLDER}/{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"
    store.put_json(f"{name}.json", request.model_dump(mode="json"))
    try:
        answer = _await(store, name, tell)
    finally:
        for key in (f"{name}.json", f"{name}{SUFFIX}"):
            store.s3.delete_object(Bucket=store.bucket, Key=f"{store.prefix}/{key}")
    if answer.refused is not None:
        problem, evidence, cure = answer.refused
        raise PermanentError(problem, seen=evidence, cure=cure)
    return answer


def _await(store: CampaignStore, name: str, tell: Callable[[str], None]) -> Answer:
    start, last_look = time.monotonic(), time.monotonic()
    tell("asking the steward")
    while True:
        answer = store.model(f"{name}{SUFFIX}", Answer) or Answer()
        if answer.done:
            return answer
        if answer.said:
            tell(answer.said)
        elif time.monotonic() - start > _FIRST_WORD_S:
            cure = "see `kubectl logs deployment/steward`; a steward of an older image answers no requests"
            evidence = f"no answer in {_FIRST_WORD_S:.0f} s"
            raise PermanentError("the steward does not answer requests", seen=evidence, cure=cure)
        if time.monotonic() - last_look > _LOOK_AT_LEASE_S:
            _insist_on_steward(store)
            last_look = time.monotonic()
        time.sleep(_POLL_S)


def has_steward(store: CampaignStore) -> bool:
    """Return True if a steward holds its lease now."""
    current = store.lease(STEWARD_LEASE, LEASE_TTL).current()
    return current is not None and not current.record.released and current.age_s <= current.record.ttl_s


def _insist_on_steward(store: CampaignStore) -> None:
    if not has_steward(store):
        raise UserError(
            "no steward is in the cluster to read its tiers",
            seen=f"no living steward of {store.campaign}",
            cure=f"`bivouac run` starts it again while the cluster exists; `bivouac checkpoints list {store.campaign}` "
            "shows its last listing, and the archive can be verified and restored without it",
        )
