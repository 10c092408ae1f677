"""Service Quotas: the vCPU quota of each instance type, and the quotas of a campaign's other resources."""

from __future__ import annotations

from functools import cache
from typing import Any

from infra.plan.catalogue.instance_types import InstanceType
from infra.plan.catalogue.reading import read
from trainer.contract.frozen import Frozen


class Quota(Frozen):
    code: str
    name: str
    service: str = "ec2"
    """Service code of Service Quotas."""


@cache
def _table() -> dict[str, Any]:
    return read("quotas")


def quota(item: InstanceType, *, spot: bool) -> Quota | None:
    """Return the vCPU quota of this type; None if no source states it (`InstanceType.why_absent` has the reason)."""
    family = item.spot_quota_family if spot else item.quota_family
    row = _table()["spot" if spot else "on_demand"].get(family)
    return None if row is None else Quota.model_validate(row)


def resource_quota(resource: str) -> Quota:
    """Return the quota of another resource of a campaign; raise KeyError if the table lacks it."""
    return Quota.model_validate(_table()["counted"][resource])
