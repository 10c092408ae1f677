"""The pods of a gang by the ranks that run in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import httpx2

from infra.cluster.gang import ATTEMPT_LABEL, CAMPAIGN_LABEL, COMPLETION_INDEX, REPLICA_LABEL
from infra.errors import UserError
from infra.spec.names import NAMESPACE


class Member(NamedTuple):
    """One pod of an attempt: all ranks of one node."""

    attempt: int
    node: int
    """Index in the gang."""
    pod: str
    container: str
    phase: str
    ending: bool
    """It was deleted and runs out its grace."""


def members(http: httpx2.Client, campaign: str) -> list[Member]:
    """Return the pods of all attempts that the cluster still has, in order. Raises `httpx2.HTTPError`."""
    selector = {"labelSelector": f"{CAMPAIGN_LABEL}={campaign},{ATTEMPT_LABEL}"}
    answer = http.get(f"/api/v1/namespaces/{NAMESPACE}/pods", params=selector)
    answer.raise_for_status()
    pods = []
    for pod in answer.json()["items"]:
        metadata, annotations = pod["metadata"], pod["metadata"].get("annotations") or {}
        pods.append(
            Member(
                attempt=int(metadata["labels"][ATTEMPT_LABEL]),
                node=int(metadata["labels"].get(REPLICA_LABEL) or annotations.get(COMPLETION_INDEX) or 0),
                pod=metadata["name"],
                container=pod["spec"]["containers"][0]["name"],
                phase=(pod.get("status") or {}).get("phase", "Unknown"),
                ending="deletionTimestamp" in metadata,
            )
        )
    return sorted(row for row in pods if row.attempt > 0)  # 0 is the health check


def running(
    pods: Sequence[Member],
    rank: int,
    ranks_per_node: int,
    campaign: str,
    node_rank: Callable[[int, int], int] = lambda attempt, index: index,
) -> Member:
    """Return the pod in which a global rank of the newest attempt runs. Raises `UserError`.

    `node_rank`: (attempt, index of a pod) -> its node rank.
    """
    status = f"`bivouac status {campaign}` says where it stands"
    if not pods:
        raise UserError(
            "no attempt is in the cluster", seen=campaign, cure=f"{status}; `bivouac logs` what was printed"
        )
    newest = [row for row in pods if row.attempt == pods[-1].attempt]
    highest = (newest[-1].node + 1) * ranks_per_node - 1
    if not 0 <= rank <= highest:
        raise UserError(f"attempt {pods[-1].attempt} has no such rank", seen=rank, cure=f"write 0 to {highest}")
    matches = [row for row in newest if node_rank(row.attempt, row.node) == rank // ranks_per_node]
    row = next((row for row in matches if row.phase == "Running" and not row.ending), None)
    if row is None:
        states = (
            ", ".join(f"{row.pod}: {'ending' if row.ending else row.phase}" for row in matches) or "its pod is gone"
        )
        has_ended = bool(matches) and all(row.ending or row.phase in ("Succeeded", "Failed") for row in matches)
        raise UserError(
            f"rank {rank} of attempt {pods[-1].attempt} does not run" + (": it is over" if has_ended else ""),
            seen=states,
            cure=f"{status}; a next attempt has the same ranks, `bivouac logs` what this one printed",
        )
    return row
