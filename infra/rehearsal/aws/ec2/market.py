"""Prices of the emulated AWS: the price list and the spot price history.

On-demand prices are the catalogue's, since a rehearsal has no other source; `/_site/market` sets others:
POST `{"on_demand": {TYPE: "USD" or null}, "spot": {TYPE: "USD"}}`. An empty body reads the prices.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from moto.core.responses import BaseResponse
from moto.ec2.responses import EC2Response

from infra.plan.catalogue import instance_types
from infra.rehearsal.aws.operations import AwsError, Parameters, add_operations
from infra.rehearsal.aws.world import World

SPOT_SHARE = Decimal("0.4")
"""Fraction of the on-demand price: invented, since a rehearsal needs a price and not a quotation."""
ZONES = "abc"


class MarketPrices:
    def __init__(self, world: World) -> None:
        self.world = world
        self.on_demand = {item.name: item.price_usd_per_hour for item in instance_types()}
        self.spot = {name: price * SPOT_SHARE for name, price in self.on_demand.items() if price is not None}

    def route(self, query: str, body: bytes) -> tuple[int, dict[str, Any]]:
        request = json.loads(body) if body else {}
        types = set(self.on_demand)
        if strange := (set(request.get("on_demand", {})) | set(request.get("spot", {}))) - types:
            return 400, {"message": f"no such types: {sorted(strange)}"}
        self.on_demand |= {name: _usd(price) for name, price in request.get("on_demand", {}).items()}
        for name, price in request.get("spot", {}).items():
            self.spot.pop(name, None)
            if price is not None:
                self.spot[name] = Decimal(price)
        prices = {name: None if price is None else str(price) for name, price in self.on_demand.items()}
        return 200, {"on_demand": prices, "spot": {name: str(price) for name, price in self.spot.items()}}

    def get_products(self, params: Parameters) -> dict[str, Any]:
        if params.get("ServiceCode") != "AmazonEC2":
            raise AwsError("NotFoundException", f"the rehearsal's price list has no {params.get('ServiceCode')}")
        criteria = {criterion["Field"]: criterion["Value"] for criterion in params.get("Filters") or ()}
        name = criteria.get("instanceType", "")
        price = self.on_demand.get(name)
        products = [] if price is None else [_product(name, price, criteria.get("regionCode", self.world.region))]
        return {"FormatVersion": "aws_v1", "PriceList": [json.dumps(criterion) for criterion in products]}

    def describe_spot_price_history(self, params: Parameters) -> dict[str, Any]:
        zone = params.get("AvailabilityZone")
        zones = [zone] if zone else [f"{self.world.region}{letter}" for letter in ZONES]
        rows = [
            {"AvailabilityZone": zone, "InstanceType": name, "ProductDescription": "Linux/UNIX",
             "SpotPrice": f"{self.spot[name]:.6f}", "Timestamp": datetime.now(UTC)}
            for name in params.get("InstanceTypes") or self.spot if name in self.spot
            for zone in zones
        ]  # fmt: skip
        return {"SpotPriceHistory": rows}


class PricingResponse(BaseResponse):
    """AWS Price List, which moto lacks."""

    def __init__(self) -> None:
        super().__init__(service_name="pricing")
        self.automated_parameter_parsing = True


def _usd(text: str | None) -> Decimal | None:
    return None if text is None else Decimal(text)


def _product(name: str, price: Decimal, region: str) -> dict[str, Any]:
    """Return one element of PriceList, in the API's documented shape."""
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": f"{price:.10f}"}, "beginRange": "0", "endRange": "Inf"}
    return {
        "product": {
            "productFamily": "Compute Instance",
            "sku": f"REHEARSED-{name}",
            "attributes": {"instanceType": name, "regionCode": region, "operatingSystem": "Linux"},
        },
        "serviceCode": "AmazonEC2",
        "terms": {"OnDemand": {f"{name}.term": {"priceDimensions": {f"{name}.hour": dimension}}}},
    }


def install(world: World) -> None:
    market = MarketPrices(world)
    world.routes["/_site/market"] = market.route
    world.services["pricing"] = PricingResponse
    add_operations(world, PricingResponse, {"get_products": market.get_products})
    add_operations(world, EC2Response, {"describe_spot_price_history": market.describe_spot_price_history})
