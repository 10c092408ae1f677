"""Leftovers that block a teardown: holders of the VPC, hanging node groups, the file system. Looked up only when
something is stuck. A denied look is reported."""

from __future__ import annotations

from botocore.exceptions import BotoCoreError, ClientError

from infra.aws.account import Account
from infra.kinds import KINDS, Remain, ResourceKind, kind_of_type
from infra.spec.names import Names


def remains(account: Account, names: Names) -> tuple[Remain, ...]:
    """Return everything that blocks the teardown, in the order of removal."""
    kinds = sorted(KINDS, key=lambda kind: kind.step)
    return tuple(row for kind in kinds for row in _remains_or_doubt(account, names, kind))


def holding(type: str, rows: tuple[Remain, ...]) -> Remain | None:
    """Return what most likely holds a resource of Pulumi's type; first what has to be ended, then what only waits."""
    holders = kind_of_type(type).held_by
    blockers = [row for row in rows if holders and row.what.startswith(holders)]
    return next((row for row in blockers if not row.waits), next(iter(blockers), None))


def _remains_or_doubt(account: Account, names: Names, kind: ResourceKind) -> list[Remain]:
    if kind.remains is None:
        return []
    try:
        return list(kind.remains(account, names))
    except (ClientError, BotoCoreError) as error:
        code = error.response["Error"]["Code"] if isinstance(error, ClientError) else type(error).__name__
        return [Remain(f"perhaps more of: {kind.name}s", f"could not look: {code}", "allow the listing")]
