"""The looks that end in a certificate: how often they are made, from which baseline, and what is kept of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.errors import NotProven
from infra.inventory import Knowledge, certify, survey
from infra.inventory.certify import Certificate
from infra.kinds import Thing
from infra.record.payloads import payload_of
from infra.record.payloads.stages import StageStarted
from infra.record.store import CampaignStore
from tests.unit.inventory.test_certificate import (
    BUSY,
    DENIED,
    NAMES,
    NOON,
    OURS,
    THEIRS,
    UNTAGGED,
    Answer,
    looks,
)
from tests.unit.record.cost_lines import line, lines
from tests.worlds.progress import SilentProgress
from tests.worlds.s3 import FakeS3, Time


class Clock:
    """Time that passes only where somebody waits for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        # Some hundred looks, each with threads of its own, would cost more than all other tests together.
        monkeypatch.setattr(survey, "ThreadPoolExecutor", lambda *_, **__: nullcontext(SimpleNamespace(map=map)))
        monkeypatch.setattr(certify, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep))

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def store() -> CampaignStore:
    """The record, in memory; each event comes an hour after the one before."""
    hours = count()
    return CampaignStore(FakeS3(Time()), "state", "train", "w", now=lambda: NOON + timedelta(hours=next(hours)))


def campaign(**more: Any) -> Any:
    """A context of which only the certificate's part is there."""
    return SimpleNamespace(
        account=SimpleNamespace(region="us-east-1"), names=NAMES, operator_arn="arn:me",
        spec=SimpleNamespace(account="123456789012"), plan=SimpleNamespace(cost=(*lines(2, 80), line("rest", usd=5))),
        **{
            "turns": lambda seconds: iter([None]),
            "progress": SilentProgress(), **more,
        },
    )  # fmt: skip


STEPS: list[str] = []
"""What was said meanwhile."""


def settled(monkeypatch: pytest.MonkeyPatch, *answers: Answer) -> tuple[Certificate, int, float]:
    """The certificate over listings that answer so in turn, the last for ever; how many looks, how long it waited."""
    clock, asked = Clock(monkeypatch), 0
    STEPS.clear()

    def answer() -> Answer:
        nonlocal asked
        asked += 1
        return answers[min(asked, len(answers)) - 1]

    def turns(seconds: float) -> Iterator[None]:
        for _ in range(2):
            clock.sleep(seconds / 2)
            yield

    looks(monkeypatch, volume=answer)
    monkeypatch.setattr(certify, "stays_on_purpose", lambda context: ())
    progress = SilentProgress(steps=STEPS)
    certificate = certify._certify_until_settled(campaign(progress=progress, turns=turns), Knowledge(NAMES))
    return certificate, asked, clock.now - 1000.0


def test_nothing_seen_once_is_looked_for_again_after_the_listings_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, asked, waited = settled(monkeypatch, [], [])
    assert seen.clean and asked == 2 and waited == 3.0
    seen, asked, _ = settled(monkeypatch, [], [OURS])
    assert not seen.clean and asked == 2, "what comes late is found"


def test_what_is_on_its_way_out_is_given_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, asked, _ = settled(monkeypatch, [OURS], [OURS], [OURS], [])
    assert seen.clean and asked == 5, "until it is gone, and once more"


def test_what_stays_is_waited_for_a_minute_and_what_may_be_a_ghost_for_five(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, asked, waited = settled(monkeypatch, [OURS])
    assert not seen.clean and waited == 60.0 and asked == waited + 1, "a look each second"
    assert set(STEPS) == {"still seen: volume vol-0aaaaaaaaaaaaaaa1; listings may lag"}
    stale = Thing("arn:aws:ecr:us-east-1:1:repository/x", tags={"bivouac:campaign": "train"}, doubt="ask")
    seen, _, waited = settled(monkeypatch, [stale])
    assert not seen.clean and waited == 300.0
    seen, _, waited = settled(monkeypatch, [stale, DENIED])
    assert not seen.clean and 60.0 <= waited <= 62.0, "a look that was refused will not be answered by waiting"


def test_a_throttled_look_is_made_again_and_a_denied_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, asked, _ = settled(monkeypatch, [BUSY], [BUSY], [])
    assert seen.clean and asked == 4
    assert STEPS[0] == f"could not look yet: volume: Throttling: {BUSY}" and STEPS[2].startswith("nothing is seen")
    seen, asked, _ = settled(monkeypatch, [DENIED])
    assert not seen.clean and asked == 2
    seen, asked, _ = settled(monkeypatch, [], [BUSY], [])
    assert seen.clean and asked == 3, "the second look may be the throttled one"


def test_the_baseline_is_taken_once_and_holds_no_kind_that_broke_off(monkeypatch: pytest.MonkeyPatch) -> None:
    looks(
        monkeypatch,
        volume=lambda: [UNTAGGED, THEIRS],
        snapshot=lambda: [THEIRS, DENIED],
        image=lambda: [THEIRS],
        role=lambda: [],
    )
    context = campaign(store=store())
    certify.note_baseline(context)
    noted = {"volume": [THEIRS.id, UNTAGGED.id], "image": [THEIRS.id], "role": []}
    assert context.store.get_json("baseline.json") == noted
    looks(monkeypatch, volume=lambda: pytest.fail("what comes later is no part of it"))
    certify.note_baseline(context)


def test_the_record_tells_where_the_campaign_was_and_what_was_there_before() -> None:
    names = (
        "vpc_id", "gpu_subnet_id", "system_subnet_id", "node_security_group_id", "file_system_id", "node_role_arn",
        "steward_role_arn", "trainer_role_arn", "archive_role_arn",
    )  # fmt: skip
    texts = [name for name in certify.CampaignOutputs.model_fields if name != "network_made"]
    outputs = dict.fromkeys(texts, "x") | {name: f"id-{name}" for name in names}
    record = store()
    for kind, data in (
        ("stage.started", {"stage": "provision"}),
        ("stage.finished", {"stage": "provision", "seconds": 1.0, "outputs": {"outputs": outputs}}),
        ("stage.finished", {"stage": "launch", "seconds": 1.0, "outputs": {}}),
        ("stage.started", {"stage": "launch", "instance": "i-0123456789abcdef0"}),
    ):
        record.append(payload_of(kind, data))
    record.put_json("baseline.json", {"volume": ["vol-1"], "image": ["ami-1", "ami-2"]})
    known = certify.knowledge(record, NAMES)
    assert known.places == {*(f"id-{name}" for name in names), "i-0123456789abcdef0"}
    assert known.began == NOON and known.region == "eu-north-1"
    assert known.before == {"volume": {"vol-1"}, "image": {"ami-1", "ami-2"}}
    assert certify.knowledge(store(), NAMES).began is None


def test_a_certificate_says_how_much_was_looked_through_and_what_a_human_is_to_judge(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Clock(monkeypatch)
    monkeypatch.setattr(certify, "stays_on_purpose", lambda context: ())
    locked, notes = Thing("locked", unread="AccessDenied"), list[str]()
    record = store()
    record.append(StageStarted(stage="provision"))
    record.put_json("baseline.json", {"bucket": ["locked"]})
    progress = SilentProgress(notes)
    context = campaign(store=record, results=tmp_path, progress=progress)
    looks(monkeypatch, volume=lambda: [THEIRS], bucket=lambda: [locked])
    certify.run(context)
    assert notes == [
        "older than the campaign, with unreadable tags: bucket locked",
        "certificate: 2 kinds looked through, 2 resources seen, none is ours",
    ]
    notes.clear()
    looks(monkeypatch, volume=lambda: [THEIRS, UNTAGGED], image=lambda: [UNTAGGED, THEIRS])
    told = certify.run(context)
    assert [suspect.partition(" ")[0] for suspect in told.suspects] == ["volume", "image"]
    assert notes == [
        *(f"suspect: {suspect}" for suspect in told.suspects),
        "certificate: 2 kinds looked through, 4 resources seen, none is ours; 2 suspects for a human to judge",
    ]


@pytest.mark.parametrize("answer", [[], [OURS], [DENIED]], ids=["clean", "left", "blind"])
def test_the_certificate_is_kept_whatever_it_says_and_raises_unless_clean(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: Answer
) -> None:
    Clock(monkeypatch)
    looks(monkeypatch, volume=lambda: answer)
    monkeypatch.setattr(certify, "stays_on_purpose", lambda context: ("s3://kept",))
    context = campaign(store=store(), results=tmp_path)
    if answer:
        with pytest.raises(NotProven):
            certify.run(context)
    else:
        assert certify.run(context).clean is True
    told = context.store.get_json("certificate.json")
    assert told == json.loads((tmp_path / "certificate.json").read_text())
    assert bool(told["looks"][0]["found"]) == (answer == [OURS]) and told["kept"] == ["s3://kept"]
    (certified,) = context.store.events()
    assert certified.kind == "certified" and certified.data["clean"] is (not answer)
