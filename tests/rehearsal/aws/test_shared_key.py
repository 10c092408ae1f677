"""Keys of the buckets that all campaigns share: what one campaign asks for, the others' roles work under too."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.aws import keys
from infra.aws.account import Account as Driver
from infra.bake import foundation
from infra.errors import UserError
from infra.record.store import CampaignStore
from infra.rehearsal.aws.world import World
from infra.spec.campaign import Spec
from infra.spec.names import KEY_ALIAS, buckets
from infra.stack.access.key import key_policy
from infra.stack.foundation import encryption
from tests.example import example_spec
from tests.graph.engine import ACCOUNT, campaign_graph, held
from tests.rehearsal.acting import BUYER, OPERATOR, policy
from tests.rehearsal.aws_account import Account, code_of, make_user, signed_in

REGION = "us-east-1"
BUCKETS = buckets(ACCOUNT, REGION)
SHARED = {"shared": {"deployment": "PERSISTENT_2"}}
WRITES = {"steward": (BUCKETS.state,), "archive": (BUCKETS.state, BUCKETS.archive)}
"""Role -> buckets that it keeps something in."""


class Ground:
    """An account's foundation, as campaigns come to it one after the other."""

    def __init__(self, world: World) -> None:
        self.world, self.admin = world, Account(world, *world.operator_key)
        for name in vars(BUCKETS).values():
            self.admin.s3.create_bucket(Bucket=name)
        self.store = CampaignStore(self.admin.s3, BUCKETS.state, "any", "test")

    def key(self, policy: dict[str, object], mark: str = "bivouac:key") -> str:
        tags = [{"TagKey": mark, "TagValue": "true"}]
        return str(self.admin.kms.create_key(Policy=json.dumps(policy), Tags=tags)["KeyMetadata"]["Arn"])

    def comes(self, spec: Spec) -> dict[str, Account]:
        """The foundation as this campaign finds and leaves it, by the product's own record; then the campaign's roles,
        with what the product's own graph gives them."""
        settings = foundation.foundation_settings(self.store, spec)
        foundation.remember(self.store, settings)
        alias_names = {alias["AliasName"] for alias in self.admin.kms.list_aliases()["Aliases"]}
        if settings.keeping.own_key and KEY_ALIAS not in alias_names:
            key = self.key(key_policy(ACCOUNT, REGION))
            self.admin.kms.create_alias(AliasName=KEY_ALIAS, TargetKeyId=key)
        arn = settings.keeping.key_arn or (self.own_key() if settings.keeping.own_key else None)
        for name in vars(BUCKETS).values():
            given: Any = encryption(arn)
            default = given["apply_server_side_encryption_by_default"]
            rule = {"SSEAlgorithm": default["sse_algorithm"]} | ({"KMSMasterKeyID": arn} if arn else {})
            rules = [{"ApplyServerSideEncryptionByDefault": rule, "BucketKeyEnabled": arn is not None}]
            self.admin.s3.put_bucket_encryption(Bucket=name, ServerSideEncryptionConfiguration={"Rules": rules})
        more = {} if not spec.encryption.customer_key else {"key_arn": spec.encryption.key_arn or self.own_key()}
        statements = held(campaign_graph(spec, **more))
        return {
            role: Account(
                self.world,
                *make_user(self.world, f"{spec.campaign}-{role}", *(one for owner, one in statements if owner == role)),
            )
            for role in WRITES
        }

    def own_key(self) -> str:
        return str(self.admin.kms.describe_key(KeyId=KEY_ALIAS)["KeyMetadata"]["Arn"])

    def default(self, bucket: str) -> str | None:
        rules = self.admin.s3.get_bucket_encryption(Bucket=bucket)["ServerSideEncryptionConfiguration"]["Rules"]
        return rules[0]["ApplyServerSideEncryptionByDefault"].get("KMSMasterKeyID")


def keeps(roles: dict[str, Account], spec: Spec, body: bytes) -> None:
    """Every role writes to where it keeps something, whole and in parts, and reads it."""
    for role, account in roles.items():
        for bucket in WRITES[role]:
            where = {"Bucket": bucket, "Key": f"campaigns/{spec.campaign}/{role}/{body.decode()}"}
            account.s3.put_object(**where, Body=body)
            begun = account.s3.create_multipart_upload(Bucket=bucket, Key=where["Key"] + "-parts")
            part = {"Bucket": bucket, "Key": begun["Key"], "UploadId": begun["UploadId"]}
            sent = account.s3.upload_part(**part, PartNumber=1, Body=body)
            parts = [{"PartNumber": 1, "ETag": sent["ETag"]}]
            account.s3.complete_multipart_upload(**part, MultipartUpload={"Parts": parts})
    finds(roles, spec, body)


def finds(roles: dict[str, Account], spec: Spec, body: bytes) -> None:
    for role, account in roles.items():
        for bucket in WRITES[role]:
            for end in ("", "-parts"):
                key = f"campaigns/{spec.campaign}/{role}/{body.decode()}{end}"
                assert account.s3.get_object(Bucket=bucket, Key=key)["Body"].read() == body


def plain(name: str) -> Spec:
    return example_spec(campaign=name)


@pytest.fixture(scope="module")
def ground(world: World) -> Iterator[Ground]:
    yield Ground(world)


@pytest.mark.nightly
def test_a_campaign_without_a_key_works_under_the_key_that_others_asked_for(ground: Ground) -> None:
    early = plain("early")
    trains = ground.comes(early)
    assert ground.default(BUCKETS.state) is None
    keeps(trains, early, b"plain")

    owner = example_spec(campaign="owner", encryption={"customer_key": True}, storage=SHARED)
    owns = ground.comes(owner)
    assert ground.default(BUCKETS.state) == ground.own_key()
    keeps(owns, owner, b"own")
    keeps(trains, early, b"own")

    late = plain("late")
    follows = ground.comes(late)
    assert ground.default(BUCKETS.archive) == ground.own_key(), "what was encrypted for one stays so"
    keeps(follows, late, b"own")

    given = ground.key(key_policy(ACCOUNT, REGION))
    other = example_spec(campaign="other", encryption={"customer_key": True, "key_arn": given}, storage=SHARED)
    brings = ground.comes(other)
    assert ground.default(BUCKETS.state) == given != ground.own_key()
    keeps(brings, other, b"given")
    for roles, spec in ((trains, early), (owns, owner), (follows, late)):
        keeps(roles, spec, b"given")
        finds(roles, spec, b"own")
    finds(trains, early, b"plain")


def test_the_written_policies_of_people_keep_the_record_under_whatever_key(ground: Ground) -> None:
    ground.comes(example_spec(campaign="asked", encryption={"customer_key": True}, storage=SHARED))
    for names, key in ((OPERATOR, "campaigns/asked/record.json"), (BUYER, "foundation/blocks/asked/cb-1.json")):
        where = {"Bucket": BUCKETS.state, "Key": key}
        statements = [one for name in names for one in policy(name)["Statement"]]
        person = Account(ground.world, *make_user(ground.world, f"person-{names[0]}".replace("/", "-"), *statements))
        person.s3.put_object(**where, Body=b"{}")
        assert person.s3.get_object(**where)["Body"].read() == b"{}"


def test_a_key_whose_policy_leaves_the_accounts_roles_out_refuses_them(ground: Ground) -> None:
    """The customer's business; the emulated KMS asks the key as well as IAM."""
    closed = key_policy(ACCOUNT, REGION)
    closed["Statement"][0]["Principal"]["AWS"] = ground.admin.sts.get_caller_identity()["Arn"]
    spec = example_spec(
        campaign="closed", encryption={"customer_key": True, "key_arn": ground.key(closed)}, storage=SHARED
    )
    roles = ground.comes(spec)
    with pytest.raises(ClientError, match="kms:GenerateDataKey"):
        keeps(roles, spec, b"closed")


@pytest.fixture
def person(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """The driver's account, as its administrator sees it."""
    signed_in(monkeypatch, ground.world)
    return Driver(REGION)


def _open(statement: dict[str, Any]) -> None:
    """As it is."""


def _to_one(statement: dict[str, Any]) -> None:
    statement["Principal"]["AWS"] = "arn:aws:iam::123456789012:user/somebody"


def _read_only(statement: dict[str, Any]) -> None:
    statement["Action"] = ["kms:Decrypt", "kms:Describe*", "kms:GetKeyPolicy"]


@pytest.mark.parametrize(
    ("change", "seen"),
    [(_open, None), (_to_one, "kms:GenerateDataKey"), (_read_only, "kms:GenerateDataKey")],
)
def test_a_key_is_tried_before_any_bucket_takes_it(
    ground: Ground, person: Driver, change: Callable[[dict[str, Any]], None], seen: str | None
) -> None:
    wanted = key_policy(ACCOUNT, REGION)
    change(wanted["Statement"][0])
    tried = lambda: keys.try_key(person, ground.key(wanted), BUCKETS.state, "foundation/key-trial")  # noqa: E731
    if seen is None:
        tried()
    else:
        with pytest.raises(UserError, match=f"nothing was switched to it; seen: .*{seen}"):
            tried()
    assert "Contents" not in ground.admin.s3.list_objects_v2(Bucket=BUCKETS.state, Prefix="foundation/key-trial")


def test_a_key_that_lets_its_person_and_not_the_roles_is_refused_too(ground: Ground, person: Driver) -> None:
    closed = key_policy(ACCOUNT, REGION)
    closed["Statement"][0]["Principal"]["AWS"] = ground.admin.sts.get_caller_identity()["Arn"]
    with pytest.raises(UserError, match="allows kms:GenerateDataKey and kms:Decrypt and kms:Encrypt only to"):
        keys.try_key(person, ground.key(closed), BUCKETS.state, "foundation/key-trial")


def test_a_key_that_its_owner_has_not_marked_is_refused_with_the_command_that_marks_it(
    ground: Ground, person: Driver
) -> None:
    policy = key_policy(ACCOUNT, REGION)
    key = ground.key(policy, "team")
    with pytest.raises(UserError, match=r"has the tags team; .*`aws kms tag-resource .*TagKey=bivouac:key"):
        keys.try_key(person, key, BUCKETS.state, "foundation/key-trial")
    ground.admin.kms.tag_resource(KeyId=key, Tags=[{"TagKey": "bivouac:key", "TagValue": "true"}])
    keys.try_key(person, key, BUCKETS.state, "foundation/key-trial")
    keys.try_key(person, ground.key(policy, "bivouac:foundation"), BUCKETS.state, "foundation/key-trial")


def test_the_roles_use_no_key_but_through_the_buckets(ground: Ground) -> None:
    roles = ground.comes(plain("direct"))
    for account in roles.values():
        key = ground.own_key()
        asked = lambda: account.kms.generate_data_key(KeyId=key, KeySpec="AES_256")  # noqa: E731, B023
        assert code_of(asked) == "AccessDeniedException"
    ground.admin.s3.create_bucket(Bucket="payroll")
    ground.admin.s3.put_object(
        Bucket="payroll", Key="campaigns/direct/x", Body=b"x", ServerSideEncryption="aws:kms", SSEKMSKeyId=key
    )
    # Also of a bucket that somebody let them read: the key is for ours alone.
    wide = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::payroll/*"}
    own = [one for role, one in held(campaign_graph(plain("direct"))) if role == "archive"]
    reader = Account(ground.world, *make_user(ground.world, "reader", wide, *own))
    with pytest.raises(ClientError, match="kms:Decrypt"):
        reader.s3.get_object(Bucket="payroll", Key="campaigns/direct/x")
