"""Rules against lasting bills and leftovers: tags, deadline, budget, the order of deletion."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from infra.plan.checks.finding import Draft, error
from infra.spec.campaign import Spec
from infra.spec.names import CAMPAIGN_TAG, EXPIRES_TAG, FOUNDATION_TAG, OWNER_TAG, REGION_TAG, Names
from infra.stack.rules.graph import UNKNOWN, Graph, Resource
from infra.stack.rules.network import GPU_TEMPLATE

_LAUNCHED = {"instance", "volume", "network-interface"}


def resource_tags(graph: Graph, spec: Spec) -> Iterator[Draft]:
    """All taggable resources have campaign, owner, end and region: teardown, certificate and sweep rely on them."""
    providers = [one for one in graph if one.type == "pulumi:providers:aws"]
    wanted = _marks(graph, spec)
    for provider in providers:
        missing = _missing(_document(provider.inputs.get("defaultTags")).get("tags") or {}, wanted)
        if missing:
            yield error(
                provider, "does not mark what it makes", seen=f"without {missing}", cure="default_tags with these tags"
            )
    urns = {one.urn for one in providers}
    for one in graph:
        if one.type.startswith("aws:") and one.provider.rpartition("::")[0] not in urns:
            yield error(
                one,
                "is made by another provider, which does not mark it",
                seen=one.provider or "the default one",
                cure="give it the campaign's provider",
            )
        for key, value in (one.inputs.get("tags") or {}).items():
            if one.type.startswith("aws:") and key in wanted and wanted[key] not in (None, value):
                yield error(one, "carries another's tag", seen=f"{key}={value}", cure=f"{key}={wanted[key]}")
    for template in graph.of("LaunchTemplate"):
        marked = {one["resourceType"]: one.get("tags") or {} for one in template.inputs.get("tagSpecifications") or ()}
        bare = sorted(kind for kind in _LAUNCHED if _missing(marked.get(kind, {}), wanted))
        if bare:
            yield error(
                template,
                "does not mark what Auto Scaling launches from it",
                seen=f"without tags: {', '.join(bare)}",
                cure="tag_specifications for instance, volume and network-interface",
            )


def _marks(graph: Graph, spec: Spec) -> dict[str, str | None]:
    """Return tag -> value, None where any will do."""
    if graph.of("Repository"):
        return {FOUNDATION_TAG: "true"}
    return {CAMPAIGN_TAG: spec.campaign, OWNER_TAG: spec.owner, EXPIRES_TAG: None, REGION_TAG: spec.region}


def _missing(tags: Mapping[str, Any], wanted: Mapping[str, str | None]) -> str:
    lost = [key for key, value in wanted.items() if key not in tags or value not in (None, tags[key])]
    return ", ".join(lost)


def deadline_guard(graph: Graph, spec: Spec) -> Iterator[Draft]:
    """AWS sets the GPU nodes to zero at the deadline: a schedule that names them exists before them."""
    names, schedules = Names(spec), graph.of("Schedule")
    for group in (one for one in graph.of("NodeGroup") if one.name == GPU_TEMPLATE):
        guards = [one for one in schedules if _aims_at(one, names.cluster, names.gpu_group)]
        if not guards:
            yield error(
                group,
                "no schedule stops it at the deadline",
                seen=f"{len(schedules)} schedules",
                cure="a schedule that sets this group to zero",
            )
        elif not any(graph.after(group, one) and not graph.after(one, group) for one in guards):
            yield error(
                group,
                "may run before its schedule exists",
                seen="no dependency on the schedule",
                cure="let the group depend on the schedule, never the other way round",
            )


def _aims_at(schedule: Resource, cluster: str, group: str) -> bool:
    request = _document((schedule.inputs.get("target") or {}).get("input"))
    sizes = request.get("ScalingConfig") or {}
    aimed = (request.get("ClusterName"), request.get("NodegroupName")) == (cluster, group)
    enabled = schedule.inputs.get("state") != "DISABLED"
    return enabled and aimed and (sizes.get("MinSize"), sizes.get("DesiredSize")) == (0, 0)


def campaign_budget(graph: Graph, spec: Spec) -> Iterator[Draft]:
    """A budget counts what has the campaign's tag and allows no more than the campaign may spend, less the fee of a
    block, which no tag counts."""
    if not graph.of("NodeGroup"):
        return
    budgets = graph.of("Budget")
    if not budgets:
        yield error(
            "stack",
            "no budget watches this campaign",
            seen="no aws.budgets.Budget",
            cure="keep the component Budget in the campaign's program: AWS then warns also where none of us is alive",
        )
    tag = f"user:{CAMPAIGN_TAG}${spec.campaign}"
    for budget in budgets:
        values = [value for one in budget.inputs.get("costFilters") or () for value in one.get("values") or ()]
        if tag not in values:
            yield error(
                budget, "counts the cost of something else", seen=values or "everything", cure=f"filter by {tag}"
            )
        limit = Decimal(str(budget.inputs.get("limitAmount") or 0))
        if limit > spec.tagged_budget_usd:
            yield error(
                budget,
                "allows more than the campaign may spend",
                seen=limit,
                cure=f"{spec.tagged_budget_usd}: money.budget_usd, less the fee of a block, which carries no tag",
            )
        if limit <= 0:
            yield error(
                budget,
                "has nothing to spend: AWS refuses such a budget",
                seen=limit,
                cure="a money.budget_usd above nodes.block_fee_usd: the file system and the control plane bill too",
            )


def cni_deletion_order(graph: Graph, spec: Spec) -> Iterator[Draft]:
    """Nodes are deleted before the CNI: interfaces that it leaves behind keep groups and VPC from being deleted."""
    for addon in (one for one in graph.of("Addon") if one.inputs.get("addonName") == "vpc-cni"):
        for group in graph.of("NodeGroup"):
            if not graph.after(group, addon):
                yield error(
                    group,
                    "may outlive the CNI",
                    seen="no dependency on the add-on vpc-cni",
                    cure="let the node group depend on it",
                )


def no_unmanaged_resources(graph: Graph, spec: Spec) -> Iterator[Draft]:
    """No Kubernetes object makes AWS resources that the stack does not know, and all go with the cluster."""
    clusters = {one.urn for one in graph.of("Cluster")}
    for one in graph:
        if not one.type.startswith("kubernetes:"):
            continue
        spec_ = one.inputs.get("spec") or {}
        if one.kind == "Service" and spec_.get("type") == "LoadBalancer":
            yield error(
                one, "makes a load balancer that the stack does not know", seen="LoadBalancer", cure="ClusterIP"
            )
        if one.kind == "PersistentVolumeClaim" and not spec_.get("volumeName"):
            yield error(
                one,
                "makes a volume that the stack does not know",
                seen=spec_.get("storageClassName") or "default class",
                cure="a static volume by name",
            )
        if one.deleted_with not in clusters:
            yield error(
                one,
                "is not deleted with the cluster",
                seen=one.deleted_with or "nothing",
                cure="deleted_with the cluster",
            )


def _document(value: Any) -> dict[str, Any]:
    """Return a JSON text as its object; the provider's nested inputs come as text."""
    if isinstance(value, str) and value != UNKNOWN:
        value = json.loads(value)
    return dict(value) if isinstance(value, Mapping) else {}
