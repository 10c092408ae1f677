"""Every wait for a work of AWS, in one table: how long AWS takes, who says so, and for how long we wait.

A rehearsal may let its emulated AWS take AWS's own times at a fraction of them; the same fraction then holds here.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

TIME_SCALE = "BIVOUAC_TIME_SCALE"
"""Environment variable of a rehearsal: how many times as fast as AWS its emulation is. Without it, waits are whole."""
_SHORTEST_S = 30.0
"""No scale goes below it: the processes of a rehearsal need their time at any scale."""


def time_scale() -> float:
    return float(os.environ.get(TIME_SCALE, "1"))


@dataclass(frozen=True)
class WaitBound:
    """A bound on one work of AWS."""

    what: str
    takes: str
    """What AWS takes."""
    source: str
    minutes: float
    """For how long we wait."""
    waiters: tuple[str, ...] = ()
    """AWS's own waiters for the same work, as `service.name` of botocore: none waits for longer than we do."""
    longest: float = 0
    """Minutes at the long end of what AWS takes, for the plan; 0 for what the plan does not count."""

    @property
    def seconds(self) -> float:
        """The bound at the target's time scale."""
        total = 60 * self.minutes
        return max(total / time_scale(), min(total, _SHORTEST_S))

    @property
    def timeout(self) -> str:
        """The bound as Pulumi writes it."""
        return f"{self.seconds:.0f}s"


_UNSOURCED = "unsourced"

CLUSTER = WaitBound(
    "EKS makes or deletes a control plane", "9 to 15 min",
    "AWS, 19 March 2021: 9 min on average; cluster-api-provider-aws, pull 3878: 11 to 13 min, once 32",
    40, ("eks.cluster_active", "eks.cluster_deleted"), longest=15,
)  # fmt: skip
NODE_GROUP = WaitBound(
    "EKS makes, changes or deletes a node group, and its instances with it", "5 to 45 min",
    f"{_UNSOURCED}; botocore's waiter gives up after 40 min, Terraform's provider after 60",
    60, ("eks.nodegroup_active", "eks.nodegroup_deleted"), longest=45,
)  # fmt: skip
ADD_ON = WaitBound(
    "EKS makes or deletes an add-on", "up to 20 min",
    f"{_UNSOURCED}; Terraform's provider gives up after 20 min, and after 40 for a deletion",
    40, ("eks.addon_active", "eks.addon_deleted"), longest=20,
)  # fmt: skip
FILE_SYSTEM = WaitBound(
    "FSx makes or deletes a file system", "10 to 30 min", f"{_UNSOURCED}; Terraform's provider gives up after 30 min",
    40, longest=30,
)  # fmt: skip
LOST_FILE_SYSTEM = WaitBound(
    "FSx calls a file system gone or FAILED, and nothing else in between, before we believe that it is lost",
    "at once",
    "FSx's API reference, DescribeFileSystems: FileSystemNotFound, and FAILED for an unrecoverable failure",
    2,
)
DATA_LINK = WaitBound("FSx links a file system with S3", "minutes", "FSx for Lustre's guide, data repositories", 30)
FURTHER_LINK = WaitBound(
    "FSx makes a further link, one after the other", "minutes each", "FSx for Lustre's guide, data repositories", 90
)
BOOT = WaitBound(
    "a GPU instance boots and joins", "2 min, P5 10 to 20 min",
    f"{_UNSOURCED}; amazon-eks-ami, issue 1099: GPUs take much longer; pycloudlib, pull 192: bare metal over 20 min",
    20, ("ec2.instance_status_ok",), longest=20,
)  # fmt: skip
SHUTDOWN = WaitBound(
    "a GPU instance shuts down; it no longer bills then", "P5 10 to 20 min, with the cleaning of its place",
    f"{_UNSOURCED} for P5; aws-parallelcluster, pull 6338: trn1 over 15 min, not billed while shutting down",
    25, ("ec2.instance_terminated",),
)  # fmt: skip
ENDING = WaitBound(
    "EC2 takes up the end of instances that no group ends", "seconds", "EC2's guide, terminate instances", 3
)
BUILDER_END = WaitBound("EC2 ends a builder", "minutes", "botocore's waiter", 20, ("ec2.instance_terminated",))
BUILDER_STOP = WaitBound("EC2 stops a builder", "minutes", "botocore's waiter", 15, ("ec2.instance_stopped",))
BUILDER_BOOT = WaitBound(
    "a builder boots, and its SSM agent answers", "2 to 5 min", _UNSOURCED, 10, ("ec2.instance_running",), longest=5
)
IMAGE = WaitBound(
    "EC2 makes an image of a builder's disk", "10 to 20 min",
    "EC2's guide: several minutes by the disk's size, at worst 24 h; Packer, issue 6536: over 10 min; "
    "scylla-machine-image, pull 352: over 30 min",
    45, ("ec2.image_available",), longest=20,
)  # fmt: skip
ROLE_KNOWN = WaitBound(
    "IAM makes a new role known everywhere", "seconds, at times minutes", "IAM's guide, eventual consistency", 3
)
TRIAL_BUILD = WaitBound(
    "CodeBuild runs the closer's trial build", "about 2 min, estimated; no account has run one", "unsourced", 15
)
CREATION = WaitBound(
    "AWS ends a creation that an interrupted engine began",
    "as long as the slowest of them",
    "the rows above",
    60,
    ("eks.nodegroup_active", "eks.cluster_active"),
)
TEARDOWN = WaitBound(
    "a teardown fails without progress before it gives up", "one try may rightly last 45 min", "the rows above", 60
)
SILENCE = WaitBound(
    "an API server is silent before its objects are given up with it",
    "a gap of 5 min in S3 or a VPN is no fault",
    "our own choice",
    5,
)
WAITS: tuple[WaitBound, ...] = tuple(one for one in list(globals().values()) if isinstance(one, WaitBound))
