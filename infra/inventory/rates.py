"""What a thing that is left bills by the hour, from what its listing shows and the catalogue's prices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any

from infra.inventory.thing import Thing
from infra.plan.catalogue import instance_types, service_prices
from infra.plan.estimates.cost import HOURS_PER_MONTH

UNPRICED = frozenset({"volume", "snapshot", "image", "load balancer", "classic load balancer", "VPC peering", "bucket"})
"""Kinds that bill and whose price the catalogue does not hold: by the GB and month, mostly."""
_FREE = Decimal(0)


def usd_per_hour(kind: str, one: Thing) -> Decimal | None:
    """0 for what costs nothing by the hour, or no more; None where it bills and no price is known."""
    if one.leaving:
        return _FREE
    if kind in UNPRICED:
        return None
    price = _PRICES.get(kind)
    return price(one.traits) if price else _FREE


def total(rates: Iterable[Decimal | None]) -> tuple[Decimal, int]:
    """The sum of what is known, and how many are not."""
    several = list(rates)
    return sum((one for one in several if one is not None), Decimal(0)), sum(one is None for one in several)


def together(rates: Iterable[Decimal | None]) -> str:
    """The sum in words, with what it leaves out."""
    known, unknown = total(rates)
    more = f", and {unknown} whose price is not in the catalogue" if unknown else ""
    return f"together {shown(known)} USD/h{more}"


def shown(rate: Decimal | None) -> str:
    return "?" if rate is None else f"{rate.quantize(Decimal('0.001'))}"


def _of_type(name: str) -> Decimal | None:
    system = service_prices().system_node_usd_per_hour.get(name)
    known = {item.name: item.price_usd_per_hour for item in instance_types()}
    return system if system is not None else known.get(name)


def _instance(traits: Mapping[str, Any]) -> Decimal | None:
    state = traits.get("State") or {}
    billing = state.get("Name") if isinstance(state, Mapping) else state
    return _of_type(str(traits.get("InstanceType"))) if billing in ("pending", "running") else _FREE


def _reservation(traits: Mapping[str, Any]) -> Decimal | None:
    """A reservation bills in full whether it is used or not; what runs in it is then not billed a second time."""
    price = _of_type(str(traits.get("InstanceType")))
    return None if price is None else price * int(traits.get("TotalInstanceCount") or 1)


def _file_system(traits: Mapping[str, Any]) -> Decimal | None:
    lustre = traits.get("LustreConfiguration") or {}
    tiers = service_prices().lustre_usd_per_gb_month.get(str(lustre.get("DeploymentType")), {})
    price = next(iter(tiers.values())) if len(tiers) == 1 else tiers.get(lustre.get("PerUnitStorageThroughput") or 0)
    return None if price is None else int(traits.get("StorageCapacity") or 0) * price / HOURS_PER_MONTH


def _endpoint(traits: Mapping[str, Any]) -> Decimal:
    if str(traits.get("VpcEndpointType", "Gateway")).lower() != "interface":
        return _FREE
    return service_prices().interface_endpoint_usd_per_hour * max(1, len(traits.get("SubnetIds") or ()))


_PRICES: dict[str, Callable[[Mapping[str, Any]], Decimal | None]] = {
    "instance": _instance,
    "capacity reservation": _reservation,
    "file system": _file_system,
    "VPC endpoint": _endpoint,
    "cluster": lambda traits: service_prices().eks_cluster_usd_per_hour,
    "NAT gateway": lambda traits: service_prices().nat_gateway_usd_per_hour,
    "elastic address": lambda traits: service_prices().public_ipv4_usd_per_hour,
}
