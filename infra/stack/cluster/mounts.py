"""Static volumes of a job's own mounts: S3 prefixes by Mountpoint. Pure.

Mountpoint's driver provisions statically only, and wants a handle of its own for each volume:
https://github.com/awslabs/mountpoint-s3-csi-driver/blob/main/docs/CONFIGURATION.md (read 2026-11-27).
"""

from __future__ import annotations

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


def mount_volumes(spec: Spec, workload: Workload) -> dict[str, MountVolume]:
    """Return claim -> its volume."""
    volumes = dict[str, MountVolume]()
    for name, prefix in workload.by_mountpoint.items():
        bucket, _, folder = prefix.removeprefix("s3://").rstrip("/").partition("/")
        claim = mount_claim(name)
        volumes[claim] = MountVolume(
            driver="s3.csi.aws.com",
            handle=f"{Names(spec).prefix}-{claim}",
            options=("read-only", "allow-other", f"region {spec.region}", *([f"prefix {folder}/"] if folder else [])),
            attributes={"bucketName": bucket, "authenticationSource": "pod", "stsRegion": spec.region},
        )
    return volumes
