"""The catalogue: dated facts about instance types, prices, charts and what a node must prove. Data, no look-ups."""

from infra.catalogue.charts import Addon, Chart, Operator, addons, asked_for, charts, operators
from infra.catalogue.expectations import Bandwidth, bandwidth, expectation, profiles
from infra.catalogue.instance_types import InstanceType, instance_type, instance_types
from infra.catalogue.prices import Prices, service_prices
from infra.catalogue.quotas import Quota, counted, quota
from infra.catalogue.zones import no_control_plane

__all__ = [
    "Addon",
    "Bandwidth",
    "Chart",
    "InstanceType",
    "Operator",
    "Prices",
    "Quota",
    "addons",
    "asked_for",
    "bandwidth",
    "charts",
    "counted",
    "expectation",
    "instance_type",
    "instance_types",
    "no_control_plane",
    "operators",
    "profiles",
    "quota",
    "service_prices",
]
