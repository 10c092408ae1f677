"""Static volumes of a job's own mounts: S3 prefixes by Mountpoint, and file systems that exist. Pure.

Mountpoint's driver provisions statically only, and wants a handle of its own for each volume:
https://github.com/awslabs/mountpoint-s3-csi-driver/blob/main/docs/CONFIGURATION.md (read 2026-11-27). So does the
kubelet, which mounts a handle once per pod.

A folder of an existing file system is mounted as Lustre's file set: FSx's driver mounts `DNSNAME@tcp:/MOUNTNAME`
(https://github.com/kubernetes-sigs/aws-fsx-csi-driver/blob/master/pkg/driver/node.go), and a folder behind the name
must exist (issue 247 there). A `subPath` would be made by the kubelet where it is missing.
"""

from __future__ import annotations

from collections.abc import Mapping

from infra.errors import UserError
from infra.spec.campaign import Spec
from infra.spec.names import Names
from infra.spec.workload.mounts import mount_claim
from trainer.contract.frozen import Frozen


class MountVolume(Frozen):
    """A volume of a CSI driver."""

    driver: str
    handle: str
    options: tuple[str, ...]
    attributes: dict[str, str]


def mount_volumes(spec: Spec, mount_names: Mapping[str, str]) -> dict[str, MountVolume]:
    """Return claim -> its volume. `mount_names`: file system -> Lustre's name of it. Raises `UserError` without one."""
    volumes = dict[str, MountVolume]()
    for name, prefix in spec.runtime.by_mountpoint.items():
        bucket, _, folder = prefix.removeprefix("s3://").rstrip("/").partition("/")
        claim = mount_claim(name)
        volumes[claim] = MountVolume(
            driver="s3.csi.aws.com",
            handle=f"{Names(spec).prefix}-{claim}",
            options=("read-only", "allow-other", f"region {spec.region}", *([f"prefix {folder}/"] if folder else [])),
            attributes={"bucketName": bucket, "authenticationSource": "pod", "stsRegion": spec.region},
        )
    for name, mount in spec.runtime.attached.items():
        if mount.fsx is None:
            continue
        if mount.fsx not in mount_names:
            cure = "look whether the file system exists, and run again"
            raise UserError("the stack does not know Lustre's name of a file system", seen=mount.fsx, cure=cure)
        claim, file_set = mount_claim(name), "/".join(filter(None, (mount_names[mount.fsx], mount.path.strip("/"))))
        volumes[claim] = MountVolume(
            driver="fsx.csi.aws.com",
            handle=f"{Names(spec).prefix}-{claim}",
            options=("flock",) if mount.writable else ("flock", "ro"),
            attributes={"dnsname": f"{mount.fsx}.fsx.{spec.region}.amazonaws.com", "mountname": file_set},
        )
    return volumes
