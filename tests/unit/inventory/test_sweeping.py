"""What a sweep removes and what it leaves: by evidence, in order, and again while something holds a thing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from infra.errors import LeaseLost
from infra.inventory import Evidence, Knowledge, sweep
from infra.inventory.sweep import Leftover, Swept, beyond_doubt, order
from infra.kinds import BY_NAME, KINDS, ResourceKind, Thing
from infra.spec.names import CAMPAIGN_ID_TAG, Names
from tests.worlds.progress import SilentProgress

REMOVABLE = {Evidence.TAG, Evidence.CLUSTER, Evidence.PLACE, Evidence.LOGS, Evidence.UNPLACED}
UNASKED = {Evidence.TAG, Evidence.CLUSTER, Evidence.LOGS}


def refusal(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "no"}}, "Delete")


@pytest.mark.parametrize("why", Evidence)
def test_kinship_and_a_name_remove_nothing_and_a_place_only_after_a_yes(why: Evidence) -> None:
    one = Leftover("volume", Thing("vol-1"), why)
    assert one.removable is (why in REMOVABLE) and beyond_doubt(one) is (why in UNASKED)
    unknown = Leftover("anything tagged", Thing("arn:x"), why)
    assert not unknown.removable and not beyond_doubt(unknown), "of no kind that we know how to remove"


def test_what_holds_others_goes_first() -> None:
    kinds = [
        "VPC",
        "subnet",
        "security group",
        "network interface",
        "instance",
        "cluster",
        "Auto Scaling group",
        "role",
    ]
    rows = sorted((Leftover(kind, Thing("x"), Evidence.TAG) for kind in [*kinds, "anything tagged"]), key=order)
    assert [row.kind for row in rows] == [
        "Auto Scaling group", "cluster", "instance", "network interface", "security group", "subnet", "VPC", "role",
        "anything tagged",
    ]  # fmt: skip


def test_what_cannot_be_removed_is_told_after_all_that_can() -> None:
    places = {kind.name: order(Leftover(kind.name, Thing("x"), Evidence.TAG))[0] for kind in KINDS}
    removable = [places[kind.name] for kind in KINDS if kind.remove]
    assert all(places[kind.name] > max(removable) for kind in KINDS if not kind.remove)
    assert len(set(removable)) == len(removable)


class SweptAccount:
    """Removals answer in turn; time passes only where somebody waits for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **answers: list[Exception | None]) -> None:
        self.answers, self.called, self.now, self.lost_after = answers, list[str](), 0.0, 10**6
        monkeypatch.setitem(BY_NAME, "volume", ResourceKind("volume", remove=self._remove))
        monkeypatch.setattr(sweep, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(sweep, "turns", self._turns)
        self.account: Any = None
        self.store: Any = None
        self.progress: Any = SilentProgress()

    def _turns(self, seconds: float) -> Iterator[None]:
        for _ in range(2):
            self.now += seconds / 2
            yield

    def guard(self) -> None:
        if len(self.called) >= self.lost_after:
            raise LeaseLost("another driver", seen="it", cure="wait")

    def _remove(self, account: Any, one: Thing) -> None:
        self.called.append(one.id)
        several = self.answers.get(one.id, [None])
        answer = several.pop(0) if len(several) > 1 else several[0]
        if answer is not None:
            raise answer

    def sweep(self, *ids: str) -> Swept:
        return sweep.remove(self, [Leftover("volume", Thing(id), Evidence.TAG) for id in ids])


def ids(rows: tuple[Leftover, ...]) -> list[str]:
    return [row.thing.id for row in rows]


def test_what_is_held_is_tried_again_until_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    world = SweptAccount(monkeypatch, held=[refusal("DependencyViolation"), refusal("DependencyViolation"), None])
    swept = world.sweep("held", "free")
    assert ids(swept.removed) == ["free", "held"] and not swept.stuck
    assert world.called == ["held", "free", "held", "held"] and world.now == 2.0


def test_what_never_lets_go_is_told_after_five_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    world = SweptAccount(monkeypatch, held=[refusal("DependencyViolation")])
    swept = world.sweep("held")
    assert not swept.removed and [(one.thing.id, why) for one, why in swept.stuck] == [
        ("held", "DependencyViolation: no")
    ]
    assert world.now == 300.0


@pytest.mark.parametrize("code", ["InvalidVolume.NotFound", "NoSuchEntity", "ResourceNotFoundException"])
def test_what_is_gone_already_counts_as_removed(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    assert ids(SweptAccount(monkeypatch, gone=[refusal(code)]).sweep("gone").removed) == ["gone"]


@pytest.mark.parametrize("code", ["UnauthorizedOperation", "AccessDenied", "InvalidParameterValue"])
def test_a_final_refusal_is_told_at_once_and_stops_nothing_else(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    world = SweptAccount(monkeypatch, denied=[refusal(code)])
    swept = world.sweep("denied", "free")
    assert ids(swept.removed) == ["free"] and world.called == ["denied", "free"] and world.now == 0.0
    assert [why for _, why in swept.stuck] == [f"{code}: no"]


def test_no_answer_at_all_is_no_removal(monkeypatch: pytest.MonkeyPatch) -> None:
    swept = SweptAccount(monkeypatch, far=[EndpointConnectionError(endpoint_url="https://ec2")]).sweep("far")
    assert not swept.removed and ids(tuple(one for one, _ in swept.stuck)) == ["far"]


def test_a_kind_that_cannot_be_removed_here_is_told_and_stops_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    world = SweptAccount(monkeypatch)
    rows = [Leftover(kind, Thing(kind), Evidence.TAG) for kind in ("anything tagged", "volume")]
    swept = sweep.remove(world, rows)
    assert ids(swept.removed) == ["volume"]
    assert [(row.kind, why) for row, why in swept.stuck] == [
        ("anything tagged", "resources of this kind cannot be removed here")
    ]


def test_a_lost_lease_stops_before_the_next_removal(monkeypatch: pytest.MonkeyPatch) -> None:
    world = SweptAccount(monkeypatch)
    world.lost_after = 1
    with pytest.raises(LeaseLost):
        world.sweep("first", "second")
    assert world.called == ["first"]


def test_after_a_teardown_only_what_is_beyond_doubt_and_stays_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    world, notes = SweptAccount(monkeypatch), list[str]()
    world.progress = SilentProgress(notes)
    recorded = list[tuple[str, list[str]]]()
    world.store = SimpleNamespace(append=lambda payload: recorded.append((payload.kind, payload.data()["things"])))
    rows = [Leftover("volume", Thing(f"by-{why.name}"), why) for why in Evidence]
    rows.append(Leftover("volume", Thing("by-aws", maker="GuardDuty"), Evidence.PLACE))
    rows.append(Leftover("volume", Thing("leaving", leaving=True), Evidence.TAG))
    monkeypatch.setattr(
        sweep, "look", lambda context: sweep.Sight(tuple(rows), (), {"role": "AccessDenied", "key": "no"})
    )
    removed: Any = sweep.remove_left(world)  # type: ignore[arg-type]
    assert sorted(world.called) == ["by-CLUSTER", "by-LOGS", "by-TAG", "by-aws"] and len(removed) == 4
    assert recorded == [("swept", list(removed))] and "volume by-aws, made by GuardDuty" in removed
    blind = ["could not look for leftovers: role: AccessDenied", "could not look for leftovers: key: no"]
    assert notes == blind
    notes.clear()
    world.answers |= {"by-TAG": [refusal("AccessDenied")], "by-LOGS": [refusal("AccessDenied")]}
    assert sweep.remove_left(world) == ("volume by-CLUSTER", "volume by-aws, made by GuardDuty")  # type: ignore[arg-type]
    assert notes == [*blind, *(f"volume by-{why} would not go: AccessDenied: no" for why in ("TAG", "LOGS"))]


def campaigns_own(**more: str) -> dict[str, str]:
    return {"bivouac:campaign": "train", **more}


def test_a_look_shows_what_is_left_in_the_order_of_removal_with_what_blinds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name may have been used twice: what carries another campaign's identity is that one's."""
    own, other = campaigns_own(**{CAMPAIGN_ID_TAG: "id-1"}), campaigns_own(**{CAMPAIGN_ID_TAG: "id-0"})
    fresh: dict[str, Any] = {"tags": {}, "created": datetime(2026, 11, 2, tzinfo=UTC)}
    seen = {
        "VPC": [Thing("vpc-1", tags=own)],
        "volume": [Thing("vol-2", tags=other), Thing("vol-1", tags=campaigns_own()), Thing("vol-3", **fresh),
                   Thing("vol-4", **fresh), Thing("vol-5", tags={"bivouac:campaign": "another"})],
        "bucket": [Thing("locked", unread="AccessDenied")],
        "anything tagged": [Thing("arn:x", **fresh)],
    }  # fmt: skip
    monkeypatch.setattr(
        sweep, "survey_all", lambda account, kinds: (seen, {"role": "Throttling: no", "bucket": "first"})
    )
    knowledge = Knowledge(Names("train"), began=datetime(2026, 11, 1, tzinfo=UTC))
    monkeypatch.setattr(sweep, "knowledge", lambda store, names: knowledge)
    context: Any = SimpleNamespace(store=None, names=None, account=None, identity="id-1")
    sight = sweep.look(context)
    assert [(one.kind, one.thing.id, one.foreign, one.removable) for one in sight.left] == [
        ("volume", "vol-1", "", True), ("volume", "vol-2", "id-0", False), ("VPC", "vpc-1", "", True),
    ]  # fmt: skip
    assert [beyond_doubt(one) for one in sight.left] == [True, False, True]
    assert [(suspect.kind, suspect.thing.id) for suspect in sight.suspects] == [
        ("volume", "vol-3"),
        ("volume", "vol-4"),
    ]
    assert sight.blind == {"role": "Throttling: no", "bucket": "first"}
    monkeypatch.setattr(sweep, "survey_all", lambda account, kinds: (seen, {}))
    assert sweep.look(context).blind == {"bucket": "AccessDenied: the tags of locked"}
    context.identity = ""
    assert {one.thing.id: one.foreign for one in sweep.look(context).left} == {
        "vol-1": "", "vol-2": "id-0", "vpc-1": "id-1",
    }, "a record without an identity owns nothing that has one"  # fmt: skip


def test_what_is_left_is_told_with_its_doubt_its_birth_and_its_price() -> None:
    born = datetime(2026, 11, 1, tzinfo=UTC)
    gateway = Leftover("NAT gateway", Thing("nat-0aaaaaaaaaaaaaaa1", "web", created=born), Evidence.TAG)
    assert str(gateway) == "NAT gateway web (nat-0aaaaaaaaaaaaaaa1)" and gateway.created == born
    assert gateway.usd_per_hour == Decimal("0.045")
    assert str(Leftover("role", Thing("r", doubt="ask IAM"), Evidence.TAG)) == "role r (ask IAM)"


def test_a_sum_has_what_is_known_and_counts_what_is_not() -> None:
    assert sweep.total([]) == (Decimal(0), 0)
    assert sweep.total([Decimal("1.5"), None, Decimal(2), None]) == (Decimal("3.5"), 2)
    assert sweep.rate_text(None) == "?" and sweep.rate_text(Decimal("1.23456")) == "1.235"
    assert sweep.sum_text([Decimal(1)]) == "together 1.000 USD/h"
    assert sweep.sum_text([None]) == "together 0.000 USD/h, and 1 whose price is not in the catalogue"


def test_what_leaves_bills_no_more() -> None:
    nat = Thing(id="nat-1", name="n", tags={}, leaving=True)
    assert sweep.usd_per_hour("NAT gateway", nat) == 0
