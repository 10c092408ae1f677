"""The kubernetes plugin, and the engine with it, against a real control plane."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pulumi
import pulumi_kubernetes as kubernetes
import pytest
from lightkube import ApiError, Client
from lightkube.resources.core_v1 import ConfigMap, Namespace, PersistentVolumeClaim, Secret

from infra.rehearsal.kubernetes.control_plane import ControlPlane
from infra.rehearsal.plugins.kubernetes.package import KubernetesPackage
from infra.rehearsal.plugins.package import OperationFailed, Request
from tests.worlds.control_plane import config, plane
from tests.worlds.pulumi_project import Program, PulumiProject, counts

__all__ = ["config", "plane"]
pytestmark = [pytest.mark.nightly, pytest.mark.inside("net", "pid")]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PulumiProject:
    return PulumiProject(tmp_path, {}, monkeypatch)


def campaign(kubeconfig: str, **settings: Any) -> Program:
    def program() -> None:
        provider = kubernetes.Provider("cluster", kubeconfig=kubeconfig, delete_unreachable=settings.get("unreachable"))
        opts, text = pulumi.ResourceOptions(provider=provider), settings.get("text", "a")
        space = kubernetes.core.v1.Namespace("campaign", metadata={"name": "campaign"}, opts=opts)
        inside = pulumi.ResourceOptions(provider=provider, depends_on=[space])
        kubernetes.core.v1.ConfigMap(
            "notes", metadata={"name": f"notes-{text}", "namespace": "campaign"}, data={"text": text}, opts=inside
        )
        kubernetes.core.v1.PersistentVolume(
            "shared",
            metadata={"name": "shared"},
            spec={
                "capacity": {"storage": settings.get("size", "1Gi")},
                "access_modes": ["ReadWriteMany"],
                "storage_class_name": "",
                "csi": {"driver": "fsx.csi.aws.com", "volume_handle": "fs-1"},
            },
            opts=opts,
        )
        kubernetes.core.v1.PersistentVolumeClaim(
            "shared",
            metadata={"name": "shared", "namespace": "campaign"},
            spec={
                "volume_name": "shared",
                "storage_class_name": "",
                "access_modes": ["ReadWriteMany"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
            opts=inside,
        )
        kubernetes.helm.v3.Release(
            "plugin",
            name="plugin",
            namespace="kube-system",
            chart="oci://registry.example/charts/plugin",
            version="1.0.0",
            values={"replicas": settings.get("replicas", 1)},
            opts=opts,
        )

    return program


def names(client: Client) -> set[str]:
    return {str(one.metadata.name) for one in client.list(ConfigMap, namespace="campaign") if one.metadata}


def test_objects_and_releases_go_up_stay_change_and_go(plane: ControlPlane, world: PulumiProject) -> None:
    text, client = plane.admin_kubeconfig.read_text(), plane.client()
    stack = world.stack(campaign(text))
    assert counts(stack.up()) == {"create": 7}
    claim = client.get(PersistentVolumeClaim, "shared", namespace="campaign")
    assert claim.status and claim.status.phase == "Bound"
    assert counts(stack.up()) == {"same": 7}
    assert counts(stack.refresh()).get("delete") is None
    before = next(name for name in names(client) if name.startswith("notes-"))

    stack = world.stack(campaign(text, text="b", size="2Gi", replicas=2))
    # The volume's size and the release change in place; a config map's data makes a new one, as with the real plugin.
    assert counts(stack.up()) == {"same": 4, "update": 2, "replace": 1}
    assert before not in names(client)
    secrets = client.list(Secret, namespace="kube-system", labels={"owner": "helm", "name": "plugin"})
    states = {secret.metadata.name: (secret.metadata.labels or {})["status"] for secret in secrets if secret.metadata}
    assert states == {"sh.helm.release.v1.plugin.v1": "superseded", "sh.helm.release.v1.plugin.v2": "deployed"}

    assert counts(stack.destroy()) == {"delete": 7}
    with pytest.raises(ApiError, match="not found"):
        client.get(Namespace, "campaign")
    assert not list(client.list(Secret, namespace="kube-system", labels={"owner": "helm"}))


def test_an_unknown_field_is_an_error_of_the_preview(plane: ControlPlane) -> None:
    package = KubernetesPackage()
    package.configure({"kubeconfig": plane.admin_kubeconfig.read_text()})
    wanted = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "wrong", "colour": "red"}}
    request = Request(urn="", type="kubernetes:core/v1:Namespace", name="wrong", inputs=wanted, preview=True)
    with pytest.raises(OperationFailed, match=r"\.metadata\.colour"):
        package.create(request)


def test_a_cluster_that_is_gone_does_not_block_its_teardown_where_the_program_says_so(
    plane: ControlPlane, world: PulumiProject
) -> None:
    text = plane.admin_kubeconfig.read_text()

    def program() -> None:
        provider = kubernetes.Provider("cluster", kubeconfig=text, delete_unreachable=True)
        kubernetes.core.v1.Namespace("left", metadata={"name": "left"}, opts=pulumi.ResourceOptions(provider=provider))

    stack = world.stack(program)
    stack.up()
    plane.stop()
    assert counts(stack.destroy()) == {"delete": 3}
