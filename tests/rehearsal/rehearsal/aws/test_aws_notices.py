"""Notices over HTTP, with the rights that the stack gives to the steward: on one topic, also if a key encrypts it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from infra.errors import UserError
from infra.notices.notice import Notice, NotSent
from infra.notices.outbox import Outbox
from infra.notices.ways import recipients, subscribe, ways
from infra.record.payloads import payload_of
from infra.record.store import CampaignStore
from infra.rehearsal.aws.world import World
from infra.rehearsal.site import secrets as site
from infra.spec.campaign import Spec
from infra.spec.names import NOTICES, buckets
from infra.stack.access import policies
from infra.stack.access.key import key_policy
from tests.example import example_spec
from tests.rehearsal.aws_account import Account, code_of, make_user, signed_in

pytestmark = pytest.mark.usefixtures("answers_as_modelled")
NOTICE = Notice("bivouac train: held", "for you to judge")
STATE = buckets("123456789012", "us-east-1").state


def spec(**notify: Any) -> Spec:
    return example_spec(target="rehearsal", notify=notify)


def told(world: World, topic: str) -> list[str]:
    """Subjects of what was published."""
    return [str(notification[2]) for notification in world.backend("sns").topics[topic].sent_notifications]


@pytest.fixture
def topic(aws: Account) -> Iterator[str]:
    arn = str(aws.sns.create_topic(Name=NOTICES)["TopicArn"])
    yield arn
    aws.sns.delete_topic(TopicArn=arn)


@pytest.fixture
def steward(world: World, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Account:
    """Somebody with the rights of the steward's role, who is signed in."""
    key = make_user(world, f"steward-{abs(hash(request.node.name))}", *policies.steward(spec()))
    signed_in(monkeypatch, world, key)
    return Account(world, *key)


def test_a_steward_publishes_on_the_one_topic_and_on_no_other(
    world: World, aws: Account, topic: str, steward: Account
) -> None:
    ways(spec())["topic"](NOTICE)
    assert told(world, topic) == [NOTICE.subject]
    other = str(aws.sns.create_topic(Name="payroll")["TopicArn"])
    with pytest.raises(NotSent, match=r"AuthorizationError|AccessDenied"):
        ways(spec(topic=other))["topic"](NOTICE)
    assert code_of(lambda: steward.sns.subscribe(TopicArn=topic, Protocol="email", Endpoint="eve@example.com"))
    assert not told(world, other)


def test_a_topic_that_is_not_there_is_told_by_its_code(world: World, steward: Account) -> None:
    with pytest.raises(NotSent, match="bivouac_notices: NotFound"):
        ways(spec())["topic"](NOTICE)


def test_an_encrypted_topic_asks_the_key_of_its_publisher(
    world: World, aws: Account, topic: str, steward: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = json.dumps(key_policy(world.account, world.region))
    key = aws.kms.create_key(Policy=policy)["KeyMetadata"]["Arn"]
    aws.sns.set_topic_attributes(TopicArn=topic, AttributeName="KmsMasterKeyId", AttributeValue=key)
    ways(spec())["topic"](NOTICE)
    keyless = [one for one in policies.steward(spec()) if "sns.us-east-1" not in json.dumps(one.get("Condition", {}))]
    signed_in(monkeypatch, world, make_user(world, "keyless", *keyless))
    with pytest.raises(NotSent, match=r"bivouac_notices: (AccessDenied|KMSAccessDenied)"):
        ways(spec())["topic"](NOTICE)
    assert len(told(world, topic)) == 1


def test_a_whole_record_is_told_with_the_stewards_rights(
    world: World, aws: Account, topic: str, steward: Account
) -> None:
    aws.s3.create_bucket(Bucket=STATE)
    store = CampaignStore(steward.s3, STATE, "example", "steward-1")
    for kind, data in (
        ("attempt.running", {"attempt": 1, "nodes": ["a"]}),
        ("node.quarantined", {"node": "a", "instance": "i-1", "reason": "dead"}),
        ("archive.verified", {"step": 60, "objects": 9}),
    ):
        store.append(payload_of(kind, data))
    for _ in range(2):
        Outbox(store, spec().notify, ways(spec()), lambda: datetime.now(UTC)).tell(lambda: "bills now: 1.00 USD/h")
    assert [subject.partition(": ")[2][:12] for subject in told(world, topic)] == [
        "training has", "node a (i-1)", "step 60 is i",
    ]  # fmt: skip


def test_addresses_are_subscribed_once_and_only_they(world: World, aws: Account, topic: str, here: Any) -> None:
    asked = spec(email=["ada@example.com", "bob@example.com"])
    assert subscribe(here, spec()) == []
    assert subscribe(here, asked) == ["ada@example.com", "bob@example.com"]
    assert subscribe(here, spec(email=["bob@example.com", "eve@example.com"])) == ["eve@example.com"]
    subscriptions = aws.sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]
    assert sorted(one["Endpoint"] for one in subscriptions) == ["ada@example.com", "bob@example.com", "eve@example.com"]


def test_a_rehearsals_webhook_is_read_from_where_the_spec_says(
    world: World, aws: Account, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The stored address is of plain HTTP: so the refusal shows that it was read, and does not show it."""
    signed_in(monkeypatch, world)
    file = tmp_path / "secrets"
    file.write_text("NOTIFY_WEBHOOK=http://hooks.example.com/hush-hush\n")
    hook = {"webhook": {"secret": "bivouac_webhook", "key": "url"}}
    asked = example_spec(target="rehearsal", notify=hook, rehearsal={"secrets": str(file)})
    site.give(asked)
    signed_in(monkeypatch, world, make_user(world, "hooked", *policies.steward(asked)))
    with pytest.raises(NotSent, match="does not begin with https") as refused:
        ways(asked)["webhook"](NOTICE)
    assert "hush" not in str(refused.value)
    signed_in(monkeypatch, world, make_user(world, "unhooked", *policies.steward(spec())))
    with pytest.raises(NotSent, match="secret bivouac_webhook in us-east-1: AccessDenied"):
        ways(asked)["webhook"](NOTICE)
    file.write_text("ANOTHER=https://x\n")
    with pytest.raises(UserError, match="NOTIFY_WEBHOOK"):
        site.give(asked)


def test_a_rehearsals_routes_are_read_from_where_the_spec_says_and_only_by_its_roles(
    world: World, aws: Account, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    signed_in(monkeypatch, world)
    file = tmp_path / "secrets"
    file.write_text("NOTIFY_ON_CALL=json://hooks.example.com/hush-hush\n")
    routes = {"routes": {"on-call": {"parameter": "/bivouac_webhook/on-call"}}}
    wanted = example_spec(target="rehearsal", notify=routes, rehearsal={"secrets": str(file)})
    site.give(wanted)
    signed_in(monkeypatch, world, make_user(world, "routed", *policies.steward(wanted)))
    with pytest.raises(NotSent, match="without encryption") as refused:
        ways(wanted)["on-call"](NOTICE)
    assert "hush" not in str(refused.value)
    signed_in(monkeypatch, world, make_user(world, "unrouted", *policies.steward(spec())))
    with pytest.raises(NotSent, match="the route on-call's address cannot be read"):
        ways(wanted)["on-call"](NOTICE)
    file.write_text("ANOTHER=https://x\n")
    with pytest.raises(UserError, match="NOTIFY_ON_CALL"):
        site.give(wanted)


def test_a_topic_says_who_gets_its_messages_and_who_has_not_confirmed(
    aws: Account, topic: str, here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert recipients(here, topic) == "it goes to nobody"
    subscribe(here, spec(email=["ada@example.com"]))
    rows = aws.sns.list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]
    waits = rows[0]["SubscriptionArn"] == "PendingConfirmation"
    assert recipients(here, topic) == "it goes to email ada@example.com" + (" (not confirmed)" if waits else "")
    assert recipients(here, topic.replace(NOTICES, "bivouac_none")) == "its subscribers cannot be listed: NotFound"


def test_a_published_notice_is_told_by_its_message(topic: str, steward: Account) -> None:
    answer = ways(spec())["topic"](NOTICE)
    assert answer is not None and answer.startswith(f"{topic} took it as message ") and len(answer.split()[-1]) == 36
