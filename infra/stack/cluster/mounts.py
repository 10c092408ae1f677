"""Static volumes of a job's own mounts: S3 prefixes by Mountpoint, and file systems that exist. Pure.

Mountpoint's driver provisions statically only, and wants a handle of its own for each volume:
https://github.com/awslabs/mountpoint-s3-csi-driver/blob/main/docs/CONFIGURATION.md (read 2026-11-27).
"""

from __future__ import annotations

from collections.abc import Mapping

from infra.errors import UserError
from infra.spec.campaign import Spec
from infra.spec.names import Names, mount_claim
from infra.spec.workload.workload import Workload
from trainer.contract.frozen import Frozen


class MountVolume(Frozen):
    """A volume of a CSI driver."""

    driver: str
    handle: str
    options: tuple[str, ...]
    attributes: dict[str, str]


def mount_volumes(spec: Spec, workload: Workload, mount_names: Mapping[str, str]) -> dict[str, MountVolume]:
    """Return claim -> its volume. `mount_names`: file system -> Lustre's name of it. Raises `UserError` without one."""
    volumes = dict[str, MountVolume]()
    for name, prefix in workload.by_mountpoint.items():
        bucket, _, folder = prefix.removeprefix("s3://").rstrip("/").partition("/")
        claim = mount_claim(name, workload.attached[name])
        volumes[claim] = MountVolume(
            driver="s3.csi.aws.com",
            handle=f"{Names(spec).prefix}-{claim}",
            options=("read-only", "allow-other", f"region {spec.region}", *([f"prefix {folder}/"] if folder else [])),
            attributes={"bucketName": bucket, "authenticationSource": "pod", "stsRegion": spec.region},
        )
    for system, is_written in workload.given_file_systems.items():
        if system not in mount_names:
            cure = "look whether the file system exists, and run again"
            raise UserError("the stack does not know Lustre's name of a file system", seen=system, cure=cure)
        address = f"{system}.fsx.{spec.region}.amazonaws.com"
        volumes[f"given-{system}"] = MountVolume(
            driver="fsx.csi.aws.com",
            handle=system,
            options=("flock",) if is_written else ("flock", "ro"),
            attributes={"dnsname": address, "mountname": mount_names[system]},
        )
    return volumes
