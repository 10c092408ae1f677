"""The certificate against the emulated AWS: it names what was left, and what it could not look at."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from infra.aws.account import Account as Ours
from infra.errors import NotProven
from infra.inventory import Knowledge
from infra.inventory.certify import look_through, refuse_unclean
from infra.rehearsal.aws.world import World
from infra.spec.names import CAMPAIGN_TAG, REGION_TAG, Names
from tests.rehearsal.aws_account import Account, make_user, signed_in

NAMES = Names("leaky")


@pytest.fixture
def account(world: World, monkeypatch: pytest.MonkeyPatch) -> Any:
    def sign_in(key: str, secret: str) -> Ours:
        return signed_in(monkeypatch, world, (key, secret))

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


def test_a_role_of_our_own_region_is_found_and_that_of_another_is_not(aws: Account, world: World, account: Any) -> None:
    trust = json.dumps({"Version": "2012-10-17", "Statement": []})
    for name, region in (("here", world.region), ("there", "eu-west-1")):
        tags = [{"Key": CAMPAIGN_TAG, "Value": NAMES.campaign}, {"Key": REGION_TAG, "Value": region}]
        aws.iam.create_role(RoleName=name, AssumeRolePolicyDocument=trust, Tags=tags)
    try:
        found = certificate(account(*world.operator_key)).found
    finally:
        for name in ("here", "there"):
            aws.iam.delete_role(RoleName=name)
    assert [one for one in found if one.startswith("role ")] == ["role here"]


def test_what_carries_only_the_name_is_found_too(
    world: World,
    aws: Account,
    account: Any,
    network: SimpleNamespace,
) -> None:
    aws.logs.create_log_group(logGroupName=NAMES.log_group)
    aws.iam.create_role(RoleName=NAMES.role("node"), AssumeRolePolicyDocument='{"Version":"2012-10-17","Statement":[]}')
    found = certificate(account(*world.operator_key))
    assert {f"log group {NAMES.log_group}", f"role {NAMES.role('node')}"} <= set(found.found)
    aws.logs.delete_log_group(logGroupName=NAMES.log_group)
    aws.iam.delete_role(RoleName=NAMES.role("node"))


@pytest.mark.parametrize("other", ["leaky2", "leaky-2", "leaky-gpu"])
def test_another_campaign_whose_name_begins_alike_is_not_ours(
    world: World, aws: Account, account: Any, other: str
) -> None:
    theirs = Names(other)
    aws.logs.create_log_group(logGroupName=theirs.log_group)
    aws.iam.create_role(
        RoleName=theirs.role("node"), AssumeRolePolicyDocument='{"Version":"2012-10-17","Statement":[]}'
    )
    assert certificate(account(*world.operator_key)).clean
    aws.logs.delete_log_group(logGroupName=theirs.log_group)
    aws.iam.delete_role(RoleName=theirs.role("node"))


def test_an_unreadable_bucket_hides_no_other_and_one_of_before_is_only_noted(
    world: World, aws: Account, account: Any
) -> None:
    for name in ("audit-locked", "left-behind"):
        aws.s3.create_bucket(Bucket=name)
    aws.s3.put_bucket_tagging(Bucket="left-behind", Tagging={"TagSet": tagged("bucket")[0]["Tags"]})
    allow = {"Effect": "Allow", "Action": "*", "Resource": "*"}
    deny = {"Effect": "Deny", "Action": "s3:GetBucketTagging", "Resource": "arn:aws:s3:::audit-locked"}
    half_blind = account(*make_user(world, "locked-out", allow, deny))
    found = certificate(half_blind)
    assert found.found == ("bucket left-behind",)
    assert found.blind == ("bucket: AccessDenied: the tags of audit-locked",) and not found.transient
    aws.s3.delete_bucket(Bucket="left-behind")
    older = Knowledge(NAMES, before={"bucket": frozenset({"audit-locked"})})
    found = look_through(half_blind, NAMES, "arn:test", "123456789012", (), older)
    assert found.clean and found.unread == ("bucket audit-locked",)
    aws.s3.delete_bucket(Bucket="audit-locked")


def test_a_denied_listing_is_could_not_look_and_never_clean(world: World, account: Any) -> None:
    allow = {"Effect": "Allow", "Action": "*", "Resource": "*"}
    deny = {"Effect": "Deny", "Action": "fsx:DescribeFileSystems", "Resource": "*"}
    found = certificate(account(*make_user(world, "half-blind", allow, deny)))
    assert not found.clean and not found.found
    assert [look.kind for look in found.looks if look.could_not_look] == ["file system"]
    with pytest.raises(NotProven, match="could not look: file system"):
        refuse_unclean(found)


def test_what_only_the_tagging_service_shows_and_nobody_can_ask_about_is_perhaps_left(
    world: World, aws: Account, account: Any
) -> None:
    arn = aws.ecr.create_repository(
        repositoryName="perhaps", tags=[{"Key": CAMPAIGN_TAG, "Value": NAMES.campaign}]
    )["repository"]["repositoryArn"]  # fmt: skip
    ours = account(*world.operator_key)
    world.routes["/_site/tagging"]("", b"")  # it looks: between two calls of a moment it would not
    aws.ecr.delete_repository(repositoryName="perhaps")
    stale = certificate(ours)
    assert stale.found == (f"anything tagged {arn}",) and not stale.certain and not stale.clean
    with pytest.raises(NotProven, match=r"perhaps left: .*also shows what was deleted.*console of ecr"):
        refuse_unclean(stale)
    world.routes["/_site/tagging"]("", b'{"stale_tags_s": 0}')
    assert certificate(ours).clean
    world.routes["/_site/tagging"]("", b'{"stale_tags_s": 45}')
