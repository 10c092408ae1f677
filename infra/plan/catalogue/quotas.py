"""Service Quotas: which one counts an instance type's vCPUs, and which count what else a campaign makes."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict

from infra.plan.catalogue.instance_types import InstanceType
from infra.plan.catalogue.reading import read


class Quota(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    code: str
    name: str
    service: str = "ec2"
    """Service code of Service Quotas."""


@cache
def _table() -> dict[str, Any]:
    return read("quotas")


def quota(item: InstanceType, *, spot: bool) -> Quota | None:
    """None where no source says which quota counts this type (`InstanceType.why_absent` says why)."""
    family = item.spot_quota_family if spot else item.quota_family
    found = _table()["spot" if spot else "on_demand"].get(family)
    return None if found is None else Quota.model_validate(found)


def counted(what: str) -> Quota:
    """The quota that counts what a campaign makes besides instances; KeyError for what the table does not have."""
    return Quota.model_validate(_table()["counted"][what])
