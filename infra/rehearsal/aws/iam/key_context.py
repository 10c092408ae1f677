"""What IAM needs to know of a call to KMS: its keys, and the encryption context that conditions name.

https://docs.aws.amazon.com/service-authorization/latest/reference/list_awskeymanagementservice.html
"""

from __future__ import annotations

from base64 import b64decode
from typing import Any

from moto.kms.utils import KEY_ID_LEN

from infra.rehearsal.aws.world import World

Parameters = dict[str, Any]


def resources(world: World, operation: str, params: Parameters) -> list[str] | None:
    if operation in ("CreateKey", "ListKeys", "ListAliases"):
        return ["*"]
    keys = [params[name] for name in ("KeyId", "TargetKeyId") if params.get(name)]
    if operation == "Decrypt" and not keys:
        keys = [_key_of(params["CiphertextBlob"])]
    aliases = [params["AliasName"]] if params.get("AliasName") else []
    of_account = f"arn:aws:kms:{world.region}:{world.account}"
    arns = [key if key.startswith("arn:") else f"{of_account}:key/{key}" for key in keys if "alias/" not in key]
    return arns + [f"{of_account}:{key}" for key in aliases]


def _key_of(blob: bytes | str) -> str:
    """Return the id of the key that made a ciphertext, with which moto's begins."""
    content = b64decode(blob) if isinstance(blob, str) else blob
    return content[:KEY_ID_LEN].decode("ascii", "replace")


def context(params: Parameters) -> dict[str, list[str]]:
    encryption_context = params.get("EncryptionContext") or {}
    return {f"kms:encryptioncontext:{name.lower()}": [value] for name, value in encryption_context.items()}
