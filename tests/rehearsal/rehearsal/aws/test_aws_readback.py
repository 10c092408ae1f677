"""What a client writes to S3, KMS, CloudWatch Logs, Budgets and the Scheduler of the emulated AWS it reads again, with
AWS's documented defaults and nothing else.

Each expectation is written by hand from AWS's documentation. `aws_shapes` holds every raw answer against its model.
"""

from __future__ import annotations

import base64
import hashlib
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.rehearsal.rehearsal.aws.aws_cluster import code_of, holds, role, site
from tests.worlds.account_site import AccountSite

__all__ = ["site"]

pytestmark = pytest.mark.usefixtures("answers_as_modelled")


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
def test_a_new_bucket_shows_the_settings_that_s3_gives_it(
    site: AccountSite, setting: str, shown: dict[str, Any]
) -> None:
    s3 = site.client("s3")
    if "fresh" not in [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]:
        s3.create_bucket(Bucket="fresh")
    assert read(getattr(s3, f"get_bucket_{setting}")(Bucket="fresh")) == shown
    assert read(s3.get_public_access_block(Bucket="fresh")) == {"PublicAccessBlockConfiguration": CLOSED}


def test_a_bucket_whose_encryption_is_deleted_is_encrypted_by_s3_again(site: AccountSite) -> None:
    s3 = site.client("s3")
    s3.create_bucket(Bucket="ciphered")
    by_key = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": "arn:aws:kms:us-east-1:123456789012:key/abc"}
    rule = {"ApplyServerSideEncryptionByDefault": by_key, "BucketKeyEnabled": True}
    s3.put_bucket_encryption(Bucket="ciphered", ServerSideEncryptionConfiguration={"Rules": [rule]})
    configuration = s3.get_bucket_encryption(Bucket="ciphered")["ServerSideEncryptionConfiguration"]
    assert configuration == {"Rules": [rule]}
    s3.delete_bucket_encryption(Bucket="ciphered")
    configuration = s3.get_bucket_encryption(Bucket="ciphered")["ServerSideEncryptionConfiguration"]
    assert configuration == {"Rules": [AES256]}
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


def test_a_lifecycle_rule_keeps_every_field(site: AccountSite) -> None:
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


def test_a_default_retention_has_days_or_years_and_holds_the_object_written_under_it(site: AccountSite) -> None:
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


def test_an_upload_in_parts_tells_when_it_began(site: AccountSite) -> None:
    s3 = site.client("s3")
    s3.create_bucket(Bucket="parts")
    began = datetime.now(UTC).replace(microsecond=0)
    upload_id = s3.create_multipart_upload(Bucket="parts", Key="a/b")["UploadId"]
    s3.create_multipart_upload(Bucket="parts", Key="c")
    (shown,) = s3.list_multipart_uploads(Bucket="parts", Prefix="a/")["Uploads"]
    assert (shown["UploadId"], shown["Key"], shown["StorageClass"]) == (upload_id, "a/b", "STANDARD")
    assert began <= shown["Initiated"] <= datetime.now(UTC)


def test_an_object_is_refused_with_another_objects_digest_and_its_copy_tells_its_own(site: AccountSite) -> None:
    s3, digest = site.client("s3"), base64.b64encode(hashlib.sha256(b"sound").digest()).decode()
    s3.create_bucket(Bucket="digests")
    given = {"Bucket": "digests", "Key": "a", "ChecksumAlgorithm": "SHA256", "ChecksumSHA256": digest}
    s3.put_object(**given, Body=b"sound")
    with pytest.raises(ClientError) as refused:
        s3.put_object(**given, Body=b"other")
    assert code_of(refused) == "BadDigest"
    asked = {"Bucket": "digests", "Key": "b", "CopySource": "digests/a", "ChecksumAlgorithm": "SHA256"}
    assert s3.copy_object(**asked)["CopyObjectResult"]["ChecksumSHA256"] == digest
    assert s3.head_object(Bucket="digests", Key="b", ChecksumMode="ENABLED")["ChecksumSHA256"] == digest


def test_a_write_whose_condition_does_not_hold_is_refused_with_the_status_of_s3(site: AccountSite) -> None:
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


ACCOUNT = "123456789012"


def test_a_key_tells_what_it_is_for_and_when_it_is_rotated(site: AccountSite) -> None:
    kms = site.client("kms")
    key_metadata = kms.create_key(Tags=[{"TagKey": "a", "TagValue": "b"}])["KeyMetadata"]
    symmetric = {"KeyUsage": "ENCRYPT_DECRYPT", "KeySpec": "SYMMETRIC_DEFAULT", "MultiRegion": False}
    assert holds(
        key_metadata, **symmetric, EncryptionAlgorithms=["SYMMETRIC_DEFAULT"], SigningAlgorithms=None, Description=""
    )
    assert kms.describe_key(KeyId=key_metadata["KeyId"])["KeyMetadata"] == key_metadata
    off = kms.get_key_rotation_status(KeyId=key_metadata["KeyId"])
    assert holds(off, KeyId=key_metadata["KeyId"], KeyRotationEnabled=False, RotationPeriodInDays=None)
    kms.enable_key_rotation(KeyId=key_metadata["KeyId"])
    on = kms.get_key_rotation_status(KeyId=key_metadata["KeyId"])
    assert holds(on, KeyRotationEnabled=True, RotationPeriodInDays=365)
    assert (on["NextRotationDate"] - key_metadata["CreationDate"]).days == 365
    kms.enable_key_rotation(KeyId=key_metadata["KeyId"], RotationPeriodInDays=90)
    assert kms.get_key_rotation_status(KeyId=key_metadata["KeyId"])["RotationPeriodInDays"] == 90
    ended = kms.schedule_key_deletion(KeyId=key_metadata["KeyId"], PendingWindowInDays=7)
    assert holds(ended, KeyId=key_metadata["Arn"], KeyState="PendingDeletion", PendingWindowInDays=7)


def test_a_log_group_has_a_class_and_no_retention_unless_told(site: AccountSite) -> None:
    logs = site.client("logs")
    logs.create_log_group(logGroupName="/kept", tags={"a": "b"})
    (shown,) = logs.describe_log_groups(logGroupNamePrefix="/kept")["logGroups"]
    assert holds(shown, logGroupClass="STANDARD", retentionInDays=None, kmsKeyId=None)
    logs.put_retention_policy(logGroupName="/kept", retentionInDays=7)
    assert logs.describe_log_groups(logGroupNamePrefix="/kept")["logGroups"][0]["retentionInDays"] == 7


def test_a_budget_shows_decimal_amounts_and_notifications_with_their_state(site: AccountSite) -> None:
    budgets = site.client("budgets")
    where = {"AccountId": ACCOUNT, "BudgetName": "yearly"}
    alarm = {"NotificationType": "ACTUAL", "ComparisonOperator": "GREATER_THAN", "Threshold": 80.0}
    reader = {"SubscriptionType": "EMAIL", "Address": "a@example.com"}
    budget = {
        "BudgetName": "yearly",
        "BudgetLimit": {"Amount": "100", "Unit": "USD"},
        "TimeUnit": "ANNUALLY",
        "BudgetType": "COST",
    }
    told = [{"Notification": alarm, "Subscribers": [reader]}]
    budgets.create_budget(
        AccountId=ACCOUNT, Budget=budget, NotificationsWithSubscribers=told, ResourceTags=[{"Key": "a", "Value": "b"}]
    )
    shown = budgets.describe_budget(**where)["Budget"]
    assert shown["BudgetLimit"] == {"Amount": "100.0", "Unit": "USD"}
    assert shown["CalculatedSpend"]["ActualSpend"] == {"Amount": "0.0", "Unit": "USD"}
    this_year = datetime.now(UTC).replace(month=1, day=1, hour=0, minute=0, second=0, microsecond=0)
    assert shown["TimePeriod"] == {"Start": this_year, "End": datetime(2087, 6, 15, tzinfo=UTC)}
    (seen,) = budgets.describe_notifications_for_budget(**where)["Notifications"]
    assert seen == alarm | {"ThresholdType": "PERCENTAGE", "NotificationState": "OK"}
    second = alarm | {"Threshold": 90.0}
    budgets.create_notification(**where, Notification=second, Subscribers=[reader])
    budgets.delete_notification(**where, Notification=alarm)
    (seen,) = budgets.describe_notifications_for_budget(**where)["Notifications"]
    assert seen["Threshold"] == 90.0
    budgets.update_budget(AccountId=ACCOUNT, NewBudget=budget | {"BudgetLimit": {"Amount": "12.5", "Unit": "USD"}})
    after = budgets.describe_budget(**where)["Budget"]
    assert after["BudgetLimit"]["Amount"] == "12.5" and after["LastUpdatedTime"] > shown["LastUpdatedTime"]
    assert after["TimePeriod"] == shown["TimePeriod"]
    arn = f"arn:aws:budgets::{ACCOUNT}:budget/"
    later = [{"Key": "c", "Value": "d"}]
    budgets.tag_resource(ResourceARN=f"{arn}yearly", ResourceTags=later)
    budgets.untag_resource(ResourceARN=f"{arn}yearly", ResourceTagKeys=["a"])
    assert budgets.list_tags_for_resource(ResourceARN=f"{arn}yearly")["ResourceTags"] == later
    with pytest.raises(budgets.exceptions.NotFoundException):
        budgets.list_tags_for_resource(ResourceARN=f"{arn}nobody-s")


def test_a_schedule_retries_as_the_scheduler_does_where_nothing_else_is_said(site: AccountSite) -> None:
    scheduler, caller = site.client("scheduler"), role(site, "caller", "scheduler.amazonaws.com")
    asked = {"ClusterName": "c", "NodegroupName": "n", "ScalingConfig": {"MinSize": 0, "DesiredSize": 0}}
    target = {
        "Arn": "arn:aws:scheduler:::aws-sdk:eks:updateNodegroupConfig",
        "RoleArn": caller,
        "Input": json.dumps(asked),
    }
    call: dict[str, Any] = {"Name": "ends", "FlexibleTimeWindow": {"Mode": "OFF"}}
    call["ScheduleExpression"] = "at(2090-01-01T00:00:00)"
    scheduler.create_schedule(**call, Target=target)
    usual = {"MaximumEventAgeInSeconds": 86400, "MaximumRetryAttempts": 185}
    shown = scheduler.get_schedule(Name="ends")
    assert holds(shown, State="ENABLED", ActionAfterCompletion="NONE", GroupName="default", **call)
    assert shown["ScheduleExpressionTimezone"] == "UTC" and shown["Target"] == target | {"RetryPolicy": usual}
    scheduler.update_schedule(**call, Target=target | {"RetryPolicy": {"MaximumRetryAttempts": 3}})
    shown = scheduler.get_schedule(Name="ends")
    assert shown["Target"]["RetryPolicy"] == usual | {"MaximumRetryAttempts": 3}
    (listed,) = scheduler.list_schedules()["Schedules"]
    assert holds(listed, Name="ends", Target={"Arn": target["Arn"]}, ScheduleExpression=None)
