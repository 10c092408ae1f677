"""Least-privilege policy documents of the network that builds images, for the account and not for a campaign."""

from __future__ import annotations

from infra.spec.names import BUILDER, REPOSITORY, ROLE_TAG, STEWARD_REPOSITORY
from infra.stack.access.policies import EVERYTHING, AccountPlace, Statement, actions, allow

_PULL = actions("ecr", "BatchCheckLayerAvailability BatchGetImage GetDownloadUrlForLayer")
_PUSH = actions("ecr", "CompleteLayerUpload DescribeImages InitiateLayerUpload PutImage UploadLayerPart")


def builder(account_place: AccountPlace) -> list[Statement]:
    """Allow to push to the repositories of our images and to pull any base; files come by presigned URLs."""
    return [
        allow(["ecr:GetAuthorizationToken"], [EVERYTHING]),
        allow(_PUSH, [account_place.repository(name) for name in (REPOSITORY, STEWARD_REPOSITORY)]),
        # Any repository: each campaign names its own base, and the build network serves all.
        allow(_PULL, [account_place.repository("*")]),
    ]


def builder_guard(account_place: AccountPlace) -> list[Statement]:
    """Allow only to end instances with a builder's tag."""
    condition = {"StringEquals": {f"aws:ResourceTag/{ROLE_TAG}": BUILDER}}
    return [allow(["ec2:TerminateInstances"], [account_place.arn("ec2", "instance/*")], condition)]
