"""What a client writes to the emulated AWS it reads again, with AWS's documented defaults and nothing else.

Each expectation is written by hand from AWS's documentation. `aws_shapes` holds every raw answer against its model.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.rehearsal.aws_fakes import Site, fake_site
from tests.rehearsal.rehearsal.aws.aws_cluster import code_of

pytestmark = pytest.mark.usefixtures("answers_as_modelled")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with fake_site(tmp_path_factory.mktemp("readback")) as made:
        yield made


def read(answer: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in answer.items() if key != "ResponseMetadata"}


AES256 = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}, "BucketKeyEnabled": False}
CLOSED = dict.fromkeys(("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets"), True)
NEW_BUCKET = {
    "encryption": {"ServerSideEncryptionConfiguration": {"Rules": [AES256]}},
    "ownership_controls": {"OwnershipControls": {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]}},
    "versioning": {},
    "request_payment": {"Payer": "BucketOwner"},
    "logging": {},
}


@pytest.mark.parametrize(("setting", "shown"), NEW_BUCKET.items())
def test_a_new_bucket_shows_the_settings_that_s3_gives_it(site: Site, setting: str, shown: dict[str, Any]) -> None:
    s3 = site.client("s3")
    if "fresh" not in [one["Name"] for one in s3.list_buckets()["Buckets"]]:
        s3.create_bucket(Bucket="fresh")
    assert read(getattr(s3, f"get_bucket_{setting}")(Bucket="fresh")) == shown
    assert read(s3.get_public_access_block(Bucket="fresh")) == {"PublicAccessBlockConfiguration": CLOSED}


def test_a_bucket_whose_encryption_is_deleted_is_encrypted_by_s3_again(site: Site) -> None:
    s3 = site.client("s3")
    s3.create_bucket(Bucket="ciphered")
    by_key = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": "arn:aws:kms:us-east-1:123456789012:key/abc"}
    rule = {"ApplyServerSideEncryptionByDefault": by_key, "BucketKeyEnabled": True}
    s3.put_bucket_encryption(Bucket="ciphered", ServerSideEncryptionConfiguration={"Rules": [rule]})
    shown = s3.get_bucket_encryption(Bucket="ciphered")["ServerSideEncryptionConfiguration"]
    assert shown == {"Rules": [rule]}
    s3.delete_bucket_encryption(Bucket="ciphered")
    shown = s3.get_bucket_encryption(Bucket="ciphered")["ServerSideEncryptionConfiguration"]
    assert shown == {"Rules": [AES256]}
    s3.put_object(Bucket="ciphered", Key="one", Body=b"1")
    assert s3.head_object(Bucket="ciphered", Key="one")["ServerSideEncryption"] == "AES256"


LIFECYCLE: list[dict[str, Any]] = [
    {
        "ID": "all at once",
        "Status": "Enabled",
        "Filter": {"Prefix": "x/"},
        "Expiration": {"Days": 3},
        "NoncurrentVersionExpiration": {"NoncurrentDays": 30, "NewerNoncurrentVersions": 2},
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7},
    },
    {
        "ID": "by size",
        "Status": "Enabled",
        "Filter": {"ObjectSizeGreaterThan": 500},
        "Transitions": [{"Days": 30, "StorageClass": "GLACIER"}, {"Days": 300, "StorageClass": "DEEP_ARCHIVE"}],
    },
    {
        "ID": "both",
        "Status": "Enabled",
        "Filter": {
            "And": {
                "Prefix": "p",
                "ObjectSizeGreaterThan": 500,
                "ObjectSizeLessThan": 5000,
                "Tags": [{"Key": "a", "Value": "b"}, {"Key": "c", "Value": ""}],
            }
        },
        "NoncurrentVersionTransitions": [
            {"NoncurrentDays": 3, "NewerNoncurrentVersions": 2, "StorageClass": "GLACIER"}
        ],
    },
    {
        "ID": "markers",
        "Status": "Disabled",
        "Filter": {"Prefix": ""},
        "Expiration": {"ExpiredObjectDeleteMarker": True},
    },
    {
        "ID": "dated",
        "Status": "Enabled",
        "Filter": {"Tag": {"Key": "k", "Value": "v"}},
        "Expiration": {"Date": datetime(2027, 1, 1, tzinfo=UTC)},
    },
    {"ID": "of old", "Status": "Enabled", "Prefix": "old", "Expiration": {"Days": 1}},
]


def test_a_lifecycle_rule_keeps_every_field(site: Site) -> None:
    s3 = site.client("s3")
    s3.create_bucket(Bucket="ageing")
    s3.put_bucket_lifecycle_configuration(Bucket="ageing", LifecycleConfiguration={"Rules": LIFECYCLE})
    shown = s3.get_bucket_lifecycle_configuration(Bucket="ageing")
    assert shown["Rules"] == LIFECYCLE
    assert shown["TransitionDefaultMinimumObjectSize"] == "all_storage_classes_128K"
    nameless = {key: value for key, value in LIFECYCLE[0].items() if key != "ID"}
    s3.put_bucket_lifecycle_configuration(
        Bucket="ageing",
        LifecycleConfiguration={"Rules": [nameless]},
        TransitionDefaultMinimumObjectSize="varies_by_storage_class",
    )
    shown = s3.get_bucket_lifecycle_configuration(Bucket="ageing")
    assert shown["TransitionDefaultMinimumObjectSize"] == "varies_by_storage_class"
    assert shown["Rules"] == [nameless | {"ID": shown["Rules"][0]["ID"]}], "S3 gives a rule without a name one"


def test_a_default_retention_has_days_or_years_and_holds_the_object_written_under_it(site: Site) -> None:
    s3 = site.client("s3")
    s3.create_bucket(Bucket="locked", ObjectLockEnabledForBucket=True)
    for term in ({"Years": 1}, {"Days": 3}):
        kept = {"ObjectLockEnabled": "Enabled", "Rule": {"DefaultRetention": {"Mode": "GOVERNANCE"} | term}}
        s3.put_object_lock_configuration(Bucket="locked", ObjectLockConfiguration=kept)
        assert s3.get_object_lock_configuration(Bucket="locked")["ObjectLockConfiguration"] == kept
    s3.put_object(Bucket="locked", Key="held", Body=b"1", ChecksumAlgorithm="SHA256")
    retention = s3.get_object_retention(Bucket="locked", Key="held")["Retention"]
    until = retention["RetainUntilDate"] - datetime.now(UTC)
    assert retention["Mode"] == "GOVERNANCE" and timedelta(days=2, hours=23) < until <= timedelta(days=3)
    s3.create_bucket(Bucket="unlocked")
    s3.put_object(Bucket="unlocked", Key="free", Body=b"1")
    with pytest.raises(s3.exceptions.ClientError) as refused:
        s3.get_object_retention(Bucket="unlocked", Key="free")
    assert code_of(refused) == "NoSuchObjectLockConfiguration"


def test_an_upload_in_parts_tells_when_it_began(site: Site) -> None:
    s3 = site.client("s3")
    s3.create_bucket(Bucket="parts")
    began = datetime.now(UTC).replace(microsecond=0)
    begun = s3.create_multipart_upload(Bucket="parts", Key="a/b")["UploadId"]
    s3.create_multipart_upload(Bucket="parts", Key="c")
    (shown,) = s3.list_multipart_uploads(Bucket="parts", Prefix="a/")["Uploads"]
    assert (shown["UploadId"], shown["Key"], shown["StorageClass"]) == (begun, "a/b", "STANDARD")
    assert began <= shown["Initiated"] <= datetime.now(UTC)


def test_a_write_whose_condition_does_not_hold_is_refused_with_the_status_of_s3(site: Site) -> None:
    s3 = site.client("s3")
    s3.create_bucket(Bucket="conditions")
    tag = s3.put_object(Bucket="conditions", Key="k", Body=b"1", IfNoneMatch="*")["ETag"]
    conditions: tuple[dict[str, str], ...] = ({"IfNoneMatch": "*"}, {"IfMatch": '"another"'})
    for condition in conditions:
        with pytest.raises(s3.exceptions.ClientError) as caught:
            s3.put_object(Bucket="conditions", Key="k", Body=b"2", **condition)
        assert code_of(caught) == "PreconditionFailed"
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 412
    s3.put_object(Bucket="conditions", Key="k", Body=b"2", IfMatch=tag)
