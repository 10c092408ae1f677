"""Bucket policies with their conditions, and locks on buckets that are not empty, as S3 allows.

moto applies a Deny whatever its Condition and principal, and locks only empty buckets. Here IAM evaluates a bucket's
policy with the caller and the request's context (`access.authorise`); moto's own check is off.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moto.iam.access_control import PermissionResult
from moto.s3.models import FakeBucket, S3Backend, _VersionedKeyStore

from infra.rehearsal.aws.iam.policies import Effect, Question, parse, said_to
from infra.rehearsal.aws.operations import wrap
from infra.rehearsal.aws.world import World

_ARN = "arn:aws:s3:::"


def verdict(world: World, arns: list[str], names: list[str], question: Question) -> Effect | None:
    """Return the verdict of the bucket's policy on a caller, None if there is none.

    `arns` are the caller's names, by which it is allowed; `names` also has its account's, by which it is denied.
    """
    resource = str(question.resource)
    if not resource.startswith(_ARN):
        return None
    bucket = world.backend("s3").buckets.get(resource.removeprefix(_ARN).partition("/")[0])
    if bucket is None or bucket.policy is None:
        return None
    text = bucket.policy if isinstance(bucket.policy, str) else bucket.policy.decode()
    if said_to(parse(text), names, question) == "Deny":
        return "Deny"
    return said_to(parse(text), arns, question)


def install(world: World) -> None:
    def get_permission(bucket: FakeBucket, action: str, resource: str) -> Any:
        return PermissionResult.NEUTRAL

    def put_lock(
        moto: Callable[..., None], backend: S3Backend, bucket_name: str, *positional: Any, **keywords: Any
    ) -> None:
        bucket = backend.get_bucket(bucket_name)
        keys, bucket.keys = bucket.keys, _VersionedKeyStore()
        try:
            moto(backend, bucket_name, *positional, **keywords)
        finally:
            bucket.keys = keys

    wrap(S3Backend, "put_object_lock_configuration", put_lock)
    FakeBucket.get_permission = get_permission  # type: ignore[method-assign,assignment]
