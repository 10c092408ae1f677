"""The security contexts of the campaign's own pods: what a container is never given, and who it runs as."""

from __future__ import annotations

from typing import Any

NOBODY = 65532
"""User and group of pods that need no root; no image has to know them."""
ROOT = 0
"""User of pods that write folders of root's (file system, NVMe disk) or hold devices: without any capability."""
SECCOMP = "RuntimeDefault"
ENVIRONMENT = {"HOME": "/tmp", "USER": "bivouac"}
"""For `NOBODY`, whom no image knows: where programs keep a cache, and the name that torch and others ask for."""


def pod_context(user: int) -> dict[str, Any]:
    """Return the pod's security context; its containers run as `user`."""
    who: dict[str, Any] = {"runAsUser": user, "runAsGroup": user}
    return {"seccompProfile": {"type": SECCOMP}, **who, **({} if user == ROOT else {"runAsNonRoot": True})}


def environment() -> list[dict[str, str]]:
    """Return `ENVIRONMENT` as a container's."""
    return [{"name": name, "value": value} for name, value in ENVIRONMENT.items()]


def container_context(**more: Any) -> dict[str, Any]:
    """Return a container's security context: no capability, and no way to more rights; `more` is added."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, **more}
