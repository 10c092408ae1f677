"""Instance types in AWS: DescribeInstanceTypes and the price list, with the catalogue's fields; its file compared with
them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from decimal import Decimal
from typing import Any

from infra.aws.account import Account
from infra.plan import catalogue
from infra.plan.catalogue.instance_types import FILE, InstanceType
from infra.plan.catalogue.reading import read
from trainer.contract.frozen import Frozen

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


_ROUNDING = 0.001
"""Relative tolerance of memory in GiB: the file has six digits."""
PRICE = "price_usd_per_hour"
_NO_PRICE = "the price list of {region} has none"


class FigureDifference(Frozen):
    """A figure that differs between catalogue and AWS; None stands for absent."""

    instance_type: str
    field: str
    ours: str | None
    aws: str | None
    kept: str | None = None
    """Reason why a refresh keeps ours."""


class Refreshed(Frozen):
    """Result of a comparison with AWS."""

    region: str
    on: date
    differences: tuple[FigureDifference, ...]
    not_offered: tuple[str, ...]
    """Types that DescribeInstanceTypes does not list in this region: their figures are kept."""
    content: dict[str, Any]
    """The file's content with AWS's figures."""


def compare(account: Account, on: date, say: Callable[[str], None]) -> Refreshed:
    """Compare all types of the catalogue with AWS; raise botocore's errors."""
    items = catalogue.instance_types()
    names = [item.name for item in items]
    say(f"DescribeInstanceTypes: {len(names)} types")
    hardware = describe_types(account, names)
    prices = dict[str, Decimal | None]()
    for name, price in on_demand_prices(account, names, account.region):
        prices[name] = price
        say(f"price list: {len(prices)} of {len(names)}")
    differences = tuple(
        difference for item in items for difference in _differences(item, hardware.get(item.name), prices[item.name])
    )
    not_offered = tuple(name for name in names if name not in hardware)
    content = _content(differences, account.region, on, not_offered)
    return Refreshed(region=account.region, on=on, differences=differences, not_offered=not_offered, content=content)


def _differences(
    item: InstanceType, hardware: dict[str, Any] | None, price: Decimal | None
) -> Iterator[FigureDifference]:
    for field, aws_value in (hardware or {}).items():
        our_value = getattr(item, field)
        if not _is_equal(our_value, aws_value):
            yield FigureDifference(
                instance_type=item.name, field=field, ours=str(our_value), aws=str(aws_value), kept=item.kept.get(field)
            )
    # A region without the type has no price for it: the known price is kept.
    if hardware is not None and item.price_usd_per_hour != price:
        our_value, aws_value = (
            None if usd is None else f"{usd.normalize():f}" for usd in (item.price_usd_per_hour, price)
        )
        yield FigureDifference(
            instance_type=item.name, field=PRICE, ours=our_value, aws=aws_value, kept=item.kept.get(PRICE)
        )


def _is_equal(our_value: Any, aws_value: Any) -> bool:
    if isinstance(our_value, float) or isinstance(aws_value, float):
        return abs(our_value - aws_value) <= _ROUNDING * max(abs(our_value), abs(aws_value))
    return bool(our_value == aws_value)


def _content(
    differences: tuple[FigureDifference, ...], region: str, on: date, not_offered: tuple[str, ...]
) -> dict[str, Any]:
    """Return the file's new content. If a type is not offered, the hardware's date stays, since not all was checked."""
    content = read(FILE)
    content["price"] = {"as_of": on, "source": "AWS price list: Linux, on demand", "region": region}
    if not not_offered:
        content["hardware"] = {"as_of": on, "source": f"EC2 DescribeInstanceTypes in {region}"}
    for difference in differences:
        if difference.kept is None:
            content["types"][difference.instance_type] = _updated_row(
                content["types"][difference.instance_type], difference, region
            )
    return content


def _updated_row(row: dict[str, Any], difference: FigureDifference, region: str) -> dict[str, Any]:
    absent = dict(row.get("absent", {}))
    if difference.field == PRICE and difference.aws is None:
        row = {key: value for key, value in row.items() if key != PRICE}
        absent[PRICE] = _NO_PRICE.format(region=region)
    else:
        value = difference.aws if difference.field == PRICE else _yaml_value(difference.field, str(difference.aws))
        row, _ = {**row, difference.field: value}, absent.pop(difference.field, None)
    row = {key: row[key] for key in InstanceType.model_fields if key in row and key != "absent"}
    kept_reasons = {"kept": row.pop("kept")} if "kept" in row else {}
    return {**row, **({"absent": absent} if absent else {}), **kept_reasons}


def _yaml_value(field: str, text: str) -> Any:
    """Return the value as YAML has it."""
    if text in ("True", "False"):
        return text == "True"
    number = float(text)
    return number if field == "accelerator_memory_gib" and number != int(number) else int(number)
