"""Instance types in AWS: DescribeInstanceTypes and the price list, with the catalogue's fields."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

from infra.aws.account import Account

PRICE_LIST_REGION = "us-east-1"
"""The Price List API has endpoints in few regions, each for all regions."""
_DESCRIBED_AT_ONCE = 100
_SPEED = re.compile(r"(?:(?P<cards>\d+)x )?(?P<gbit>\d+) Gigabit")
"""As `4x 100 Gigabit`; "Up to" is no speed that a node can count on."""
_LINUX = {"operatingSystem": "Linux", "tenancy": "Shared", "preInstalledSw": "NA", "capacitystatus": "Used",
          "marketoption": "OnDemand"}  # fmt: skip


def describe_types(account: Account, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return type -> its fields in AWS; types that the region does not offer are omitted."""
    ec2, rows = account.client("ec2"), dict[str, dict[str, Any]]()
    for start in range(0, len(names), _DESCRIBED_AT_ONCE):
        # By filter, since an unknown name as an argument fails the whole call.
        filters = [{"Name": "instance-type", "Values": list(names[start : start + _DESCRIBED_AT_ONCE])}]
        for page in ec2.get_paginator("describe_instance_types").paginate(Filters=filters):
            rows |= {row["InstanceType"]: fields(row) for row in page["InstanceTypes"]}
    return rows


def fields(item: dict[str, Any]) -> dict[str, Any]:
    """Return an InstanceTypeInfo in the catalogue's fields; fields that the API lacks are omitted."""
    network, disks = item["NetworkInfo"], (item.get("InstanceStorageInfo") or {}).get("Disks") or [{}]
    cards = network["NetworkCards"]
    values: dict[str, Any] = {
        "vcpus": item["VCpuInfo"]["DefaultVCpus"],
        "memory_gib": item["MemoryInfo"]["SizeInMiB"] // 1024,
        "nvme_count": disks[0].get("Count", 0),
        "nvme_gb": disks[0].get("SizeInGB", 0),
        "network_cards": network["MaximumNetworkCards"],
        "interfaces_per_card": min(card["MaximumNetworkInterfaces"] for card in cards),
        "efa_interfaces": (network.get("EfaInfo") or {}).get("MaximumEfaInterfaces", 0),
        "capacity_block": "capacity-block" in item.get("SupportedUsageClasses", ()),
    }
    if speed := _SPEED.fullmatch(network.get("NetworkPerformance", "")):
        values["network_gbit_s"] = int(speed["cards"] or 1) * int(speed["gbit"])
    if "InterfaceTypes" in cards[0]:
        values["efa_on_first_card"] = bool({"efa", "efa-only"} & set(cards[0]["InterfaceTypes"]))
    devices = (item.get("GpuInfo") or {}).get("Gpus") or (item.get("NeuronInfo") or {}).get("NeuronDevices") or ()
    if devices:
        values["accelerators"] = devices[0]["Count"]
        values["accelerator_memory_gib"] = round(devices[0]["MemoryInfo"]["SizeInMiB"] / 1024, 4)
    return values


def on_demand_prices(account: Account, names: Sequence[str], region: str) -> Iterator[tuple[str, Decimal | None]]:
    """Yield (type, USD per hour) for Linux on demand; None if the region's price list has none."""
    client = (account if account.region == PRICE_LIST_REGION else Account(PRICE_LIST_REGION)).client("pricing")
    for name in names:
        conditions = {**_LINUX, "instanceType": name, "regionCode": region}
        filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in conditions.items()]
        pages = client.get_paginator("get_products").paginate(ServiceCode="AmazonEC2", Filters=filters)
        prices = {price for page in pages for text in page["PriceList"] for price in _hourly(json.loads(text))}
        yield name, min(prices, default=None)


def _hourly(product: dict[str, Any]) -> Iterator[Decimal]:
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term["priceDimensions"].values():
            usd = Decimal(dimension["pricePerUnit"].get("USD", "0"))
            if usd and dimension["unit"] == "Hrs":
                yield Decimal(f"{usd.normalize():f}")
