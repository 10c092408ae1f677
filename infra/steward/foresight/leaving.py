"""The nodes that are foretold to go: the cloud announces it, or their readings show that they decline. When their gang
drains, and which of them are replaced. Pure.

A drain costs least right after a commit, so the gang trains on until its next one. With less than a save interval left
it commits at once: to be asked to end is what makes it commit.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from infra.cluster.cloud_notice import CloudNotice
from infra.steward.seeing.views import NodeView, Observation

_LEAD = timedelta(hours=2)
"""Before an announced moment, from when on it counts: EC2 announces weeks ahead, and until then the node is sound."""
_COMMITS_WITHIN = timedelta(minutes=10)
"""Time that a gang has to commit and end, at least."""


def near_notice(node: NodeView, now: datetime) -> CloudNotice | None:
    """Return the cloud's announcement for a node if it counts by now."""
    notice = node.cloud_notice
    return notice if notice is not None and notice.due < now + _LEAD else None


def leaving_nodes(view: Observation) -> list[NodeView]:
    """Return the nodes whose instance is taken soon, and before the campaign's deadline, the earliest first; then those
    that decline."""
    present_nodes = [
        node for node in view.nodes if not node.quarantined and node.instance_state in ("running", "unknown")
    ]
    rows = [
        (notice.due, node.name, node)
        for node in present_nodes
        if (notice := near_notice(node, view.now)) is not None and notice.due < view.deadline
    ]
    leaving = [node for _, _, node in sorted(rows, key=lambda row: row[:2])]
    return leaving + [node for node in declining_nodes(view) if node in present_nodes and node not in leaving]


def declining_nodes(view: Observation) -> list[NodeView]:
    """Return the nodes that decline, by name; none where more than half of several do: what they share is the cause,
    and their replacements would have it too."""
    nodes = sorted((node for node in view.nodes if node.decline), key=lambda node: node.name)
    return [] if len(nodes) > 1 and 2 * len(nodes) > len(view.nodes) else nodes


def why_drain(view: Observation, interval: timedelta, repairs_left: int, limit: int) -> str | None:
    """Return why the gang drains now, None while it trains on. `interval`: between two commits. `limit`: repairs within
    an hour. A node that could not be replaced afterwards is no reason: the gang would start on it again."""
    gang_nodes = {pod.node for pod in view.pods}
    for node in _replaceable(view, repairs_left, limit):
        if node.name not in gang_nodes:
            continue
        notice_step, notice = view.notice_steps.get(node.instance or ""), near_notice(node, view.now)
        if notice is not None and notice.due - view.now <= max(interval, _COMMITS_WITHIN):
            return f"{node.name}: {notice}, too near for another save: the gang commits at once"
        if notice_step is not None and view.committed_step > notice_step:
            reason = node.decline if notice is None else f"{notice}"
            moment = "that was seen" if notice is None else "it was announced"
            return f"{node.name}: {reason}; step {view.committed_step} is committed since {moment}"
    return None


def to_replace(view: Observation, repairs_left: int, limit: int) -> dict[str, str]:
    """Return node -> why, for the nodes that are foretold to go and may be replaced."""
    return {
        node.name: node.decline if (notice := near_notice(node, view.now)) is None else f"EC2 announces {notice}"
        for node in _replaceable(view, repairs_left, limit)
    }


def _replaceable(view: Observation, repairs_left: int, limit: int) -> list[NodeView]:
    """Return the nodes that are foretold to go and may be replaced: half of the hour's repairs, rounded down, are kept
    for nodes that are lost. So is a node that EC2 takes within minutes."""
    nodes = leaving_nodes(view)
    doomed_nodes = [
        node
        for node in nodes
        if (notice := near_notice(node, view.now)) is not None and notice.due - view.now <= _COMMITS_WITHIN
    ][: max(0, repairs_left)]
    later_nodes = [node for node in nodes if node not in doomed_nodes]
    return doomed_nodes + later_nodes[: max(0, repairs_left - len(doomed_nodes) - limit // 2)]
