"""IAM permissions of operations, where they differ from the operation's own name."""

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
VERSIONED = {"GetObject", "DeleteObject", "GetObjectTagging", "PutObjectTagging", "DeleteObjectTagging"}
"""S3 permissions that become `...ObjectVersion...` when a request names a version."""
BESIDE = {
    "BypassGovernanceRetention": "s3:BypassGovernanceRetention",
    "ObjectLockMode": "s3:PutObjectRetention",
    "ObjectLockRetainUntilDate": "s3:PutObjectRetention",
    "ObjectLockLegalHoldStatus": "s3:PutObjectLegalHold",
    "Tagging": "s3:PutObjectTagging",
    "ACL": "s3:PutObjectAcl",
}
"""Parameter of a call on an object -> the additional permission it needs."""
ACTIONS = {"s3": S3_ACTIONS, "budgets": BUDGET_ACTIONS}
"""Service -> operations whose permission has another name."""
PREFIXES = {"monitoring": "cloudwatch", "email": "ses", "tagging": "tag"}
"""Signing names with another IAM prefix."""


ROLE_PASSED_BY = {
    ("codebuild", "CreateProject"): ("serviceRole", "codebuild.amazonaws.com"),
    ("codebuild", "UpdateProject"): ("serviceRole", "codebuild.amazonaws.com"),
    ("codebuild", "StartBuild"): ("serviceRoleOverride", "codebuild.amazonaws.com"),
    ("eks", "CreateCluster"): ("roleArn", "eks.amazonaws.com"),
    ("eks", "CreateNodegroup"): ("nodeRole", "eks.amazonaws.com"),
    ("eks", "CreateAddon"): ("serviceAccountRoleArn", "eks.amazonaws.com"),
    ("eks", "UpdateAddon"): ("serviceAccountRoleArn", "eks.amazonaws.com"),
    ("eks", "CreatePodIdentityAssociation"): ("roleArn", "pods.eks.amazonaws.com"),
    ("eks", "UpdatePodIdentityAssociation"): ("roleArn", "pods.eks.amazonaws.com"),
    ("budgets", "CreateBudgetAction"): ("ExecutionRoleArn", "budgets.amazonaws.com"),
    ("budgets", "UpdateBudgetAction"): ("ExecutionRoleArn", "budgets.amazonaws.com"),
    ("scheduler", "CreateSchedule"): ("Target.RoleArn", "scheduler.amazonaws.com"),
    ("scheduler", "UpdateSchedule"): ("Target.RoleArn", "scheduler.amazonaws.com"),
    ("iam", "AddRoleToInstanceProfile"): ("RoleName", "ec2.amazonaws.com"),
    ("ssm", "SendCommand"): ("ServiceRoleArn", "ssm.amazonaws.com"),
}
"""Operation -> (parameter with a role, service that will assume it): each needs iam:PassRole."""

TAGS_WITH = {
    ("ecr", "CreateRepository"): "ecr:TagResource",
    ("eks", "CreateAccessEntry"): "eks:TagResource",
    ("eks", "CreateAddon"): "eks:TagResource",
    ("eks", "CreateCluster"): "eks:TagResource",
    ("eks", "CreateNodegroup"): "eks:TagResource",
    ("eks", "CreatePodIdentityAssociation"): "eks:TagResource",
    ("fsx", "CreateDataRepositoryAssociation"): "fsx:TagResource",
    ("fsx", "CreateFileSystem"): "fsx:TagResource",
    ("iam", "CreateInstanceProfile"): "iam:TagInstanceProfile",
    ("iam", "CreatePolicy"): "iam:TagPolicy",
    ("iam", "CreateRole"): "iam:TagRole",
    ("kms", "CreateKey"): "kms:TagResource",
    ("logs", "CreateLogGroup"): "logs:TagResource",
    ("sns", "CreateTopic"): "sns:TagResource",
}
"""Creating operation -> its additional permission when the request has tags. The resource is the new one; a file
system has no ID yet: `file-system/*` (https://github.com/kubernetes-sigs/aws-fsx-csi-driver/issues/214)."""
