"""Prices of everything that bills besides the GPU nodes."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from functools import cache

from infra.plan.catalogue.reading import read
from trainer.contract.frozen import Frozen


class Prices(Frozen):
    """Prices of us-east-1 on the day `as_of`."""

    as_of: date
    source: str
    eks_cluster_usd_per_hour: Decimal
    nat_gateway_usd_per_hour: Decimal
    nat_gateway_usd_per_gb: Decimal
    interface_endpoint_usd_per_hour: Decimal
    """Price per endpoint and zone."""
    public_ipv4_usd_per_hour: Decimal
    s3_standard_usd_per_gb_month: Decimal
    ebs_snapshot_usd_per_gb_month: Decimal
    """Bills the written blocks, which are at most the volume's size."""
    ecr_usd_per_gb_month: Decimal
    system_node_usd_per_hour: dict[str, Decimal]
    lustre_usd_per_gb_month: dict[str, dict[int, Decimal]]
    """Deployment -> throughput tier in MB/s per TiB -> price."""
    unverified: frozenset[str]
    """Dotted names of the figures from general knowledge."""


@cache
def service_prices() -> Prices:
    return Prices.model_validate(read("prices"))
