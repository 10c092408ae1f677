"""The Kubernetes API of the campaign's cluster, from outside (EKS token) or from a pod (service account)."""

from __future__ import annotations

import base64

from lightkube import Client, KubeConfig
from lightkube.config.models import Cluster, User
from lightkube.core.exceptions import ApiError
from lightkube.generic_resource import create_namespaced_resource

from infra.account import Account
from infra.names import NAMESPACE

JobSet = create_namespaced_resource("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets")


def from_outside(account: Account, cluster: str) -> Client:
    """A client with a fresh token (good for 15 minutes)."""
    found = account.client("eks").describe_cluster(name=cluster)["cluster"]
    config = KubeConfig.from_one(
        cluster=Cluster(server=found["endpoint"], certificate_auth_data=found["certificateAuthority"]["data"]),
        user=User(token=account.cluster_token(cluster)),
        context_name=cluster,
    )
    return Client(config=config, namespace=NAMESPACE, field_manager="bivouac", trust_env=False)


def from_pod() -> Client:
    config = KubeConfig.from_service_account()
    return Client(config=config, namespace=NAMESPACE, field_manager="bivouac-steward", trust_env=False)


def kubeconfig(account: Account, cluster: str) -> dict[str, object]:
    """A kubeconfig whose user asks `bivouac token` for each token; holds no secret."""
    found = account.client("eks").describe_cluster(name=cluster)["cluster"]
    base64.b64decode(found["certificateAuthority"]["data"], validate=True)
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": cluster,
        "clusters": [
            {
                "name": cluster,
                "cluster": {
                    "server": found["endpoint"],
                    "certificate-authority-data": found["certificateAuthority"]["data"],
                },
            }
        ],
        "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": cluster, "namespace": NAMESPACE}}],
        "users": [
            {
                "name": cluster,
                "user": {
                    "exec": {
                        "apiVersion": "client.authentication.k8s.io/v1",
                        "command": "bivouac",
                        "args": ["token", "--cluster", cluster, "--region", account.region],
                        "interactiveMode": "Never",
                    }
                },
            }
        ],
    }


def is_gone(error: ApiError) -> bool:
    return error.status.code == 404


def is_there_already(error: ApiError) -> bool:
    return error.status.code == 409
