"""The catalogue: dated facts about instance types, prices, charts and what a node must prove. Data, no look-ups."""

from infra.catalogue.charts import Addon, Chart, addons, asked_for, charts
from infra.catalogue.expectations import expectation, profiles
from infra.catalogue.instance_types import InstanceType, instance_type, instance_types
from infra.catalogue.prices import Prices, service_prices

__all__ = [
    "Addon",
    "Chart",
    "InstanceType",
    "Prices",
    "addons",
    "asked_for",
    "charts",
    "expectation",
    "instance_type",
    "instance_types",
    "profiles",
    "service_prices",
]
