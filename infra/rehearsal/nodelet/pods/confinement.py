"""A container's security context, as far as a machine of a rehearsal can apply it; it refuses the rest.

Where root has made the site, a pod's user is that user to the kernel, and root without capabilities is bound by
permissions as on a node. Elsewhere every pod of a site is one user: a pod's own is a name inside its user namespace,
which lacks root's rights, and files belong to it. Seccomp profiles are not loaded. The site's honesty list says both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from infra.errors import TemporaryError
from infra.rehearsal.nodelet.client import Object

RETRY = timedelta(seconds=2)
CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
    "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
    "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
    "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP",
    "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF",
    "CHECKPOINT_RESTORE",
)  # fmt: skip
"""Ordered by their number in the kernel (linux/capability.h)."""
DEFAULT = frozenset({
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "NET_RAW",
    "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
})  # fmt: skip
"""containerd's default capabilities."""
_OF_POD = {"runAsUser", "runAsGroup", "runAsNonRoot", "seccompProfile"}
_OF_CONTAINER = _OF_POD | {"allowPrivilegeEscalation", "capabilities", "privileged", "readOnlyRootFilesystem"}


@dataclass(frozen=True)
class Confinement:
    user: int
    group: int
    capabilities: tuple[int, ...]
    """Numbers of the capabilities that the container keeps."""
    no_new_privileges: bool
    read_only_root: bool


class NotHonoured(TemporaryError):
    """CreateContainerConfigError: the container is not started."""

    def __init__(self, subject: str, value: object, cure: str) -> None:
        super().__init__(subject, seen=value, cure=cure, delay=RETRY)


def confinement(pod: Object, container: Object) -> Confinement:
    """Return the container's confinement. Raises NotHonoured."""
    of_pod, of_container = pod.get("securityContext") or {}, container.get("securityContext") or {}
    if strange := sorted(_strange(pod, of_pod, of_container)):
        cure = "leave it out: a machine of a rehearsal is no separate host"
        raise NotHonoured("this node cannot honour a security context", ", ".join(strange), cure)
    context = {**of_pod, **of_container}
    user = int(context.get("runAsUser") or 0)
    if context.get("runAsNonRoot") and user == 0:
        cure = "name another user by runAsUser"
        raise NotHonoured("container has runAsNonRoot and would run as root", container["name"], cure)
    return Confinement(
        user=user,
        group=int(context.get("runAsGroup") or 0),
        capabilities=tuple(
            sorted(CAPABILITIES.index(name) for name in _capabilities(of_container.get("capabilities") or {}))
        ),
        no_new_privileges=of_container.get("allowPrivilegeEscalation") is False,
        read_only_root=bool(of_container.get("readOnlyRootFilesystem")),
    )


def _strange(pod: Object, of_pod: Object, of_container: Object) -> Iterator[str]:
    yield from (name for name in ("hostPID", "hostIPC") if pod.get(name))
    if pod.get("hostUsers") is False:
        yield "hostUsers: false"
    yield from (f"securityContext.{name}" for name in set(of_pod) - _OF_POD)
    yield from (f"securityContext.{name}" for name in set(of_container) - _OF_CONTAINER)
    if of_container.get("privileged"):
        yield "privileged"
    for context in (of_pod, of_container):
        if (context.get("seccompProfile") or {}).get("type") == "Localhost":
            yield "seccompProfile of the node's own"
    capabilities: dict[str, Any] = of_container.get("capabilities") or {}
    for name in (*(capabilities.get("add") or ()), *(capabilities.get("drop") or ())):
        if name not in (*CAPABILITIES, "ALL"):
            yield f"capability {name}"


def _capabilities(capabilities: Object) -> frozenset[str]:
    drop, add = set(capabilities.get("drop") or ()), set(capabilities.get("add") or ())
    left = frozenset() if "ALL" in drop else DEFAULT - drop
    return frozenset(CAPABILITIES) if "ALL" in add else left | add
