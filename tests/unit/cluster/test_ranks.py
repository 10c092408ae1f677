"""The pod of a rank: of the newest attempt, while it runs; else what is seen, and the cure."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from infra.cluster.ranks import Member, members, running
from infra.errors import UserError


def pod(attempt: int, node: int, phase: str, **metadata: Any) -> dict[str, Any]:
    labels = {"bivouac.dev/campaign": "c", "bivouac.dev/attempt": str(attempt)}
    annotations = {"batch.kubernetes.io/job-completion-index": str(node)}
    named = {"name": f"c-a{attempt}-gang-0-{node}-x", "labels": labels, "annotations": annotations, **metadata}
    return {"metadata": named, "spec": {"containers": [{"name": "trainer"}]}, "status": {"phase": phase}}


def listed(*pods: dict[str, Any]) -> list[Member]:
    label_selectors: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        label_selectors.append(request.url.params["labelSelector"])
        return httpx2.Response(200, content=json.dumps({"items": pods}).encode())

    with httpx2.Client(base_url="https://api", transport=httpx2.MockTransport(answer)) as http:
        found = members(http, "c")
    assert label_selectors == ["bivouac.dev/campaign=c,bivouac.dev/attempt"]
    return found


def test_the_pods_of_an_mpi_job_have_their_index_in_a_label() -> None:
    labels = {"bivouac.dev/campaign": "c", "bivouac.dev/attempt": "1", "training.kubeflow.org/replica-index": "1"}
    later, first = pod(1, 0, "Running", labels=labels, annotations={}), pod(1, 0, "Running")
    assert [one.node for one in listed(later, first)] == [0, 1]


def test_a_rank_is_where_the_order_of_its_attempt_has_put_it() -> None:
    found = listed(*(pod(2, node, "Running") for node in range(3)))
    ordered = running(found, 9, 8, "c", lambda attempt, index: {(2, 0): 2, (2, 1): 0, (2, 2): 1}[attempt, index])
    assert ordered.pod == "c-a2-gang-0-2-x"


def test_a_rank_is_in_the_pod_of_its_node_of_the_newest_attempt() -> None:
    found = listed(pod(10, 1, "Running"), pod(9, 1, "Running"), pod(10, 0, "Running"), pod(0, 0, "Running"))
    assert [(one.attempt, one.node) for one in found] == [(9, 1), (10, 0), (10, 1)], "0 is the health check"
    assert running(found, 7, 8, "c").pod == "c-a10-gang-0-0-x" and running(found, 8, 8, "c").pod == "c-a10-gang-0-1-x"


def test_a_pod_that_was_made_again_counts_where_it_runs() -> None:
    again = pod(1, 0, "Running", name="c-a1-gang-0-0-y")
    assert running(listed(pod(1, 0, "Failed"), again), 0, 1, "c").pod == "c-a1-gang-0-0-y"


ENDING = pod(2, 0, "Running", deletionTimestamp="2026-11-23T10:00:00Z")


@pytest.mark.parametrize(
    ("pods", "rank", "words"),
    [
        ([], 0, ("no attempt is in the cluster", "bivouac status c")),
        ([pod(1, 0, "Running")], 2, ("attempt 1 has no such rank", "seen: 2", "write 0 to 1")),
        ([pod(1, 0, "Failed")], 1, ("rank 1 of attempt 1 does not run: it is over", "c-a1-gang-0-0-x: Failed")),
        ([pod(1, 0, "Running"), ENDING], 0, ("attempt 2 does not run: it is over", "ending")),
        ([pod(1, 0, "Pending")], 0, ("rank 0 of attempt 1 does not run;", "Pending")),
        ([pod(1, 1, "Running")], 0, ("does not run;", "its pod is gone")),
    ],
)
def test_a_rank_that_does_not_run_is_told_with_what_is_seen(
    pods: list[dict[str, Any]], rank: int, words: tuple[str, ...]
) -> None:
    with pytest.raises(UserError) as refusal:
        running(listed(*pods), rank, 2, "c")
    assert all(word in str(refusal.value) for word in words), refusal.value
