"""vCPU quotas of the account: the unused part for an instance type and purchase option."""

from __future__ import annotations

import re
from typing import Any

from infra.aws.account import Account, every
from infra.plan import catalogue
from infra.plan.catalogue import InstanceType, Quota
from trainer.contract.frozen import Frozen

_FAMILIES = {
    (False, "P"): r"p\d", (False, "G and VT"): r"(g|vt)\d", (False, "Trn"): r"trn\d",
    (True, "P5"): r"p5", (True, "P4, P3 and P2"): r"p[234]", (True, "G and VT"): r"(g|vt)\d", (True, "Trn"): r"trn\d",
}  # fmt: skip
"""(spot, family) -> pattern of the instance types that the quota counts."""
_STANDARD = re.compile(r"[acdhimrtz]\d")


class QuotaUse(Frozen):
    code: str
    name: str
    vcpus: int
    used: int
    """vCPUs of running instances; on demand also of unused places in reservations."""

    @property
    def free(self) -> int:
        return max(0, self.vcpus - self.used)


def quota_use(account: Account, item: InstanceType, *, spot: bool) -> QuotaUse | None:
    """Return the quota and its use; None if the quota is unknown. Raises botocore's errors."""
    quota = catalogue.quota(item, spot=spot)
    family = item.spot_quota_family if spot else item.quota_family
    if quota is None or family is None:
        return None
    vcpus = _vcpus_in_use(account, re.compile(_FAMILIES[spot, family]), spot)
    return QuotaUse(code=quota.code, name=quota.name, vcpus=quota_value(account, quota), used=vcpus)


def standard_vcpus(account: Account, *, spot: bool) -> int:
    """Return the used vCPUs of general types, which one quota counts. Raises botocore's errors."""
    return _vcpus_in_use(account, _STANDARD, spot)


def quota_value(account: Account, quota: Quota) -> int:
    """Return the quota's value in this account and region; raise botocore's errors."""
    client, key = account.client("service-quotas"), {"ServiceCode": quota.service, "QuotaCode": quota.code}
    try:
        value = client.get_service_quota(**key)["Quota"]
    except client.exceptions.NoSuchResourceException:
        # The quota was never raised for this account.
        value = client.get_aws_default_service_quota(**key)["Quota"]
    return int(value["Value"])


def _vcpus_in_use(account: Account, types: re.Pattern[str], spot: bool) -> int:
    """Return used vCPUs. Instances in a capacity block do not count against the on-demand quota."""
    states = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    total = 0
    for group in every(account.client("ec2"), "describe_instances", "Reservations", Filters=states):
        for instance in group["Instances"]:
            lifecycle = instance.get("InstanceLifecycle")
            if types.match(instance["InstanceType"]) and lifecycle == ("spot" if spot else None):
                total += _vcpus(instance)
    return total if spot else total + _vcpus_reserved(account, types)


def _vcpus_reserved(account: Account, types: re.Pattern[str]) -> int:
    """ "Active and unused Capacity Reservations count toward your On-Demand Instance limits" (EC2's guide, which also
    has the states). Blocks do not count."""
    states = [{"Name": "state", "Values": ["active", "pending", "assessing", "scheduled", "delayed"]}]
    vcpus = {item.name: item.vcpus for item in catalogue.instance_types()}
    return sum(
        (reservation.get("AvailableInstanceCount") or 0) * vcpus.get(reservation["InstanceType"], 0)
        for reservation in every(
            account.client("ec2"), "describe_capacity_reservations", "CapacityReservations", Filters=states
        )
        if reservation.get("ReservationType") != "capacity-block" and types.match(reservation["InstanceType"])
    )


def _vcpus(instance: dict[str, Any]) -> int:
    vcpus = {item.name: item.vcpus for item in catalogue.instance_types()}
    if instance["InstanceType"] in vcpus:
        return vcpus[instance["InstanceType"]]
    options = instance.get("CpuOptions") or {}
    return int(options.get("CoreCount", 0)) * int(options.get("ThreadsPerCore", 0))
