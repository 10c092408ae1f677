"""What a teardown may lose: an archive counts only for its own campaign and up to the step that it accounts for."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from infra.errors import NotProven
from infra.inventory.stakes import refuse_unproven
from infra.record.events import CampaignState, Event, Kind, Stage, fold
from infra.record.identity import CampaignIdentity

OWN = CampaignIdentity(identity="own")
ADOPTED = CampaignIdentity(identity="own", adopted=True)
Told = tuple[Kind, dict[str, Any]]
BAKED: Told = (Kind.STAGE_STARTED, {"stage": Stage.BAKE})
TORN: Told = (Kind.STAGE_STARTED, {"stage": Stage.TEARDOWN})
LAUNCHED: Told = (Kind.ATTEMPT_LAUNCHED, {"attempt": 1, "committed_step": -1})
AT_ZERO: Told = (Kind.NODES_AT_ZERO, {})


def ended(step: int) -> Told:
    return Kind.ATTEMPT_ENDED, {"attempt": 1, "failure": None, "committed_at_end": step}


def finished(step: int | None) -> Told:
    return Kind.TRAINING_FINISHED, {"outcome": "done", "committed_step": step}


def verified(step: int, **more: Any) -> Told:
    return Kind.ARCHIVE_VERIFIED, {"manifest": "s3://a/b", "step": step, "identity": "own"} | more


def told(*events: Told) -> CampaignState:
    now = datetime(2026, 11, 1, tzinfo=UTC)
    return fold(Event(at=now, writer="w", sequence=n, kind=kind, data=data) for n, (kind, data) in enumerate(events))


TRAINED = (BAKED, LAUNCHED, ended(9000), finished(9000))


@pytest.mark.parametrize(
    ("events", "known"),
    [
        ((*TRAINED, verified(9000), AT_ZERO), OWN),
        ((*TRAINED, verified(8000, accounts_for=9000), AT_ZERO), OWN),
        ((BAKED, LAUNCHED, ended(40), verified(40)), OWN),
        ((BAKED,), OWN),
        ((BAKED, TORN), OWN),
        ((BAKED, LAUNCHED, ended(-1), finished(-1), AT_ZERO), OWN),
        ((*TRAINED, (Kind.ABANDONED, {})), OWN),
        ((*TRAINED, TORN, (Kind.STAGE_FINISHED, {"stage": Stage.TEARDOWN})), OWN),
        ((*TRAINED, (Kind.ARCHIVE_VERIFIED, {"manifest": "s3://a/b", "step": 9000})), ADOPTED),
        ((*TRAINED, (Kind.ARCHIVE_VERIFIED, {"manifest": "s3://a/b", "step": 9000})), None),
    ],
)
def test_nothing_is_lost_where_all_is_archived_or_there_was_nothing_or_it_was_given_up(
    events: tuple[Told, ...], known: CampaignIdentity | None
) -> None:
    refuse_unproven(told(*events), "train", known)


@pytest.mark.parametrize(
    ("events", "known", "seen"),
    [
        ((), OWN, "no events"),
        ((TORN,), OWN, "no events"),
        ((*TRAINED, verified(40), AT_ZERO), OWN, "newest checkpoint known: step 9000, the archive is of step 40"),
        ((*TRAINED, verified(40, accounts_for=8999)), OWN, "the archive is of step 40"),
        ((*TRAINED, verified(9000, identity="other"), AT_ZERO), OWN, "of campaign other, not of own"),
        ((*TRAINED, verified(9000, identity="other"), AT_ZERO), ADOPTED, "of campaign other"),
        ((*TRAINED, verified(9000, identity="other"), AT_ZERO), None, "of campaign other"),
        ((*TRAINED, (Kind.ARCHIVE_VERIFIED, {"manifest": "s3://a/b", "step": 9000})), OWN, "without identity"),
        ((*TRAINED, AT_ZERO), OWN, "no verified archive"),
        ((BAKED, LAUNCHED), OWN, "no verified archive"),
        ((BAKED, LAUNCHED, ended(40), finished(-1), AT_ZERO), OWN, "no verified archive"),
        ((BAKED, LAUNCHED, ended(-1), finished(None), AT_ZERO), OWN, "no verified archive"),
        ((BAKED, LAUNCHED, ended(40), finished(40), verified(40), LAUNCHED), OWN, "no verified archive"),
    ],
)
def test_whatever_may_be_lost_is_refused_with_what_is_known(
    events: tuple[Told, ...], known: CampaignIdentity | None, seen: str
) -> None:
    with pytest.raises(NotProven) as refused:
        refuse_unproven(told(*events), "train", known)
    assert seen in str(refused.value) and "`bivouac down train --abandon`" in str(refused.value)
