"""All resource types that a program may use in a rehearsal."""

from __future__ import annotations

from infra.rehearsal.plugins.aws import budget_actions, budgets, builds, iam, logs, policies, schedules, sns
from infra.rehearsal.plugins.aws.call import Resource
from infra.rehearsal.plugins.aws.ec2 import endpoints, gateways, launch, peering, routes, security, security_rules, vpcs
from infra.rehearsal.plugins.aws.eks import access, addons, clusters, nodes
from infra.rehearsal.plugins.aws.storage import bucket_settings, buckets, keys, lustre, repositories

_MODULES = (
    vpcs,
    gateways,
    peering,
    routes,
    endpoints,
    security,
    security_rules,
    launch,
    iam,
    policies,
    buckets,
    bucket_settings,
    repositories,
    clusters,
    nodes,
    addons,
    access,
    lustre,
    logs,
    builds,
    schedules,
    budgets,
    budget_actions,
    keys,
    sns,
)

RESOURCES: dict[str, Resource] = {resource.token: resource for module in _MODULES for resource in module.RESOURCES}
