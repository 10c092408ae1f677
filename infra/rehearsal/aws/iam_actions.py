"""How IAM calls what an operation of a service needs, where it is not the operation's own name."""

from __future__ import annotations

S3_ACTIONS = {
    "HeadObject": "GetObject",
    "CopyObject": "PutObject",
    "CreateMultipartUpload": "PutObject",
    "UploadPart": "PutObject",
    "UploadPartCopy": "PutObject",
    "CompleteMultipartUpload": "PutObject",
    "GetObjectAttributes": "GetObject",
    "DeleteObjects": "DeleteObject",
    "HeadBucket": "ListBucket",
    "ListObjects": "ListBucket",
    "ListObjectsV2": "ListBucket",
    "ListObjectVersions": "ListBucketVersions",
    "ListBuckets": "ListAllMyBuckets",
    "ListMultipartUploads": "ListBucketMultipartUploads",
    "ListParts": "ListMultipartUploadParts",
    "GetBucketEncryption": "GetEncryptionConfiguration",
    "PutBucketEncryption": "PutEncryptionConfiguration",
    "DeleteBucketEncryption": "PutEncryptionConfiguration",
    "GetBucketLifecycleConfiguration": "GetLifecycleConfiguration",
    "PutBucketLifecycleConfiguration": "PutLifecycleConfiguration",
    "DeleteBucketLifecycle": "PutLifecycleConfiguration",
    "GetBucketReplication": "GetReplicationConfiguration",
    "GetBucketAccelerateConfiguration": "GetAccelerateConfiguration",
    "GetPublicAccessBlock": "GetBucketPublicAccessBlock",
    "PutPublicAccessBlock": "PutBucketPublicAccessBlock",
    "DeletePublicAccessBlock": "PutBucketPublicAccessBlock",
    "GetObjectLockConfiguration": "GetBucketObjectLockConfiguration",
    "PutObjectLockConfiguration": "PutBucketObjectLockConfiguration",
    "DeleteBucketTagging": "PutBucketTagging",
}
BUDGET_ACTIONS = {
    "CreateBudget": "ModifyBudget",
    "UpdateBudget": "ModifyBudget",
    "DeleteBudget": "ModifyBudget",
    "CreateNotification": "ModifyBudget",
    "UpdateNotification": "ModifyBudget",
    "DeleteNotification": "ModifyBudget",
    "CreateSubscriber": "ModifyBudget",
    "UpdateSubscriber": "ModifyBudget",
    "DeleteSubscriber": "ModifyBudget",
    "DescribeBudget": "ViewBudget",
    "DescribeBudgets": "ViewBudget",
    "DescribeNotificationsForBudget": "ViewBudget",
    "DescribeSubscribersForNotification": "ViewBudget",
}
"""https://docs.aws.amazon.com/service-authorization/latest/reference/list_budgets.html"""
ACTIONS = {"s3": S3_ACTIONS, "budgets": BUDGET_ACTIONS}
"""Service -> operations whose permission has another name."""
PREFIXES = {"monitoring": "cloudwatch", "email": "ses", "tagging": "tag"}
"""Signing names whose IAM prefix is another word."""
