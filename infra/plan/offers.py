"""How GPU nodes can be had, from the catalogue. Offline; what the quota leaves is added by who asks the account."""

from __future__ import annotations

from infra.plan import catalogue
from infra.plan.facts import Offer
from infra.spec.campaign import Capacity, Spec

__all__ = ["Offer", "catalogue_offers"]


def catalogue_offers(spec: Spec) -> tuple[Offer, ...]:
    """The spec's own price, else the catalogue's on-demand price.

    A reservation bills the on-demand rate, and for spot that rate is a bound. A capacity block is quoted per offering
    and paid up front: without a price in the spec it has none here.
    """
    known = {item.name: item for item in catalogue.instance_types()}
    item = known.get(spec.nodes.instance_type)
    if item is None:
        return ()
    price = item.price_usd_per_hour if spec.nodes.capacity is not Capacity.CAPACITY_BLOCK else None
    return (
        Offer(
            instance_type=item.name,
            zone=spec.zone,
            capacity=spec.nodes.capacity,
            usd_per_hour=price if spec.nodes.usd_per_hour is None else spec.nodes.usd_per_hour,
            quota_vcpus=None,
            as_of=item.price.as_of,
            source=item.price.source if spec.nodes.usd_per_hour is None else "the spec",
        ),
    )
