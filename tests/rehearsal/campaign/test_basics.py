"""The pod on the system node that proves what all nodes need: what is said where it fails, and that no GPU node is
requested then. An API server that really answers HTTP; the test is the kubelet.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest

from infra.campaign import preflight
from infra.campaign.basics import prove
from infra.cluster.kubernetes import from_outside
from infra.errors import PermanentError
from infra.record.payloads.outputs import PreflightOutput
from infra.session.context import Context
from tests.waiting import until
from tests.worlds.steward_site import StewardSite

GOOD = {"name": "file_system", "ok": True, "seen": "1 MiB", "wanted": "works"}
BAD = {"name": "state_bucket", "ok": False, "seen": "AccessDenied: no", "wanted": "works", "cure": "see the agent"}


class Kubelet:
    """Gives the pod of the system node this state, and warnings."""

    def __init__(self, made: StewardSite) -> None:
        self.api, self.pods = made.api, list[dict[str, Any]]()
        self.state: dict[str, Any] = {}
        self.warning = ""

    def created(self, document: dict[str, Any]) -> None:
        if document.get("kind") != "Pod":
            return
        self.pods.append(document)
        one = {"name": "basics", "image": "", "imageID": "", "ready": False, "restartCount": 0, "state": self.state}
        document["status"] = {"phase": "Pending", "containerStatuses": [one]}
        self.api.objects["v1", "pods", "campaign", "basics"] = document
        if self.warning:
            self.api.objects["v1", "events", "campaign", "basics.1"] = {
                "metadata": {"name": "basics.1", "namespace": "campaign"},
                "involvedObject": {"kind": "Pod", "namespace": "campaign", "name": "basics"},
                "type": "Warning", "reason": "FailedMount", "message": self.warning,
                "lastTimestamp": "2026-11-21T20:00:00Z",
            }  # fmt: skip

    def ends(self, *probes: dict[str, Any]) -> None:
        self.state = {"terminated": {"exitCode": 0, "message": json.dumps(probes) if probes else ""}}


@pytest.fixture
def kubelet(made: StewardSite, context: Context) -> Iterator[Kubelet]:
    recovery = context.spec.recovery.model_copy(update={"startup_timeout": timedelta(seconds=4)})
    context.spec = context.spec.model_copy(update={"recovery": recovery})
    before, one = made.api.created, Kubelet(made)
    made.api.created = one.created
    yield one
    made.api.created = before


def proven(context: Context) -> None:
    prove(context, from_outside(context.account, context.names.cluster))


def refused(context: Context) -> str:
    with pytest.raises(PermanentError, match="no GPU node was requested") as told:
        proven(context)
    return str(told.value)


def test_a_pod_like_the_stewards_proves_it_and_is_removed(
    made: StewardSite, context: Context, kubelet: Kubelet, said: StringIO
) -> None:
    kubelet.ends(GOOD)
    proven(context)
    (pod,) = kubelet.pods
    assert pod["spec"]["serviceAccountName"] == "steward" and pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["nodeSelector"] == {"bivouac.dev/pool": "system"}
    assert ("v1", "pods", "campaign", "basics") not in made.api.objects
    config = json.loads(made.api.objects["v1", "configmaps", "campaign", "basics"]["data"]["basics.json"])
    assert config == {"region": "us-east-1", "bucket": context.buckets.state, "key": "campaigns/deaf/basics"}
    assert "the system node has what all nodes need: file_system" in said.getvalue()


def test_what_failed_is_named_with_its_cure(context: Context, kubelet: Kubelet) -> None:
    kubelet.ends(GOOD, BAD)
    text = refused(context)
    assert "state_bucket: AccessDenied: no" in text and "see the agent" in text and "file_system" not in text


def test_a_pod_that_does_not_start_is_told_with_what_the_kubelet_says_of_it(context: Context, kubelet: Kubelet) -> None:
    kubelet.state, kubelet.warning = {"waiting": {"reason": "ContainerCreating"}}, "mount.lustre: no such device"
    text = refused(context)
    assert "did not start within 0:00:04" in text and "no such device" in text and "Lustre client" in text


def test_a_pod_that_ends_without_a_word_is_no_proof(context: Context, kubelet: Kubelet) -> None:
    kubelet.ends()
    assert "it ended without a word" in refused(context)


@pytest.mark.parametrize("there", [0, 2])
def test_it_comes_before_the_first_gpu_node_and_not_again_while_nodes_are_there(
    context: Context, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch, there: int
) -> None:
    eks = context.account.client("eks")
    scaling = {"minSize": 0, "maxSize": 2, "desiredSize": there}
    group = {"clusterName": context.names.cluster, "nodegroupName": context.names.gpu_group}
    until(lambda: eks.describe_nodegroup(**group)["nodegroup"]["status"] == "ACTIVE", "its last change is done")
    eks.update_nodegroup_config(**group, scalingConfig=scaling)
    monkeypatch.setattr(preflight.basics, "prove", prove)
    kubelet.ends(BAD)
    monkeypatch.setattr(preflight, "rounds", lambda *_: PreflightOutput())
    if there:
        assert preflight.run(context) == PreflightOutput() and not kubelet.pods
        return
    with pytest.raises(PermanentError, match="does not work on the system node"):
        preflight.run(context)
    assert eks.describe_nodegroup(**group)["nodegroup"]["scalingConfig"]["desiredSize"] == 0
