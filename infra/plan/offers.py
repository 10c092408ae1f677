"""Offers of GPU nodes from the catalogue, without requests; callers with an account add the quota."""

from __future__ import annotations

from infra.plan import catalogue
from infra.plan.facts import Offer
from infra.spec.campaign import Capacity, Spec

__all__ = ["Offer", "catalogue_offers"]


def catalogue_offers(spec: Spec) -> tuple[Offer, ...]:
    """Return an offer at the spec's own price, else at the catalogue's on-demand price.

    A reservation bills the on-demand rate; for spot that rate is an upper bound. A capacity block is quoted per
    offering and paid upfront, so it has no price here unless the spec has one.
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
