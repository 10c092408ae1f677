"""Customer-managed keys as KMS shows them: usage and rotation."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from moto.kms.models import Key, KmsBackend
from moto.kms.responses import KmsResponse
from moto.kms.utils import RESERVED_ALIASES

from infra.rehearsal.aws.operations import wrap
from infra.rehearsal.aws.world import World

PERIOD_DAYS = 365
OF_FSX = "alias/aws/fsx"
"""Alias of FSx's own key, which moto lacks."""


def _create(
    moto: Callable[..., Key],
    kms: KmsBackend,
    policy: str | None,
    key_usage: str | None,
    key_spec: str | None,
    description: str,
    tags: Any,
    multi_region: bool | None = None,
    origin: str = "AWS_KMS",
) -> Key:
    usage = key_usage or "ENCRYPT_DECRYPT"
    return moto(kms, policy, usage, key_spec, description, tags, bool(multi_region), origin)


def _default(moto: Callable[..., str | None], kms: KmsBackend, alias_name: str) -> str | None:
    """Mark a service's own key of the account as managed by AWS."""
    alias = moto(kms, alias_name)
    if alias is not None:
        kms.keys[alias].key_manager = "AWS"
    return alias


def _describe_key(moto: Callable[..., dict[str, Any]], key: Key) -> dict[str, Any]:
    """Show only the algorithms of the key's usage."""
    document = moto(key)
    metadata = document["KeyMetadata"]
    for algorithms in ("SigningAlgorithms", "EncryptionAlgorithms"):
        if not metadata[algorithms]:
            del metadata[algorithms]
    return document


def _key_of(response: KmsResponse) -> Any:
    return response.kms_backend.keys[response.kms_backend.get_key_id(response._get_param("KeyId"))]


def _enable(moto: Callable[..., str], response: KmsResponse) -> str:
    answer = moto(response)
    _key_of(response).rotation_days = response._get_param("RotationPeriodInDays") or PERIOD_DAYS
    return answer


def _rotation(moto: Callable[..., str], response: KmsResponse) -> str:
    document, key = json.loads(moto(response)), _key_of(response)
    document["KeyId"] = key.id
    if document["KeyRotationEnabled"]:
        days = getattr(key, "rotation_days", PERIOD_DAYS)
        due = key.creation_date + timedelta(days=days).total_seconds()
        document |= {"RotationPeriodInDays": days, "NextRotationDate": due}
    return json.dumps(document)


def _deletion(moto: Callable[..., str], response: KmsResponse) -> str:
    days = response._get_param("PendingWindowInDays") or 30
    document, key = json.loads(moto(response)), _key_of(response)
    return json.dumps(document | {"KeyId": key.arn, "KeyState": key.key_state, "PendingWindowInDays": days})


def install(world: World) -> None:
    if OF_FSX not in RESERVED_ALIASES:
        RESERVED_ALIASES.append(OF_FSX)
    wrap(KmsBackend, "create_key", _create)
    wrap(KmsBackend, "_generate_default_keys", _default)
    wrap(Key, "to_dict", _describe_key)
    wrap(KmsResponse, "enable_key_rotation", _enable)
    wrap(KmsResponse, "get_key_rotation_status", _rotation)
    wrap(KmsResponse, "schedule_key_deletion", _deletion)
