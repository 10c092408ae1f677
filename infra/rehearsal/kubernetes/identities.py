"""Identities of an API server's clients: certificates, kubeconfig files, and the roles that EKS always creates."""

from __future__ import annotations

import base64
import json
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from infra.rehearsal.kubernetes.config import ControlPlaneConfig
from infra.rehearsal.kubernetes.pki import Authority, KeyPair, write_signing_key

CLUSTER_ADMIN_GROUP = (
    "eks:cluster-admin"  # the cluster-scoped AmazonEKSClusterAdminPolicy of an access entry maps to this group
)
POD_IDENTITY_AUDIENCE = "pods.eks.amazonaws.com"
COMPONENTS = ("kube-scheduler", "kube-controller-manager")


def write_identities(config: ControlPlaneConfig) -> Authority:
    authority = Authority(config.pki, config.name)
    first_service = str(ip_network(config.service_cidr)[1])
    internal = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"]
    authority.server("apiserver", [config.address, first_service, *internal])
    authority.client("kubelet-client", "kube-apiserver-kubelet-client", ["system:masters"])
    write_signing_key(config.pki / "service-account.key")
    for user in COMPONENTS:
        write_kubeconfig(config, authority, user, authority.client(user, f"system:{user}"))
    write_kubeconfig(config, authority, "admin", authority.client("admin", "rehearsal-site", ["system:masters"]))
    _write_token_webhook(config)
    return authority


def write_kubeconfig(config: ControlPlaneConfig, authority: Authority, user: str, pair: KeyPair) -> Path:
    """Write a self-contained kubeconfig that only its owner can read."""
    cluster = {"server": config.endpoint, "certificate-authority-data": authority.bundle}
    credentials = {
        "client-certificate-data": _base64(pair.certificate.read_bytes()),
        "client-key-data": _base64(pair.key.read_bytes()),
    }
    return _write(config.kubeconfig(user), config.name, cluster, credentials)


def _write_token_webhook(config: ControlPlaneConfig) -> None:
    _write(config.kubeconfig("token-webhook"), config.name, {"server": config.token_webhook_url}, {})


def _write(path: Path, cluster_name: str, cluster: dict[str, str], user: dict[str, str]) -> Path:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": cluster_name, "cluster": cluster}],
        "users": [{"name": "user", "user": user}],
        "contexts": [{"name": cluster_name, "context": {"cluster": cluster_name, "user": "user"}}],
        "current-context": cluster_name,
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(document, indent=1))  # JSON is YAML
    return path


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def bootstrap_roles() -> list[dict[str, Any]]:
    """Return the objects that every new cluster has.

    `system:nodes` may read what a node's kube-proxy, CNI and device plugins read with their own accounts on EKS: the
    nodelet does their work, so that names resolve and a GPU is offered only while its device plugin is installed.
    """
    nodes = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:nodes"}
    admins = {**nodes, "name": CLUSTER_ADMIN_GROUP}
    read = ["get", "list", "watch"]
    return [
        _binding("ClusterRoleBinding", "eks:cluster-admin", {}, ("ClusterRole", "cluster-admin"), admins),
        _role("ClusterRole", "eks:node-agents", {}, [
            {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": read},
            {"apiGroups": [""], "resources": ["services"], "verbs": read},
            # EKS's webhook would put this audience into the pod; here the nodelet requests it itself.
            {
                "apiGroups": [""], "resources": [POD_IDENTITY_AUDIENCE],
                "verbs": ["request-serviceaccounts-token-audience"],
            },
        ]),
        # The add-ons install them; without one a node gets no token for a pod with such a volume. Mountpoint's by
        # https://github.com/awslabs/mountpoint-s3-csi-driver, `templates/csidriver.yaml`.
        _csi_driver("fsx.csi.aws.com"),
        _csi_driver(
            "s3.csi.aws.com", podInfoOnMount=True, requiresRepublish=True,
            tokenRequests=[{"audience": "sts.amazonaws.com"}, {"audience": POD_IDENTITY_AUDIENCE}],
        ),
        _binding("ClusterRoleBinding", "eks:node-agents", {}, ("ClusterRole", "eks:node-agents"), nodes),
        _role("Role", "eks:node-device-plugins", {"namespace": "kube-system"}, [
            {"apiGroups": [""], "resources": ["secrets"], "verbs": read},
        ]),
        _binding(
            "RoleBinding", "eks:node-device-plugins", {"namespace": "kube-system"},
            ("Role", "eks:node-device-plugins"), nodes,
        ),
    ]  # fmt: skip


def _csi_driver(name: str, **spec: Any) -> dict[str, Any]:
    metadata = {"name": name}
    spec = {"attachRequired": False, **spec}
    return {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": metadata, "spec": spec}


def _role(kind: str, name: str, metadata: dict[str, str], rules: list[dict[str, Any]]) -> dict[str, Any]:
    api = "rbac.authorization.k8s.io/v1"
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, **metadata}, "rules": rules}


def _binding(
    kind: str, name: str, metadata: dict[str, str], role: tuple[str, str], subject: dict[str, str]
) -> dict[str, Any]:
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": kind,
        "metadata": {"name": name, **metadata},
        "roleRef": {"apiGroup": group, "kind": role[0], "name": role[1]},
        "subjects": [subject],
    }
