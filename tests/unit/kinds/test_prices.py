"""What an hour of a listed item costs, by hand from the catalogue's prices; None bills and has no price."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from infra.inventory.sweep import usd_per_hour
from infra.kinds import Thing, kind_named


def machine(type: str, state: str) -> dict[str, Any]:
    return {"InstanceType": type, "State": {"Name": state}}


def lustre(gib: int | None, **more: Any) -> dict[str, Any]:
    size = {} if gib is None else {"StorageCapacity": gib}
    return {**size, "LustreConfiguration": more}


P5, HUGE = "p5.48xlarge", "x9.huge"
PRICES: list[tuple[str, dict[str, Any], str | None]] = [
    ("instance", machine("m7i.large", "running"), "0.1008"),
    ("instance", machine("m7i.2xlarge", "pending"), "0.4032"),
    ("instance", machine(P5, "running"), "55.04"),
    ("instance", machine(P5, "stopped"), "0"),
    ("instance", machine(P5, "shutting-down"), "0"),
    ("instance", machine(HUGE, "running"), None),
    ("instance", machine(HUGE, "stopped"), "0"),
    ("capacity reservation", {"InstanceType": P5, "TotalInstanceCount": 3}, "165.12"),
    ("capacity reservation", {"InstanceType": P5}, "55.04"),
    ("capacity reservation", {"InstanceType": "m7i.xlarge", "TotalInstanceCount": 10}, "2.016"),
    ("capacity reservation", {"InstanceType": HUGE, "TotalInstanceCount": 3}, None),
    ("cluster", {}, "0.10"),
    ("NAT gateway", {}, "0.045"),
    ("elastic address", {}, "0.005"),
    ("VPC endpoint", {}, "0"),
    ("VPC endpoint", {"VpcEndpointType": "Gateway", "SubnetIds": ["subnet-1"]}, "0"),
    ("VPC endpoint", {"VpcEndpointType": "Interface", "SubnetIds": ["subnet-1", "subnet-2"]}, "0.02"),
    ("VPC endpoint", {"VpcEndpointType": "interface"}, "0.01"),
    ("VPC endpoint", {"VpcEndpointType": "GatewayLoadBalancer", "SubnetIds": ["subnet-1"]}, None),
    ("VPC endpoint", {"VpcEndpointType": "Resource"}, None),
    # 7300 GiB x 0.140 USD / 730 h, and so on.
    ("file system", lustre(7300, DeploymentType="SCRATCH_2"), "1.4"),
    ("file system", lustre(7300, DeploymentType="PERSISTENT_2", PerUnitStorageThroughput=125), "1.45"),
    ("file system", lustre(7300, DeploymentType="PERSISTENT_2", PerUnitStorageThroughput=250), "2.1"),
    ("file system", lustre(7300, DeploymentType="PERSISTENT_2", PerUnitStorageThroughput=1000), "6"),
    ("file system", lustre(7300, DeploymentType="PERSISTENT_2", PerUnitStorageThroughput=40), None),
    ("file system", lustre(7300, DeploymentType="PERSISTENT_2"), None),
    ("file system", lustre(7300, DeploymentType="PERSISTENT_1", PerUnitStorageThroughput=50), None),
    ("file system", lustre(None, DeploymentType="SCRATCH_2"), "0"),
    ("file system", {"StorageCapacity": 300}, None),
    ("volume", {"Size": 10}, None),
    ("snapshot", {}, None),
    ("image", {}, None),
    ("bucket", {}, None),
    ("load balancer", {}, None),
    ("classic load balancer", {}, None),
    ("VPC peering", {}, None),
    ("subnet", {}, "0"),
    ("role", {}, "0"),
]


@pytest.mark.parametrize(("kind", "item", "usd"), PRICES)
def test_an_hour_costs_what_the_catalogue_says(kind: str, item: dict[str, Any], usd: str | None) -> None:
    assert kind_named(kind).price(item) == (None if usd is None else Decimal(usd))


def test_what_leaves_bills_no_more() -> None:
    there, leaving = (usd_per_hour("NAT gateway", Thing("nat-1", leaving=one)) for one in (False, True))
    assert (there, leaving) == (Decimal("0.045"), 0)
