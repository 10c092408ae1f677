"""Security contexts and tolerations of the campaign's pods, and what all its one-time pods and Jobs have."""

from __future__ import annotations

from typing import Any

from infra.spec.names import NAMESPACE

NOBODY = 65532
"""User and group of pods that need no root; images need not define them."""
ROOT = 0
"""User, without any capability, of pods that write root's folders (file system, NVMe disk) or hold devices."""
READS_ALL = {"drop": ["ALL"], "add": ["DAC_OVERRIDE"]}
"""Capabilities of root that reads the files of every user. `DAC_READ_SEARCH` would be less, and Pod Security's
`baseline` does not let a container add it; so its mounts are read-only."""
SECCOMP = "RuntimeDefault"
ENVIRONMENT = {"HOME": "/tmp", "USER": "bivouac"}
"""Variables for `NOBODY`, which images do not define: programs cache in HOME, and torch and others read USER."""


def leaving_a_dead_node(seconds: int | None) -> list[dict[str, Any]]:
    """Return the tolerations of a pod that is made anew elsewhere, so long after its node is called dead. None: never;
    without any toleration Kubernetes evicts it after 300 s."""
    rule = {"operator": "Exists", "effect": "NoExecute"} | ({} if seconds is None else {"tolerationSeconds": seconds})
    return [{"key": f"node.kubernetes.io/{key}", **rule} for key in ("unreachable", "not-ready")]


def pod_context(user: int) -> dict[str, Any]:
    """Return the pod's security context; its containers run as `user`."""
    ids: dict[str, Any] = {"runAsUser": user, "runAsGroup": user}
    return {"seccompProfile": {"type": SECCOMP}, **ids, **({} if user == ROOT else {"runAsNonRoot": True})}


def environment() -> list[dict[str, str]]:
    """Return `ENVIRONMENT` in the form of a container's `env`."""
    return [{"name": name, "value": value} for name, value in ENVIRONMENT.items()]


def container_context(**fields: Any) -> dict[str, Any]:
    """Return a container's security context, without capabilities or privilege escalation, with `fields` added."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, **fields}


def one_time_pod(
    account: str, user: int, volumes: list[dict[str, Any]], container: dict[str, Any], **fields: Any
) -> dict[str, Any]:
    """Return a pod that runs once, without a token for Kubernetes, with `fields` added."""
    return {
        "restartPolicy": "Never",
        "serviceAccountName": account,
        "automountServiceAccountToken": False,
        "securityContext": pod_context(user),
        "volumes": volumes,
        "containers": [container],
        **fields,
    }


def batch_job(
    name: str, labels: dict[str, str], pod: dict[str, Any], namespace: str = NAMESPACE, **fields: Any
) -> dict[str, Any]:
    """Return a Job of `batch/v1`; `fields`: of its spec, beside the template of its pods."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {**fields, "template": {"metadata": {"labels": labels}, "spec": pod}},
    }
