"""What AWS says of a resource whose coming to life its engine did not see: it comes, it is there, or it has failed.

An engine that is ended gently stops waiting and notes so; that is no failure of what it waited for.
"""

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
    """Or gone, or of a kind that nothing is known about."""


_COMING = frozenset({"CREATING", "UPDATING", "pending", "PENDING"})
_THERE = frozenset({"ACTIVE", "AVAILABLE", "available"})


def life(account: Account, resource: Mapping[str, Any]) -> Life:
    """Of a resource as Pulumi's state holds it, with type and id."""
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
