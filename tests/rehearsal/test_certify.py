"""The certificate against the emulated AWS: it names what was left, and what it could not look at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from aws_account import Account, make_user

from infra.account import Account as Ours
from infra.errors import NotProven
from infra.lifecycle.certify import look_through, refuse_unclean
from infra.names import CAMPAIGN_TAG, Names
from infra.rehearsal.aws.world import World

NAMES = Names("leaky")


@pytest.fixture
def account(world: World, monkeypatch: pytest.MonkeyPatch) -> Any:
    def sign_in(key: str, secret: str) -> Ours:
        monkeypatch.setenv("AWS_ENDPOINT_URL", world.endpoint_url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
        return Ours(world.region)

    return sign_in


def tagged(kind: str) -> list[dict[str, Any]]:
    return [{"ResourceType": kind, "Tags": [{"Key": CAMPAIGN_TAG, "Value": NAMES.campaign}]}]


def certificate(account: Ours) -> Any:
    return look_through(account, NAMES, "arn:test", "123456789012", ())


def test_nothing_left_is_certified_clean(world: World, account: Any) -> None:
    found = certificate(account(*world.operator_key))
    assert found.clean, (found.found, found.blind)
    assert len(found.looks) > 20 and sum(look.listed for look in found.looks) > 5, "it has looked at what there is"


def test_a_volume_left_behind_is_named_and_ends_with_an_error(
    world: World,
    aws: Account,
    account: Any,
) -> None:
    volume = aws.ec2.create_volume(AvailabilityZone="us-east-1a", Size=1, TagSpecifications=tagged("volume"))[
        "VolumeId"
    ]
    found = certificate(account(*world.operator_key))
    assert f"volume {volume}" in found.found and not found.clean
    with pytest.raises(NotProven, match=volume) as refusal:
        refuse_unclean(found)
    assert refusal.value.exit_code != 0
    aws.ec2.delete_volume(VolumeId=volume)


def test_what_carries_only_the_name_is_found_too(
    world: World,
    aws: Account,
    account: Any,
    network: SimpleNamespace,
) -> None:
    aws.logs.create_log_group(logGroupName=NAMES.log_group)
    aws.iam.create_role(RoleName=NAMES.node_role, AssumeRolePolicyDocument='{"Version":"2012-10-17","Statement":[]}')
    found = certificate(account(*world.operator_key))
    assert {f"log group {NAMES.log_group}", f"role {NAMES.node_role}"} <= set(found.found)
    aws.logs.delete_log_group(logGroupName=NAMES.log_group)
    aws.iam.delete_role(RoleName=NAMES.node_role)


@pytest.mark.parametrize("other", ["leaky2", "leaky-2"])
def test_another_campaign_whose_name_begins_alike_is_not_ours(
    world: World, aws: Account, account: Any, other: str
) -> None:
    theirs = Names(other)
    aws.logs.create_log_group(logGroupName=theirs.log_group)
    aws.iam.create_role(RoleName=theirs.node_role, AssumeRolePolicyDocument='{"Version":"2012-10-17","Statement":[]}')
    assert certificate(account(*world.operator_key)).clean
    aws.logs.delete_log_group(logGroupName=theirs.log_group)
    aws.iam.delete_role(RoleName=theirs.node_role)


def test_a_denied_listing_is_could_not_look_and_never_clean(world: World, account: Any) -> None:
    allow = {"Effect": "Allow", "Action": "*", "Resource": "*"}
    deny = {"Effect": "Deny", "Action": "fsx:DescribeFileSystems", "Resource": "*"}
    found = certificate(account(*make_user(world, "half-blind", allow, deny)))
    assert not found.clean and not found.found
    assert [look.kind for look in found.looks if look.could_not_look] == ["file system"]
    with pytest.raises(NotProven, match="could not look: file system"):
        refuse_unclean(found)
