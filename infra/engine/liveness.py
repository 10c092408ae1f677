"""State of a resource whose start no engine saw, by AWS: coming, there or failed. An engine that is ended gently stops
waiting and reports an error; the resource may still be fine."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from botocore.exceptions import ClientError

from infra.aws.account import Account, says_missing
from infra.kinds import kind_of_type


class Life(StrEnum):
    COMING = "coming"
    THERE = "there"
    FAILED = "failed"
    """Also gone, or of a kind without a status."""


_COMING = frozenset({"CREATING", "UPDATING", "pending", "PENDING"})
_THERE = frozenset({"ACTIVE", "AVAILABLE", "available"})


def life(account: Account, resource: Mapping[str, Any]) -> Life:
    """Return the life of a resource of Pulumi's state, by its type and id."""
    ask = kind_of_type(str(resource["type"])).status
    if ask is None or not resource.get("id"):
        return Life.FAILED
    try:
        status = ask(account, str(resource["id"]))
    except ClientError as error:
        if says_missing(error):
            return Life.FAILED
        raise
    if status in _COMING:
        return Life.COMING
    return Life.THERE if status in _THERE else Life.FAILED
