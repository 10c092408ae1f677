"""What certifies that nothing is left: every look to its end, twice, and nothing seen that may be the campaign's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from infra.errors import NotProven
from infra.inventory import Knowledge, certify, survey
from infra.inventory.certify import Certificate, Looked, look_through, refuse_unclean
from infra.kinds import ResourceKind, Thing
from infra.record.payloads import payload_of
from infra.record.payloads.stages import StageStarted
from infra.record.store import CampaignStore
from infra.spec.names import Names
from tests.unit.record.cost_lines import line, lines
from tests.worlds.progress import SilentProgress
from tests.worlds.s3 import FakeS3, Time

NAMES, NOON = Names("train"), datetime(2026, 11, 1, 12, tzinfo=UTC)
OURS = Thing("vol-0aaaaaaaaaaaaaaa1", tags={"bivouac:campaign": "train"})
THEIRS = Thing("vol-0bbbbbbbbbbbbbbb2", tags={"bivouac:campaign": "another"})
UNTAGGED = Thing("vol-0ccccccccccccccc3", created=NOON + timedelta(hours=1))
DENIED = ClientError({"Error": {"Code": "AccessDenied", "Message": "not allowed"}}, "DescribeVolumes")
BUSY = ClientError({"Error": {"Code": "Throttling", "Message": "Rate exceeded"}}, "DescribeVolumes")
Answer = list[Any]
"""What one listing gives in turn; an error in it ends the listing there."""


def looks(monkeypatch: pytest.MonkeyPatch, **answers: Callable[[], Answer]) -> None:
    """The certificate looks at these kinds only, each as often as it likes."""

    def one(kind: str, answer: Callable[[], Answer]) -> ResourceKind:
        def listing(_: Any) -> Iterator[Thing]:
            for each in answer():
                if isinstance(each, Exception):
                    raise each
                yield each

        return ResourceKind(kind, "ec2", list=listing, attributable=kind != "generic")

    monkeypatch.setattr(certify, "LOOKS", tuple(one(kind, answer) for kind, answer in answers.items()))


def certificate(known: Knowledge | None = None) -> Certificate:
    account: Any = SimpleNamespace(region="us-east-1")
    return look_through(account, NAMES, "arn:me", "123456789012", ("kept",), known)


@pytest.mark.parametrize("error", [DENIED, EndpointConnectionError(endpoint_url="https://ec2")], ids=["denied", "gone"])
@pytest.mark.parametrize("before", [[], [THEIRS], [OURS]], ids=["at once", "after another's", "after ours"])
def test_a_listing_that_breaks_off_never_certifies_and_what_it_showed_counts(
    monkeypatch: pytest.MonkeyPatch, error: Exception, before: Answer
) -> None:
    looks(monkeypatch, volume=lambda: [*before, error], snapshot=lambda: [])
    seen = certificate()
    assert not seen.clean and len(seen.blind) == 1 and seen.blind[0].startswith("volume: ")
    assert seen.found == (("volume vol-0aaaaaaaaaaaaaaa1",) if before == [OURS] else ())
    assert seen.looks[0].listed == len(before) and seen.looks[1].could_not_look is None
    with pytest.raises(NotProven, match="could not look: volume"):
        refuse_unclean(seen)


def test_each_look_that_failed_blinds_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    looks(monkeypatch, volume=lambda: [THEIRS], snapshot=lambda: [DENIED], image=lambda: [BUSY], role=lambda: [])
    seen = certificate()
    assert [one.partition(":")[0] for one in seen.blind] == ["snapshot", "image"] and not seen.clean
    assert [one.partition(":")[0] for one in seen.transient] == ["image"]


def test_nothing_of_ours_seen_to_the_end_is_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    looks(monkeypatch, volume=lambda: [THEIRS], snapshot=lambda: [])
    seen = certificate()
    assert seen.clean and not seen.suspects and [look.listed for look in seen.looks] == [1, 0]
    refuse_unclean(seen)


def test_one_thing_of_ours_among_others_is_left_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    looks(monkeypatch, volume=lambda: [THEIRS, OURS])
    seen = certificate()
    assert seen.found == seen.certain == ("volume vol-0aaaaaaaaaaaaaaa1",) and not seen.clean
    assert seen.looks[0].evidence == ("campaign tag",) and seen.looks[0].doubts == ("",)
    with pytest.raises(NotProven, match="left: volume vol-0aaaaaaaaaaaaaaa1"):
        refuse_unclean(seen)


def test_each_thing_that_is_left_keeps_its_own_evidence_and_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    named = Thing("x-1", "bivouac-train", doubt="ask EKS")
    looks(monkeypatch, cluster=lambda: [OURS, THEIRS, named])
    (row,) = certificate().looks
    assert row.evidence == ("campaign tag", "name") and row.doubts == ("", "ask EKS")
    assert certificate().certain == ("cluster vol-0aaaaaaaaaaaaaaa1",)


def test_two_things_of_one_name_or_id_are_two(monkeypatch: pytest.MonkeyPatch) -> None:
    several = [Thing(f"sg-0aaaaaaaaaaaaaaa{n}", "web", {"bivouac:campaign": "train"}) for n in (1, 2)]
    looks(monkeypatch, **{"security group": lambda: several})
    assert len(certificate().found) == 2
    looks(monkeypatch, volume=lambda: [OURS], snapshot=lambda: [OURS])
    assert len(certificate().found) == 2


def test_what_tags_could_not_be_read_of_blinds_unless_it_was_there_before(monkeypatch: pytest.MonkeyPatch) -> None:
    locked = {kind: [Thing(id, unread="AccessDenied")] for kind, id in (("bucket", "locked"), ("role", "r"))}
    looks(monkeypatch, **{kind: partial(list, things) for kind, things in locked.items()})
    seen = certificate()
    told = ("bucket: AccessDenied: the tags of locked", "role: AccessDenied: the tags of r")
    assert not seen.clean and seen.blind == told
    seen = certificate(Knowledge(NAMES, before={"bucket": frozenset({"locked"}), "role": frozenset({"r"})}))
    assert seen.clean and seen.unread == ("bucket locked", "role r")


def test_a_listing_that_broke_off_is_told_before_tags_that_could_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    looks(monkeypatch, bucket=lambda: [Thing("locked", unread="NoTags"), DENIED])
    assert certificate().looks[0].could_not_look == f"AccessDenied: {DENIED}"


def test_what_is_new_and_untagged_is_shown_of_kinds_that_a_human_can_attribute(monkeypatch: pytest.MonkeyPatch) -> None:
    looks(monkeypatch, volume=lambda: [UNTAGGED], generic=lambda: [UNTAGGED])
    seen = certificate(Knowledge(NAMES, began=NOON))
    assert len(seen.suspects) == 1 and seen.suspects[0].startswith("volume vol-0ccc") and seen.clean


def looked(**fields: Any) -> Certificate:
    rows = tuple(Looked(service="s", kind=kind, listed=1, **more) for kind, more in fields.items())
    return Certificate(
        campaign="train", account="1", region="us-east-1", principal="p", at=NOON, looks=rows, kept=()
    )  # fmt: skip


def test_what_the_tagging_service_alone_shows_is_perhaps_left_since_it_was_first_seen() -> None:
    doubtful = {"found": ("arn:x", "arn:y"), "doubts": ("ask ECR", "")}
    seen = looked(tagged=doubtful)
    assert seen.doubted == {"tagged arn:x": "ask ECR"} and seen.certain == ("tagged arn:y",) and not seen.clean
    assert looked(tagged={"found": ("x", "y"), "doubts": ("", "ask")}).doubted == {"tagged y": "ask"}
    assert looked(volume={"found": ("x",)}).certain == ("volume x",), "an older certificate knows no doubts"
    earlier = {"doubted_since": {"tagged arn:x": (NOON - timedelta(days=1)).isoformat(), "tagged gone": "2020-01-01"}}
    store: Any = SimpleNamespace(get_json=lambda name: earlier if name == "certificate.json" else None)
    dated = certify._with_dates(store, seen)
    assert dated.doubted_since == {"tagged arn:x": NOON - timedelta(days=1)}
    with pytest.raises(
        NotProven, match=r"left: tagged arn:y; perhaps left: tagged arn:x \(ask ECR, first seen 2026-10"
    ):
        refuse_unclean(dated)
    store = SimpleNamespace(get_json=lambda name: None)
    assert certify._with_dates(store, seen).doubted_since == {"tagged arn:x": NOON}


def test_a_refusal_names_all_that_is_left_or_was_not_seen() -> None:
    left, perhaps = {"found": ("v-1", "v-2")}, {"found": ("x", "y"), "doubts": ("ask", "ask")}
    blind = {"could_not_look": "AccessDenied"}
    with pytest.raises(NotProven) as refused:
        refuse_unclean(looked(volume=left, tagged=perhaps, role=blind, policy=blind))
    assert refused.value.seen == (
        "left: volume v-1; left: volume v-2; perhaps left: tagged x (ask); perhaps left: tagged y (ask); "
        "could not look: role: AccessDenied; could not look: policy: AccessDenied"
    )


@pytest.mark.parametrize(
    ("words", "passes"),
    [("Throttling: Rate exceeded", True), ("InternalError: 500", True), ("AccessDenied: no", False)],
)
def test_only_what_aws_may_answer_another_time_is_asked_again(words: str, passes: bool) -> None:
    seen = looked(volume={"could_not_look": words}, snapshot={})
    assert seen.blind == (f"volume: {words}",) and bool(seen.transient) is passes and not seen.clean


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
    assert [one.partition(" ")[0] for one in told.suspects] == ["volume", "image"]
    assert notes == [
        *(f"suspect: {one}" for one in told.suspects),
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
