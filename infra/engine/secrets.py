"""What encrypts the secrets of a stack's state: the customer's KMS key where the campaign has one, else a passphrase.

The foundation's stack keeps the passphrase, since it makes the key. A stack keeps what it was made with; the state
names it, with the stack's own key as KMS wrapped it.
https://www.pulumi.com/docs/iac/concepts/secrets/#available-encryption-providers
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from infra.spec.names import STATE_CONTEXT

_PASSPHRASE = "PULUMI_CONFIG_PASSPHRASE"


def passphrase() -> dict[str, str]:
    """Return the engine's variable: the empty passphrase unless the user has set one."""
    return {_PASSPHRASE: os.environ.get(_PASSPHRASE, "")}


def backend(bucket: str, region: str) -> dict[str, str]:
    """Return the engine's variable for the states in the account's own bucket."""
    return {"PULUMI_BACKEND_URL": f"s3://{bucket}?region={region}&awssdk=v2"}


def provider(key_arn: str | None, region: str) -> str | None:
    """Return the address of a new stack's secrets provider; None for the passphrase."""
    name, value = STATE_CONTEXT
    return f"awskms:///{key_arn}?region={region}&awssdk=v2&context_{name}={value}" if key_arn else None


def stack_settings(document: Mapping[str, Any] | None) -> dict[str, str]:
    """Return what `Pulumi.STACK.yaml` has to say for the engine to open a stored checkpoint file on any machine."""
    latest = ((document or {}).get("checkpoint") or {}).get("latest") or {}
    entry = latest.get("secrets_providers") or {}
    if entry.get("type") != "cloud":
        return {}
    return {"secretsprovider": entry["state"]["url"], "encryptedkey": entry["state"]["encryptedkey"]}
