"""Bucket policies with their conditions, and locks on buckets that hold something already, as S3 allows.

moto applies a Deny whatever its Condition says, and locks only empty buckets.

The site's one link stands for TLS: a request inside a site counts as secure transport.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from moto.iam.access_control import PermissionResult
from moto.s3.models import FakeBucket, S3Backend, _VersionedKeyStore

from infra.rehearsal.aws.operations import wrap
from infra.rehearsal.aws.policies import Question, applies, listed
from infra.rehearsal.aws.world import World


def install(world: World) -> None:
    context = {"aws:securetransport": ["true"], "aws:principalaccount": [world.account]}

    def get_permission(bucket: FakeBucket, action: str, resource: str) -> Any:
        if bucket.policy is None:
            return PermissionResult.NEUTRAL
        question = Question(action, resource, context)
        statements = listed(json.loads(bucket.policy)["Statement"])
        effects = {statement["Effect"] for statement in statements if applies(statement, question)}
        if "Deny" in effects:
            return PermissionResult.DENIED
        return PermissionResult.PERMITTED if "Allow" in effects else PermissionResult.NEUTRAL

    def put_lock(moto: Callable[..., None], backend: S3Backend, bucket_name: str, *given: Any, **named: Any) -> None:
        bucket = backend.get_bucket(bucket_name)
        keys, bucket.keys = bucket.keys, _VersionedKeyStore()
        try:
            moto(backend, bucket_name, *given, **named)
        finally:
            bucket.keys = keys

    wrap(S3Backend, "put_object_lock_configuration", put_lock)
    FakeBucket.get_permission = get_permission  # type: ignore[method-assign,assignment]
