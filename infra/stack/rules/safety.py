"""Rules against lasting bills and leftovers: tags, deadline, budget, the order of deletion."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from infra.plan.checks.finding import Draft, error
from infra.spec.campaign import Spec
from infra.spec.names import CAMPAIGN_TAG, EXPIRES_TAG, FOUNDATION_TAG, OWNER_TAG, REGION_TAG, Names
from infra.stack.rules.graph import UNKNOWN, Graph, GraphResource
from infra.stack.rules.network import GPU_TEMPLATE

_LAUNCHED = {"instance", "volume", "network-interface"}


def resource_tags(graph: Graph, spec: Spec) -> Iterator[Draft]:
    """All taggable resources have campaign, owner, end and region: teardown, certificate and sweep rely on them."""
    providers = [resource for resource in graph if resource.type == "pulumi:providers:aws"]
    marks = _marks(graph, spec)
    for provider in providers:
        missing = _missing(_document(provider.inputs.get("defaultTags")).get("tags") or {}, marks)
        if missing:
            yield error(
                provider, "does not mark what it makes", seen=f"without {missing}", cure="default_tags with these tags"
            )
    urns = {resource.urn for resource in providers}
    for resource in graph:
        if resource.type.startswith("aws:") and resource.provider.rpartition("::")[0] not in urns:
            message, cure = "is made by another provider, which does not mark it", "give it the campaign's provider"
            yield error(resource, message, seen=resource.provider or "the default one", cure=cure)
        for key, value in (resource.inputs.get("tags") or {}).items():
            if resource.type.startswith("aws:") and key in marks and marks[key] not in (None, value):
                yield error(resource, "carries another's tag", seen=f"{key}={value}", cure=f"{key}={marks[key]}")
    for template in graph.of("LaunchTemplate"):
        launch_tags = {
            resource["resourceType"]: resource.get("tags") or {}
            for resource in template.inputs.get("tagSpecifications") or ()
        }
        bare = sorted(kind for kind in _LAUNCHED if _missing(launch_tags.get(kind, {}), marks))
        if bare:
            detail = f"without tags: {', '.join(bare)}"
            cure = "tag_specifications for instance, volume and network-interface"
            yield error(template, "does not mark what Auto Scaling launches from it", seen=detail, cure=cure)


def _marks(graph: Graph, spec: Spec) -> dict[str, str | None]:
    """Return tag -> value, None where any will do."""
    if graph.of("Repository"):
        return {FOUNDATION_TAG: "true"}
    return {CAMPAIGN_TAG: spec.campaign, OWNER_TAG: spec.owner, EXPIRES_TAG: None, REGION_TAG: spec.region}


def _missing(tags: Mapping[str, Any], marks: Mapping[str, str | None]) -> str:
    absent_keys = [key for key, value in marks.items() if key not in tags or value not in (None, tags[key])]
    return ", ".join(absent_keys)


def deadline_guard(graph: Graph, spec: Spec) -> Iterator[Draft]:
    """AWS sets the GPU nodes to zero at the deadline: a schedule that names them exists before them."""
    names, schedules = Names(spec), graph.of("Schedule")
    for group in (resource for resource in graph.of("NodeGroup") if resource.name == GPU_TEMPLATE):
        guards = [resource for resource in schedules if _stops_group(resource, names.cluster, names.gpu_group)]
        if not guards:
            cure = "a schedule that sets this group to zero"
            yield error(group, "no schedule stops it at the deadline", seen=f"{len(schedules)} schedules", cure=cure)
        elif not any(
            graph.depends_on(group, resource) and not graph.depends_on(resource, group) for resource in guards
        ):
            cure = "let the group depend on the schedule, never the other way round"
            yield error(group, "may run before its schedule exists", seen="no dependency on the schedule", cure=cure)


def _stops_group(schedule: GraphResource, cluster: str, group: str) -> bool:
    request = _document((schedule.inputs.get("target") or {}).get("input"))
    sizes = request.get("ScalingConfig") or {}
    is_target = (request.get("ClusterName"), request.get("NodegroupName")) == (cluster, group)
    is_enabled = schedule.inputs.get("state") != "DISABLED"
    return is_enabled and is_target and (sizes.get("MinSize"), sizes.get("DesiredSize")) == (0, 0)


def campaign_budget(graph: Graph, spec: Spec) -> Iterator[Draft]:
    """A budget counts what has the campaign's tag and allows no more than the campaign may spend, less the fee of a
    block, which no tag counts."""
    if not graph.of("NodeGroup"):
        return
    budgets = graph.of("Budget")
    if not budgets:
        cure = "keep the component Budget in the campaign's program: AWS then warns also where none of us is alive"
        yield error("stack", "no budget watches this campaign", seen="no aws.budgets.Budget", cure=cure)
    tag = f"user:{CAMPAIGN_TAG}${spec.campaign}"
    for budget in budgets:
        values = [
            value for cost_filter in budget.inputs.get("costFilters") or () for value in cost_filter.get("values") or ()
        ]
        if tag not in values:
            yield error(
                budget, "counts the cost of something else", seen=values or "everything", cure=f"filter by {tag}"
            )
        limit = Decimal(str(budget.inputs.get("limitAmount") or 0))
        if limit > spec.tagged_budget_usd:
            cure = f"{spec.tagged_budget_usd}: money.budget_usd, less the fee of a block, which carries no tag"
            yield error(budget, "allows more than the campaign may spend", seen=limit, cure=cure)
        if limit <= 0:
            cure = "a money.budget_usd above nodes.block_fee_usd: the file system and the control plane bill too"
            yield error(budget, "has nothing to spend: AWS refuses such a budget", seen=limit, cure=cure)


def cni_deletion_order(graph: Graph, spec: Spec) -> Iterator[Draft]:
    """Nodes are deleted before the CNI: interfaces that it leaves behind keep groups and VPC from being deleted."""
    for addon in (candidate for candidate in graph.of("Addon") if candidate.inputs.get("addonName") == "vpc-cni"):
        for group in graph.of("NodeGroup"):
            if not graph.depends_on(group, addon):
                cure = "let the node group depend on it"
                yield error(group, "may outlive the CNI", seen="no dependency on the add-on vpc-cni", cure=cure)


def no_unmanaged_resources(graph: Graph, spec: Spec) -> Iterator[Draft]:
    """No Kubernetes object makes AWS resources that the stack does not know, and all go with the cluster."""
    clusters = {resource.urn for resource in graph.of("Cluster")}
    for resource in graph:
        if not resource.type.startswith("kubernetes:"):
            continue
        spec_ = resource.inputs.get("spec") or {}
        if resource.kind == "Service" and spec_.get("type") == "LoadBalancer":
            yield error(
                resource, "makes a load balancer that the stack does not know", seen="LoadBalancer", cure="ClusterIP"
            )
        if resource.kind == "PersistentVolumeClaim" and not spec_.get("volumeName"):
            message, cure = "makes a volume that the stack does not know", "a static volume by name"
            yield error(resource, message, seen=spec_.get("storageClassName") or "default class", cure=cure)
        if resource.deleted_with not in clusters:
            cure = "deleted_with the cluster"
            yield error(resource, "is not deleted with the cluster", seen=resource.deleted_with or "nothing", cure=cure)


def _document(value: Any) -> dict[str, Any]:
    """Return a JSON text as its object; the provider's nested inputs come as text."""
    if isinstance(value, str) and value != UNKNOWN:
        value = json.loads(value)
    return dict(value) if isinstance(value, Mapping) else {}
