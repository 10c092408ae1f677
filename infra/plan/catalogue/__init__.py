"""The catalogue: dated facts about instance types, prices, charts and preflight profiles. Data without requests."""

from infra.plan.catalogue.charts import Addon, Chart, Operator, addons, asked_for, charts, operators
from infra.plan.catalogue.expectations import bandwidth, expectation, profiles
from infra.plan.catalogue.instance_types import InstanceType, instance_type, instance_types
from infra.plan.catalogue.prices import Prices, service_prices
from infra.plan.catalogue.quotas import Quota, quota, resource_quota
from infra.plan.catalogue.regions import no_control_plane, regions
from infra.plan.catalogue.thresholds import limits, thresholds

__all__ = [
    "Addon",
    "Chart",
    "InstanceType",
    "Operator",
    "Prices",
    "Quota",
    "addons",
    "asked_for",
    "bandwidth",
    "charts",
    "expectation",
    "instance_type",
    "instance_types",
    "limits",
    "no_control_plane",
    "operators",
    "profiles",
    "quota",
    "regions",
    "resource_quota",
    "service_prices",
    "thresholds",
]
