"""Rules over the resource graph of a stack: run by `preview`, and by the tests over the whole catalogue. A rule is a
function; all findings are reported, never only the first."""

from __future__ import annotations

from collections.abc import Iterable

from infra.plan.checks.finding import Level
from infra.spec.campaign import Spec
from infra.stack.rules import access, network, nodes, pods, rights, safety
from infra.stack.rules.finding import Rule, RuleFinding
from infra.stack.rules.graph import Graph, Resource

RULES: tuple[Rule, ...] = (
    safety.tags_everywhere,
    network.no_public_ingress,
    network.nodes_reach_each_other,
    nodes.efa_devices,
    network.one_zone,
    nodes.purchase,
    nodes.metadata_service,
    nodes.encrypted_volumes,
    nodes.none_before_asked,
    nodes.one_hands_out_efa,
    nodes.the_steward_repairs,
    safety.deadline_guard,
    safety.budget_exists,
    safety.cni_outlives_nodes,
    safety.nothing_made_from_inside,
    access.closed_buckets,
    rights.no_wildcard_rights,
    access.cluster_is_closed,
    network.control_plane_from_outside,
    pods.pods_are_bounded,
    pods.no_host_paths_but_ours,
    pods.confined_pods,
)
_ORDER = (Level.ERROR, Level.WARNING, Level.INFO)

__all__ = ["RULES", "Finding", "Graph", "Level", "Resource", "broken", "findings"]


def findings(graph: Graph, spec: Spec) -> tuple[RuleFinding, ...]:
    """Return all findings, the worst first."""
    found = [
        RuleFinding(
            level=draft.level,
            rule=rule.__name__,
            resource=draft.resource,
            message=draft.message,
            seen=draft.seen,
            cure=draft.cure,
        )
        for rule in RULES
        for draft in rule(graph, spec)
    ]
    return tuple(sorted(found, key=lambda one: _ORDER.index(one.level)))


def broken(found: Iterable[RuleFinding]) -> bool:
    """Return whether any finding is an error."""
    return any(one.level is Level.ERROR for one in found)
