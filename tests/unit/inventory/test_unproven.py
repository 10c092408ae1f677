"""What a teardown may lose: an archive counts only for its own campaign and up to the step that it accounts for."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from infra.errors import NotProven
from infra.inventory.stakes import refuse_unproven
from infra.record.events import CampaignState, Event, Stage, fold
from infra.record.identity import CampaignIdentity

OWN = CampaignIdentity(identity="own")
ADOPTED = CampaignIdentity(identity="own", adopted=True)
Told = tuple[str, dict[str, Any]]
BAKED: Told = ("stage.started", {"stage": Stage.BAKE})
TORN: Told = ("stage.started", {"stage": Stage.TEARDOWN})
LAUNCHED: Told = ("attempt.launched", {"attempt": 1, "committed_step": -1})
LAUNCHED_AGAIN: Told = ("attempt.launched", {"attempt": 2, "committed_step": -1})
UNREAD: Told = ("record.unreadable", {"key": "events/w/000003.json", "why": "not JSON"})
AT_ZERO: Told = ("nodes.at-zero", {})


def ended(step: int) -> Told:
    return "attempt.ended", {"attempt": 1, "failure": None, "committed_at_end": step}


def finished(step: int | None, left: dict[str, Any] | None = None) -> Told:
    return "training.finished", {"outcome": "done", "committed_step": step, "unrecognised": left}


def verified(step: int, **more: Any) -> Told:
    return "archive.verified", {"manifest": "s3://a/b", "step": step, "identity": "own"} | more


def told(*events: Told) -> CampaignState:
    now = datetime(2026, 11, 1, tzinfo=UTC)
    return fold(Event(at=now, writer="w", sequence=n, kind=kind, data=data) for n, (kind, data) in enumerate(events))


EMPTY: dict[str, Any] = {"files": 0, "bytes": 0, "newest": "", "why": "", "fits": ""}
LEFT: dict[str, Any] = {"files": 3, "bytes": 12, "newest": "ckpt.pt", "why": "looked for *.ckpt", "fits": "torch"}
COPIED: Told = ("archive.unproven", {"prefix": "s3://a/b/unproven", "files": 3, "bytes": 12, "why": "no format"})
FAILED: Told = ("archive.failed", {"error": "the time is over"})
NEVER_BEGAN: Told = ("attempt.ended", {"attempt": 1, "failure": "user", "committed_at_end": -1, "began": False})
TRAINED = (BAKED, LAUNCHED, ended(9000), finished(9000))


@pytest.mark.parametrize(
    ("events", "known"),
    [
        ((*TRAINED, verified(9000), AT_ZERO), OWN),
        ((*TRAINED, verified(8000, accounts_for=9000), AT_ZERO), OWN),
        ((BAKED, LAUNCHED, ended(40), verified(40)), OWN),
        ((BAKED,), OWN),
        ((BAKED, TORN), OWN),
        ((BAKED, LAUNCHED, ended(-1), finished(-1, EMPTY), AT_ZERO), OWN),
        ((BAKED, LAUNCHED, NEVER_BEGAN, finished(-1), AT_ZERO), OWN),
        ((BAKED, LAUNCHED, ended(-1), finished(-1, LEFT), COPIED, AT_ZERO), OWN),
        ((BAKED, LAUNCHED, ended(-1), finished(-1), COPIED, AT_ZERO), OWN),
        ((BAKED, LAUNCHED, ended(-1), finished(-1), FAILED, AT_ZERO, COPIED, AT_ZERO), OWN),
        ((*TRAINED, COPIED, verified(9000), AT_ZERO), OWN),
        ((*TRAINED, ("abandoned", {})), OWN),
        ((*TRAINED, TORN, ("stage.finished", {"stage": Stage.TEARDOWN})), OWN),
        ((*TRAINED, ("archive.verified", {"manifest": "s3://a/b", "step": 9000})), ADOPTED),
        ((*TRAINED, ("archive.verified", {"manifest": "s3://a/b", "step": 9000})), None),
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
        ((*TRAINED, ("archive.verified", {"manifest": "s3://a/b", "step": 9000})), OWN, "without identity"),
        ((*TRAINED, AT_ZERO), OWN, "no verified archive"),
        ((BAKED, LAUNCHED), OWN, "no verified archive"),
        ((BAKED, LAUNCHED, ended(40), finished(-1), AT_ZERO), OWN, "no verified archive"),
        ((BAKED, LAUNCHED, ended(-1), finished(None), AT_ZERO), OWN, "no verified archive"),
        ((BAKED, LAUNCHED, ended(40), finished(40), verified(40), LAUNCHED), OWN, "no verified archive"),
        ((BAKED, LAUNCHED, ended(-1), finished(-1), AT_ZERO), OWN, "nobody could look at what the job left"),
        (
            (BAKED, LAUNCHED, ended(-1), finished(-1, LEFT), AT_ZERO),
            OWN,
            "3 files (12 B) of the job are no known check",
        ),
        ((BAKED, LAUNCHED, ended(-1), finished(-1, LEFT), COPIED, LAUNCHED, AT_ZERO), OWN, "no verified archive"),
        ((BAKED, LAUNCHED, ended(-1), finished(-1, LEFT), COPIED, FAILED, AT_ZERO), OWN, "no verified archive"),
        ((*TRAINED, COPIED, AT_ZERO), OWN, "newest checkpoint known: step 9000"),
        ((BAKED, LAUNCHED, ended(-1), finished(None, LEFT), COPIED, AT_ZERO), OWN, "no verified archive"),
        ((BAKED, LAUNCHED, NEVER_BEGAN, LAUNCHED_AGAIN, finished(-1), AT_ZERO), OWN, "nobody could look"),
        ((BAKED, UNREAD), OWN, "1 object of its record cannot be read"),
    ],
)
def test_whatever_may_be_lost_is_refused_with_what_is_known(
    events: tuple[Told, ...], known: CampaignIdentity | None, seen: str
) -> None:
    with pytest.raises(NotProven) as refused:
        refuse_unproven(told(*events), "train", known)
    assert seen in str(refused.value) and "`bivouac down train --abandon`" in str(refused.value)


SETTLED = [
    ((*TRAINED, verified(9000), AT_ZERO), True),
    ((BAKED, LAUNCHED, ended(-1), finished(-1), AT_ZERO), False),
    ((BAKED, LAUNCHED, ended(-1), finished(-1, LEFT), AT_ZERO), False),
    ((BAKED, LAUNCHED, ended(-1), finished(-1, EMPTY), AT_ZERO), True),
    ((BAKED, LAUNCHED, ended(-1), finished(-1, LEFT), COPIED, AT_ZERO), True),
    ((BAKED, LAUNCHED, ended(-1), finished(-1, LEFT), COPIED), False),
    ((*TRAINED, COPIED, FAILED, AT_ZERO), False),
]


@pytest.mark.parametrize(("events", "settled"), SETTLED)
def test_the_closer_ends_only_what_is_archived_copied_or_known_to_be_nothing(
    events: tuple[Told, ...], settled: bool
) -> None:
    assert told(*events).settled is settled


@pytest.mark.parametrize(("files", "named"), [(2, True), (0, False)])
def test_what_the_job_left_is_named_and_an_empty_folder_is_not(files: int, named: bool) -> None:
    left = {"files": files, "bytes": 9 * files, "newest": "out/last.bin" if files else ""}
    with pytest.raises(NotProven) as refused:
        refuse_unproven(told(BAKED, LAUNCHED, finished(7, left)), "example", OWN)
    assert ("file" in str(refused.value.seen)) == named
