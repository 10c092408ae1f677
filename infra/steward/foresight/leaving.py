"""The nodes that the cloud has announced to take: when their gang drains, and which of them are replaced. Pure.

A drain costs least right after a commit, so the gang trains on until its next one. With less than a save interval left
it commits at once: to be asked to end is what makes it commit.
"""

from __future__ import annotations

from datetime import timedelta

from infra.steward.seeing.views import NodeView, Observation

_LEAD = timedelta(hours=2)
"""Before an announced moment, from when on it counts: EC2 announces weeks ahead, and until then the node is sound."""
_COMMITS_WITHIN = timedelta(minutes=10)
"""Time that a gang has to commit and end, at least."""


def leaving_nodes(view: Observation) -> list[NodeView]:
    """Return the nodes whose instance is taken soon, and before the campaign's deadline, the earliest first."""
    nodes = [
        node
        for node in view.nodes
        if node.cloud_notice is not None
        and node.cloud_notice.due < min(view.deadline, view.now + _LEAD)
        and not node.quarantined
        and node.instance_state in ("running", "unknown")
    ]
    return sorted(nodes, key=lambda node: (node.cloud_notice.due if node.cloud_notice else view.deadline, node.name))


def why_drain(view: Observation, interval: timedelta, repairs_left: int) -> str | None:
    """Return why the gang drains now, None while it trains on. `interval`: between two commits. A node that could not
    be replaced afterwards is no reason: the gang would start on it again."""
    gang_nodes = {pod.node for pod in view.pods}
    for node in leaving_nodes(view)[: _most(repairs_left)]:
        if node.name not in gang_nodes or node.cloud_notice is None:
            continue
        notice_step = view.notice_steps.get(node.instance or "")
        if node.cloud_notice.due - view.now <= max(interval, _COMMITS_WITHIN):
            return f"{node.name}: {node.cloud_notice}, too near for another save: the gang commits at once"
        if notice_step is not None and view.committed_step > notice_step:
            return f"{node.name}: {node.cloud_notice}; step {view.committed_step} is committed since it was announced"
    return None


def to_replace(view: Observation, repairs_left: int) -> dict[str, str]:
    """Return node -> why, for half of the repairs that are left: the others are for nodes that are lost."""
    nodes = leaving_nodes(view)[: _most(repairs_left)]
    return {node.name: f"EC2 announces {node.cloud_notice}" for node in nodes}


def _most(repairs_left: int) -> int:
    return max(0, repairs_left + 1) // 2
