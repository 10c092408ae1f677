"""Why a pod has not started: in the words of its container, its scheduler, and its last warning."""

from __future__ import annotations

from typing import Any

import pytest
from lightkube.resources.core_v1 import Pod

from infra.cluster.pod_start import cure_of, ending, has_started, is_over, why_not


def pod(state: dict[str, Any] | None, node: str = "node-0", **status: Any) -> Pod:
    containers = [{"name": "trainer", "image": "i", "imageID": "", "ready": False, "restartCount": 0, "state": state}]
    made = Pod.from_dict({
        "metadata": {"name": "p"},
        "spec": {"nodeName": node, "containers": [{"name": "trainer"}]},
        "status": {"phase": "Pending", **({"containerStatuses": containers} if state else {}), **status},
    })  # fmt: skip
    assert isinstance(made, Pod)
    return made


UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/4: Insufficient efa",
}


@pytest.mark.parametrize(
    ("seen", "warning", "words", "cure"),
    [
        (pod({"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling"}}),
         "Failed: 403 Forbidden", "ImagePullBackOff: Back-off pulling; last warning: Failed: 403", "repository"),
        (pod({"waiting": {"reason": "ContainerCreating"}}),
         "FailedMount: MountVolume.SetUp failed", "ContainerCreating; last warning: FailedMount", "988"),
        (pod(None, "", conditions=[UNSCHEDULABLE]), "", "Unschedulable: 0/4: Insufficient efa", "huge pages"),
        (pod(None, phase="Failed", reason="UnexpectedAdmissionError", message="requested 8, available 7"),
         "", "UnexpectedAdmissionError: requested 8", "device plugins"),
        (pod({"terminated": {"exitCode": 128, "reason": "StartError", "message": "exec: python: not found"}},
             phase="Failed"), "", "StartError: exec: python: not found", "container toolkit"),
        (pod(None), "", "the kubelet of its node has said nothing", ""),
    ],
)  # fmt: skip
def test_a_pod_that_has_not_started_tells_why_and_what_to_look_at(
    seen: Pod, warning: str, words: str, cure: str
) -> None:
    said = why_not(seen, warning)
    assert not has_started(seen) and ending(seen) is None
    assert said.startswith(words) and cure in cure_of(said) and bool(cure) == bool(cure_of(said)), said


def before(*states: dict[str, Any], app: dict[str, Any] | None = None, phase: str = "Pending") -> Pod:
    """A pod whose init containers are in these states."""
    rows = [
        {"name": f"init-{number}", "image": "i", "imageID": "", "ready": False, "restartCount": 0, "state": state}
        for number, state in enumerate(states)
    ]
    return pod(app or {"waiting": {"reason": "PodInitializing"}}, phase=phase, initContainerStatuses=rows)


def test_an_init_container_that_failed_is_the_end_of_its_pod_and_one_that_is_done_is_not() -> None:
    done = {"terminated": {"exitCode": 0, "reason": "Completed"}}
    failed = {"terminated": {"exitCode": 64, "reason": "Error", "message": "no such secret"}}
    ended = before(done, failed, {"waiting": {"reason": "PodInitializing"}}, phase="Failed")
    assert has_started(ended) and ending(ended).exitCode == 64  # type: ignore[union-attr]
    assert why_not(ended, "").startswith("Error: no such secret")
    at_work = before(done, {"running": {"startedAt": "2026-11-21T20:00:00Z"}})
    assert not has_started(at_work) and ending(at_work) is None and why_not(at_work, "") == "PodInitializing"
    runs = before(done, done, app={"running": {"startedAt": "2026-11-21T20:00:00Z"}}, phase="Running")
    assert has_started(runs) and ending(runs) is None
    over = before(done, app={"terminated": {"exitCode": 75, "reason": "Error"}}, phase="Failed")
    assert ending(over).exitCode == 75  # type: ignore[union-attr]


def test_an_init_container_that_waits_says_why() -> None:
    waits = before({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}})
    assert not has_started(waits) and why_not(waits, "") == "ImagePullBackOff: no such image; PodInitializing"


def test_a_process_that_runs_or_ended_has_started_whatever_it_came_to() -> None:
    runs = pod({"running": {"startedAt": "2026-11-21T20:00:00Z"}}, phase="Running")
    died = pod({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}, phase="Failed")
    assert has_started(runs) and ending(runs) is None and not is_over(runs)
    assert has_started(died) and is_over(died) and ending(died).exitCode == 137  # type: ignore[union-attr]
