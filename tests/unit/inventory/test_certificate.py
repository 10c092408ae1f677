"""What certifies that nothing is left: every look to its end, twice, and nothing seen that may be the campaign's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from infra.errors import NotProven
from infra.inventory import Knowledge, certify
from infra.inventory.certify import Certificate, Looked, look_through, refuse_unclean
from infra.kinds import ResourceKind, Thing
from infra.spec.names import Names

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
    thing = Thing("x-1", "bivouac-train", doubt="ask EKS")
    looks(monkeypatch, cluster=lambda: [OURS, THEIRS, thing])
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
