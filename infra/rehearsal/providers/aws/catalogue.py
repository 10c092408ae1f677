"""The table: every resource type that a program may use in a rehearsal."""

from __future__ import annotations

from infra.rehearsal.providers.aws import (
    budget_actions,
    budgets,
    ecr,
    eks,
    eks_access,
    eks_addons,
    eks_nodes,
    endpoints,
    fsx,
    gateways,
    iam,
    kms,
    launch,
    logs,
    network,
    peering,
    policies,
    routes,
    s3,
    s3_settings,
    schedules,
    security,
    security_rules,
    sns,
)
from infra.rehearsal.providers.aws.table import Resource

_MODULES = (
    network,
    gateways,
    peering,
    routes,
    endpoints,
    security,
    security_rules,
    launch,
    iam,
    policies,
    s3,
    s3_settings,
    ecr,
    eks,
    eks_nodes,
    eks_addons,
    eks_access,
    fsx,
    logs,
    schedules,
    budgets,
    budget_actions,
    kms,
    sns,
)

RESOURCES: dict[str, Resource] = {resource.token: resource for module in _MODULES for resource in module.RESOURCES}
