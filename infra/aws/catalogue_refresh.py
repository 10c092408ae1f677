"""Comparison of the catalogue of instance types with AWS, and the file with AWS's figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date
from decimal import Decimal
from typing import Any

from infra.aws.account import Account
from infra.aws.price_list import described, on_demand_prices
from infra.plan import catalogue
from infra.plan.catalogue.instance_types import FILE, InstanceType
from infra.plan.catalogue.reading import read
from trainer.contract.frozen import Frozen

_ROUNDING = 0.001
"""Relative tolerance of memory in GiB: the file has six digits."""
PRICE = "price_usd_per_hour"
_NO_PRICE = "the price list of {region} has none"


class Difference(Frozen):
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
    differences: tuple[Difference, ...]
    not_offered: tuple[str, ...]
    """Types that DescribeInstanceTypes does not list in this region: their figures are kept."""
    content: dict[str, Any]
    """The file's content with AWS's figures."""


def compare(account: Account, on: date, say: Callable[[str], None]) -> Refreshed:
    """Compare all types of the catalogue with AWS; raise botocore's errors."""
    items = catalogue.instance_types()
    names = [item.name for item in items]
    say(f"DescribeInstanceTypes: {len(names)} types")
    hardware = described(account, names)
    prices = dict[str, Decimal | None]()
    for name, price in on_demand_prices(account, names, account.region):
        prices[name] = price
        say(f"price list: {len(prices)} of {len(names)}")
    differences = tuple(one for item in items for one in _differences(item, hardware.get(item.name), prices[item.name]))
    not_offered = tuple(name for name in names if name not in hardware)
    content = _content(differences, account.region, on, not_offered)
    return Refreshed(region=account.region, on=on, differences=differences, not_offered=not_offered, content=content)


def _differences(item: InstanceType, hardware: dict[str, Any] | None, price: Decimal | None) -> Iterator[Difference]:
    for field, theirs in (hardware or {}).items():
        ours = getattr(item, field)
        if not _same(ours, theirs):
            yield Difference(
                instance_type=item.name, field=field, ours=str(ours), aws=str(theirs), kept=item.kept.get(field)
            )
    # A region without the type has no price for it: the known price is kept.
    if hardware is not None and item.price_usd_per_hour != price:
        ours, theirs = (None if one is None else f"{one.normalize():f}" for one in (item.price_usd_per_hour, price))
        yield Difference(instance_type=item.name, field=PRICE, ours=ours, aws=theirs, kept=item.kept.get(PRICE))


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, float) or isinstance(theirs, float):
        return abs(ours - theirs) <= _ROUNDING * max(abs(ours), abs(theirs))
    return bool(ours == theirs)


def _content(
    differences: tuple[Difference, ...], region: str, on: date, not_offered: tuple[str, ...]
) -> dict[str, Any]:
    """Return the file's new content. If a type is not offered, the hardware's date stays, since not all was checked."""
    content = read(FILE)
    content["price"] = {"as_of": on, "source": "AWS price list: Linux, on demand", "region": region}
    if not not_offered:
        content["hardware"] = {"as_of": on, "source": f"EC2 DescribeInstanceTypes in {region}"}
    for one in differences:
        if one.kept is None:
            content["types"][one.instance_type] = _changed(content["types"][one.instance_type], one, region)
    return content


def _changed(row: dict[str, Any], one: Difference, region: str) -> dict[str, Any]:
    absent = dict(row.get("absent", {}))
    if one.field == PRICE and one.aws is None:
        row = {key: value for key, value in row.items() if key != PRICE}
        absent[PRICE] = _NO_PRICE.format(region=region)
    else:
        value = one.aws if one.field == PRICE else _typed(one.field, str(one.aws))
        row, _ = {**row, one.field: value}, absent.pop(one.field, None)
    row = {key: row[key] for key in InstanceType.model_fields if key in row and key != "absent"}
    kept = {"kept": row.pop("kept")} if "kept" in row else {}
    return {**row, **({"absent": absent} if absent else {}), **kept}


def _typed(field: str, text: str) -> Any:
    """Return the value as YAML has it."""
    if text in ("True", "False"):
        return text == "True"
    number = float(text)
    return number if field == "accelerator_memory_gib" and number != int(number) else int(number)
