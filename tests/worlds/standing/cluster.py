"""A cluster of somebody's: a real API server whose admin has applied `bivouac grant`, with another tenant."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightkube import Client
from lightkube.codecs import from_dict
from lightkube.core.exceptions import ApiError
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace, Node, ServiceAccount

from infra.cluster.standing.connection import connect
from infra.plan.standing_facts import SeenCluster
from infra.rehearsal.kubernetes.control_plane import ControlPlane, ControlPlaneConfig
from infra.spec.campaign import Spec
from infra.standing.grant import Subject, grant_text
from infra.standing.look import look
from infra.standing.openings import openings
from infra.standing.rights import DRIVER_ACCOUNT
from tests.root import ROOT
from tests.waiting import until as eventually
from tests.worlds.control_plane import release_secret, state_of

SPEC_FILE = "tests/unit/standing/standing.yaml"
SPEC: dict[str, Any] = yaml.safe_load((ROOT / SPEC_FILE).read_text())
SPACE, OTHERS, STRANGER = "team-a", "team-b", "stranger"
JOB = {
    "command": ["./train"], "launcher": "none", "host_network": True,
    "estimates": {"steps": 100, "step_seconds": 1, "checkpoint_gib": 1},
}  # fmt: skip


@dataclass
class Cluster:
    """The cluster of somebody's, with what its admin does."""

    config: ControlPlaneConfig
    admin: Client
    folder: Path
    without_jobset: SeenCluster | None = None

    def kubectl(self, *words: str, text: str = "") -> str:
        argv = [str(self.config.tools / "kubectl"), f"--kubeconfig={self.config.kubeconfig('admin')}", *words]
        answer = subprocess.run(
            [*argv, f"--cache-dir={self.folder / 'cache'}"], input=text, capture_output=True, text=True
        )
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    def tenant(self, monkeypatch: pytest.MonkeyPatch, account: str = DRIVER_ACCOUNT, space: str = SPACE) -> Client:
        """A client by a kubeconfig of this account, which KUBECONFIG names from then on."""
        document = yaml.safe_load(self.config.kubeconfig("admin").read_text())
        document["users"] = [{"name": "user", "user": {"token": self.kubectl("-n", space, "create", "token", account)}}]
        document["current-context"] = document["contexts"][0]["name"] = "racks"
        path = self.folder / f"{space}-{account}.yaml"
        path.write_text(yaml.safe_dump(document))
        monkeypatch.setenv("KUBECONFIG", str(path))
        section = spec().cluster
        assert section is not None
        return connect(section)


def spec(**changes: Any) -> Spec:
    return Spec.model_validate(SPEC | changes)


def opened_spec(space: str) -> Spec:
    """The spec of a namespace whose job is in its nodes' network, pins memory, and claims adapters of a DRA driver."""
    fabric = {"ipc_lock": True, "device_class": "rdma", "adapters": 2}
    section = SPEC["cluster"] | {"namespace": space, "fabric": fabric}
    content = {name: value for name, value in SPEC.items() if name not in ("training", "data")}
    return Spec.model_validate(content | {"cluster": section, "workload": JOB})


def asked(tenant: Client) -> SeenCluster:
    """The answers to this login, which KUBECONFIG names."""
    section = spec().cluster
    assert section is not None and tenant.namespace == SPACE
    return look(spec(), section, openings(spec(), section), lambda words: None)


@pytest.fixture(scope="session")
def cluster(
    plane: ControlPlane, config: ControlPlaneConfig, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """A cluster with another tenant, whose admin has applied the grant, twice."""
    admin = plane.client()
    cluster = Cluster(config, admin, tmp_path_factory.mktemp("standing"))
    section = spec().cluster
    assert section is not None
    admin.create(Namespace(metadata=ObjectMeta(name=OTHERS)))
    admin.create(ServiceAccount(metadata=ObjectMeta(name=STRANGER, namespace=OTHERS)))
    for _ in range(2):
        cluster.kubectl("apply", "-f", "-", text=grant_text(spec(), section, Subject()))
    login = cluster.folder / "login.env"
    login.write_text("AWS_ACCESS_KEY_ID=a\n")
    for name, space in (("s3-login", SPACE), ("payroll", SPACE), ("s3-login", OTHERS)):
        cluster.kubectl("-n", space, "create", "secret", "generic", name, "--from-env-file", str(login))
    claim = {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "scratch", "namespace": SPACE},
        "spec": {"accessModes": ["ReadWriteMany"], "storageClassName": "lustre",
                 "resources": {"requests": {"storage": "1Gi"}}},
    }  # fmt: skip
    admin.create(from_dict(claim))
    admin.create(Node(metadata=ObjectMeta(name="rack-1", labels={"gpu": "h100"})))
    with pytest.MonkeyPatch.context() as patch:
        cluster.without_jobset = asked(cluster.tenant(patch))
    yield cluster


def code(call: Callable[[], Any]) -> int | None:
    try:
        call()
    except ApiError as error:
        return error.status.code
    return None


def install_jobset(cluster: Cluster) -> None:
    if code(lambda: cluster.admin.create(release_secret("jobset", "jobset"))) is None:
        eventually(lambda: state_of(cluster.admin, "jobset"))
