"""A control plane, and a campaign's namespace on it, for the tests of this folder that are inside."""

from __future__ import annotations

import pytest
import yaml
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace

from infra.cluster.admission import binding, pod_security, policies
from infra.folders import share_dir
from infra.rehearsal.kubernetes import kubectl
from infra.rehearsal.kubernetes.control_plane import ControlPlane, ControlPlaneConfig
from tests.pods import IMAGE, archive
from tests.rehearsal.rehearsal.kubernetes import admission
from tests.waiting import until as eventually
from tests.worlds.control_plane import client, config, plane, release_secret, state_of

__all__ = ["client", "config", "plane"]
RBAC = "rbac.authorization.k8s.io"


@pytest.fixture(scope="session")
def asking(plane: ControlPlane, config: ControlPlaneConfig) -> admission.Asking:
    """The campaign's namespace as the stack makes it, with a steward that may create jobs."""
    one = admission.Asking(config.endpoint, plane.ca_pem, (config.pki / "admin.crt", config.pki / "admin.key"))
    bounds = policies("bivouac-example", IMAGE.partition("@")[0], admission.THEIRS.partition("@")[0], "example")
    client = plane.client()
    client.create(Namespace(metadata=ObjectMeta(name="campaign", labels=pod_security())))
    client.create(release_secret("jobset", "jobset"))
    eventually(lambda: state_of(client, "jobset"))
    place = {"namespace": "campaign"}
    rules = [
        {"apiGroups": ["batch", "jobset.x-k8s.io", "kubeflow.org"], "resources": ["jobs", "jobsets", "mpijobs"],
         "verbs": ["create"]},
    ]  # fmt: skip
    kubectl.apply(config, [yaml.safe_load((share_dir("mpi-operator") / "kubeflow.org_mpijobs.yaml").read_text())])
    kubectl.wait(config, "established", "crd/mpijobs.kubeflow.org")
    who = {"kind": "ServiceAccount", "name": "steward", "namespace": "campaign"}
    role = {"apiGroup": RBAC, "kind": "Role", "name": "steward"}
    accounts = ("archive", "data", "steward", "trainer")
    one.make(
        *({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {**place, "name": name}} for name in accounts),
        {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": {**place, "name": "steward"}, "rules": rules},
        {"apiVersion": f"{RBAC}/v1", "kind": "RoleBinding", "metadata": {**place, "name": "steward"},
         "subjects": [who], "roleRef": role},
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "bivouac-training"},
         "value": 1000},
        *bounds.values(),
        *(binding(policy) for policy in bounds.values()),
    )  # fmt: skip
    # The API server takes a policy up some time after it was made.
    strange = admission.changed(archive(), lambda pod: pod.update(serviceAccountName="default"))
    eventually(lambda: one.refusal(strange, admission.STEWARD))
    eventually(lambda: "image" in one.refusal(admission.as_pod(admission.ROGUE)))
    return one
