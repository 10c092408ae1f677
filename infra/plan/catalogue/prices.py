"""Prices of everything that bills besides the GPU nodes."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from functools import cache

from infra.plan.catalogue.reading import read, unknown
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

    def lustre(self, deployment: str, throughput_mbs_per_tib: int | None) -> Decimal:
        """Return USD per GB and month; SCRATCH_2 has one tier for any input. Raise `UserError` for an unknown tier."""
        tiers = self.lustre_usd_per_gb_month.get(deployment, {})
        if len(tiers) == 1:
            return next(iter(tiers.values()))
        try:
            return tiers[throughput_mbs_per_tib or 0]
        except KeyError:
            name = f"{deployment}/{throughput_mbs_per_tib}"
            names = [f"{d}/{t}" for d, ts in self.lustre_usd_per_gb_month.items() for t in ts]
            raise unknown("Lustre tier", name, names) from None


@cache
def service_prices() -> Prices:
    return Prices.model_validate(read("prices"))
