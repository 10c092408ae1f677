"""The nodes that are foretold to go: the cloud announces it, or their readings show that they decline. When their gang
drains, and which of them are replaced. Pure.

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
    """Return the nodes whose instance is taken soon, and before the campaign's deadline, the earliest first; then those
    that decline."""
    here = [node for node in view.nodes if not node.quarantined and node.instance_state in ("running", "unknown")]
    soon = min(view.deadline, view.now + _LEAD)
    announced = [
        (node.cloud_notice.due, node.name, node)
        for node in here
        if node.cloud_notice is not None and node.cloud_notice.due < soon
    ]
    leaving = [node for _, _, node in sorted(announced, key=lambda row: row[:2])]
    return leaving + [node for node in declining_nodes(view) if node in here and node not in leaving]


def declining_nodes(view: Observation) -> list[NodeView]:
    """Return the nodes that decline, by name; none where more than half of several do: what they share is the cause,
    and their replacements would have it too."""
    nodes = sorted((node for node in view.nodes if node.decline), key=lambda node: node.name)
    return [] if len(nodes) > 1 and 2 * len(nodes) > len(view.nodes) else nodes


def why_drain(view: Observation, interval: timedelta, repairs_left: int) -> str | None:
    """Return why the gang drains now, None while it trains on. `interval`: between two commits. A node that could not
    be replaced afterwards is no reason: the gang would start on it again."""
    gang_nodes = {pod.node for pod in view.pods}
    for node in leaving_nodes(view)[: _most(repairs_left)]:
        if node.name not in gang_nodes:
            continue
        notice_step = view.notice_steps.get(node.instance or "")
        due = None if node.cloud_notice is None else node.cloud_notice.due
        if due is not None and due - view.now <= max(interval, _COMMITS_WITHIN):
            return f"{node.name}: {node.cloud_notice}, too near for another save: the gang commits at once"
        if notice_step is not None and view.committed_step > notice_step:
            seen = f"{node.cloud_notice}" if due is not None else node.decline
            since = "it was announced" if due is not None else "that was seen"
            return f"{node.name}: {seen}; step {view.committed_step} is committed since {since}"
    return None


def to_replace(view: Observation, repairs_left: int) -> dict[str, str]:
    """Return node -> why, for half of the repairs that are left: the others are for nodes that are lost."""
    nodes = leaving_nodes(view)[: _most(repairs_left)]
    return {
        node.name: node.decline if node.cloud_notice is None else f"EC2 announces {node.cloud_notice}" for node in nodes
    }


def _most(repairs_left: int) -> int:
    return max(0, repairs_left + 1) // 2
