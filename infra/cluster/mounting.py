"""What a job's pods find at `/mounts`: which claim has each folder, and how a pod mounts it."""

from __future__ import annotations

from typing import Any

from infra.spec.campaign import Spec
from infra.spec.names import LOCAL_CLAIM, SHARED_CLAIM
from infra.spec.workload.links import MOUNTS
from infra.spec.workload.mounts import mount_claim, mount_folder
from trainer.contract.frozen import Frozen
from trainer.contract.workload import STAGED, STAGING_SOURCES


class GangMount(Frozen):
    """A folder that the job reads at `/mounts/<name>`."""

    name: str
    claim: str = SHARED_CLAIM
    sub_path: str = ""
    """Folder of the claim's volume; empty: all of it."""
    writable: bool = False
    staged: bool = False
    """The supervisor copies it to the node's disk, and the job reads the copy."""


def gang_mounts(spec: Spec) -> tuple[GangMount, ...]:
    """Return what a campaign's job finds at `/mounts`."""
    mounts = [GangMount(name=name, sub_path=mount_folder(name)) for name in spec.links]
    for name, mount in spec.runtime.attached.items():
        mounts.append(GangMount(name=name, claim=mount_claim(name), writable=mount.writable))
    copies = spec.runtime.staged
    return tuple(mount.model_copy(update={"staged": mount.name in copies}) for mount in mounts)


def show(mount: GangMount, judges: bool, pod_volumes: list[dict[str, Any]], mounts: list[dict[str, Any]]) -> None:
    """Add a mount, and its volume if the pod has none of that claim. The pod that judges has no disk for a copy."""
    is_copied = mount.staged and not judges
    if mount.claim not in {row["name"] for row in pod_volumes}:
        pod_volumes.append({"name": mount.claim, "persistentVolumeClaim": {"claimName": mount.claim}})
    folder = f"{STAGING_SOURCES if is_copied else MOUNTS}/{mount.name}"
    place = {"subPath": mount.sub_path} if mount.sub_path else {}
    mounts.append({"name": mount.claim, "mountPath": folder, **place, "readOnly": not mount.writable})
    if is_copied:
        copy = {"mountPath": f"{MOUNTS}/{mount.name}", "subPath": f"{STAGED}/{mount.name}", "readOnly": True}
        mounts.append({"name": LOCAL_CLAIM, **copy})
