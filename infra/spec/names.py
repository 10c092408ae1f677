"""Every name that Bivouac gives, as a pure function of the campaign; nothing else makes names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from infra.spec.sections import ENDPOINT_SERVICES

PROJECT = "bivouac"
FOUNDATION_STACK = "foundation"
FOUNDATION_PREFIX = "bivouac-"
"""With which the names of the foundation's buckets begin."""
REPOSITORY = "bivouac/trainer"
BUILD_NETWORK = "bivouac_build"
"""Where images are baked. Underscores: no campaign's name can have them, so none collides."""

NAMESPACE = "campaign"
PRIORITY_CLASS = "bivouac-training"
STEWARD_PRIORITY_CLASS = "system-cluster-critical"
"""That of add-ons, so that a node short of memory does not end the steward first. Kubernetes allows it in every
namespace; only clusters whose quota admission limits it ask for a quota, and EKS's does not."""
SHARED_CLAIM = "shared"
"""The claim on FSx; sub-path `data` is read at /data, sub-path `checkpoints` is the shared tier."""
DATA_FOLDER = "data"
LOCAL_CLAIM = "local"
"""The claim on each node's own folder for checkpoints: one volume, which is another folder on every node."""
NODE_CLAIM = "node"
"""The claim on what a node tells of itself, for the health check to read."""

EFA_CLAIM = "efa"
"""The template of the pods' claims on EFA devices, where a DRA driver hands them out."""

TRAINER_ACCOUNT = "trainer"
STEWARD_ACCOUNT = "steward"
ARCHIVE_ACCOUNT = "archive"
CNI_ACCOUNT = "aws-node"

POOL_LABEL = "bivouac.dev/pool"
GPU_POOL = "gpu"
SYSTEM_POOL = "system"
GPU_TAINT_KEY = "nvidia.com/gpu"
GPU_TAINT = f"{GPU_TAINT_KEY}=present:NoSchedule"

HUGE_PAGES = 5128
"""Pages of 2 MiB on a node with EFA: what AWS's full EFA installation sets aside."""
HUGE_PAGES_PER_POD = "5120Mi"
"""Of `hugepages-2Mi`: a rank that gets none falls back to small pages."""
LOCAL_DISK = "/mnt/k8s-disks/0"
"""Where nodeadm mounts the RAID 0 over the NVMe disks."""
LOCAL_CHECKPOINTS_HOST_PATH = f"{LOCAL_DISK}/bivouac"
NODE_TOLD_HOST_PATH = "/run/bivouac"
"""Where the node image's services write; see playbooks/roles/health_checks."""

STEWARD_COMMAND = ("python", "-m", "infra.steward")
ARCHIVE_COMMAND = ("python", "-m", "infra.archive.archive")
ARCHIVE_WORK = "/local-checkpoints/.archive"
ARCHIVE_ROOM = ("install", "-d", "-m", "1777", ARCHIVE_WORK)
"""The archive's first step, as root: room on the NVMe disk for its program, which is not root."""

CAMPAIGN_TAG = "bivouac:campaign"
CAMPAIGN_ID_TAG = "bivouac:campaign-id"
"""The campaign's identity, which outlives its name: a name can be used again."""
OWNER_TAG = "bivouac:owner"
EXPIRES_TAG = "bivouac:expires"
REGION_TAG = "bivouac:region"
"""Of a campaign's things: roles and policies are listed alike in every region, and their names do not tell it."""
FOUNDATION_TAG = "bivouac:foundation"
ROLE_TAG, BUILDER = "bivouac:role", "builder"
INPUTS_TAG, MANIFEST_TAG = "bivouac:inputs", "bivouac:manifest"
"""On a baked node image and its snapshots: the digest of its inputs, and its manifest once that is written."""

KEY_ALIAS = "alias/bivouac"
"""Of the foundation's own key, where a campaign asked for one."""
BLOCK_CAMPAIGN_TAG = "bivouac:block-for"
"""The campaign that a capacity block was bought for. Not the campaign tag: no teardown may count it as its own."""
BLOCK_OFFERING_TAG = "bivouac:block-offering"


@dataclass(frozen=True)
class Buckets:
    """The buckets of the foundation: one of each per account and region."""

    state: str
    data: str
    archive: str


def buckets(account: str, region: str) -> Buckets:
    return Buckets(*(f"bivouac-{kind}-{account}-{region}" for kind in ("state", "data", "archive")))


def builder_role(region: str) -> str:
    """Of builders, and their instance profile; IAM's names hold for all regions, the build network is one of each."""
    return f"{BUILD_NETWORK}_{region}"


def builder_guard_role(region: str) -> str:
    """The role that ends builders."""
    return f"{BUILD_NETWORK}_guard_{region}"


def boundary(region: str) -> str:
    """The permissions boundary of every role of ours in this region."""
    return f"{PROJECT}_boundary_{region}"


def freeze_policy(region: str) -> str:
    """What a spent budget attaches to the roles that its campaign names. Underscores, as in all that is for every
    campaign: no campaign's name can have them."""
    return f"{PROJECT}_freeze_{region}"


def registry_host(account: str, region: str) -> str:
    return f"{account}.dkr.ecr.{region}.amazonaws.com"


def repository_url(account: str, region: str) -> str:
    """The trainer's repository without tag or digest."""
    return f"{registry_host(account, region)}/{REPOSITORY}"


_REFERENCE = re.compile(
    r"(?P<repository>[a-z0-9]+(?:[._/-][a-z0-9]+)*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127})|@(?P<digest>sha256:[0-9a-f]{64}))"
)


def split_reference(reference: str) -> tuple[str, str]:
    """(repository, tag or digest) of `repository:tag` or `repository@sha256:...`. Raises ValueError for all else."""
    match = _REFERENCE.fullmatch(reference)
    first, slash, _ = reference.partition("/")
    if match is None or (slash and "." in first):  # as docker reads it: a name with a dot is a registry
        raise ValueError(f"no repository with tag or digest: {reference}")
    return match["repository"], match["tag"] or match["digest"]


def in_registry(reference: str, account: str, region: str) -> tuple[str, str]:
    """As `split_reference`, with or without the account's own registry before it. Raises ValueError for another's."""
    return split_reference(reference.removeprefix(f"{registry_host(account, region)}/"))


def data_prefix(manifest_digest: str) -> str:
    """Prefix of a prepared data set in the data bucket; ends in a slash."""
    return f"datasets/{manifest_digest}/"


def campaign_stack(campaign: str) -> str:
    return f"campaign-{campaign}"


_POOLS = (GPU_POOL, SYSTEM_POOL)
_MACHINES = (*_POOLS, BUILDER)
_PARTS: Mapping[str, tuple[str, ...]] = {
    "cluster": ("",),
    "node group": _POOLS,
    "launch template": _POOLS,
    "placement group": (GPU_POOL,),
    "instance": _MACHINES,
    "volume": _MACHINES,
    "network interface": _MACHINES,
    "role": ("cluster", "node", "cni", "steward", "trainer", "archive", "guard", "budget"),
    "schedule": ("deadline", BUILDER),
    "topic": ("alarms",),
    "budget": ("",),
    "file system": ("shared",),
    "VPC": ("",),
    "VPC peering": ("driver",),
    "VPC endpoint": ("s3", *ENDPOINT_SERVICES),
    "subnet": ("public", "control-plane-a", "control-plane-b", GPU_POOL),
    "route table": ("public", "private"),
    "internet gateway": ("",),
    "elastic address": ("",),
    "NAT gateway": ("",),
    "security group": ("nodes", "lustre", "endpoints"),
}
"""Kind of resource -> what follows the campaign's prefix and a dash in the names that it gives to that kind.

No part of a kind ends with a dash and another part of that kind: so two campaigns never give one name to one kind, and
a name tells its campaign, whatever the campaigns are called.
"""


@dataclass(frozen=True, init=False)
class Names:
    """Names of one campaign, from its spec or only from its name (`bivouac down NAME` has nothing else)."""

    campaign: str

    def __init__(self, campaign: Any) -> None:
        object.__setattr__(self, "campaign", campaign if isinstance(campaign, str) else campaign.campaign)

    @property
    def prefix(self) -> str:
        """Every AWS name of this campaign starts with it, and so may another's: only a whole name tells whose it is."""
        return f"bivouac-{self.campaign}"

    def of(self, kind: str, part: str = "") -> str:
        """The name of one resource; raises `ValueError` for one that the table lacks, so that each can be told."""
        if part not in _PARTS.get(kind, ()):
            raise ValueError(f"no {kind} of a campaign is called {part!r}")
        return f"{self.prefix}-{part}" if part else self.prefix

    def given(self, kind: str) -> frozenset[str]:
        """All names that the campaign gives to a kind of resource; none to kinds that it does not name."""
        return frozenset(self.of(kind, part) for part in _PARTS.get(kind, ()))

    @property
    def cluster(self) -> str:
        return self.of("cluster")

    @property
    def gpu_group(self) -> str:
        return self.of("node group", GPU_POOL)

    @property
    def system_group(self) -> str:
        return self.of("node group", SYSTEM_POOL)

    @property
    def cluster_role(self) -> str:
        return self.of("role", "cluster")

    @property
    def node_role(self) -> str:
        return self.of("role", "node")

    @property
    def cni_role(self) -> str:
        return self.of("role", "cni")

    @property
    def steward_role(self) -> str:
        return self.of("role", "steward")

    @property
    def trainer_role(self) -> str:
        return self.of("role", "trainer")

    @property
    def archive_role(self) -> str:
        return self.of("role", "archive")

    @property
    def builder(self) -> str:
        """Name tag of the builder that bakes for this campaign, and name of the schedule that ends it."""
        return self.of("schedule", BUILDER)

    @property
    def guard_role(self) -> str:
        return self.of("role", "guard")

    @property
    def budget_role(self) -> str:
        """With which AWS Budgets freezes the roles that the spec names."""
        return self.of("role", "budget")

    @property
    def alarms(self) -> str:
        """SNS topic of the campaign's alarms."""
        return self.of("topic", "alarms")

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(self.of("role", part) for part in _PARTS["role"])

    @property
    def log_group(self) -> str:
        """EKS writes to exactly this name; made before the cluster, or the dying control plane makes it again."""
        return f"/aws/eks/{self.cluster}/cluster"

    @property
    def schedule(self) -> str:
        return self.of("schedule", "deadline")

    @property
    def placement_group(self) -> str:
        return self.of("placement group", GPU_POOL)

    @property
    def file_system(self) -> str:
        """Name tag of the FSx file system."""
        return self.of("file system", "shared")

    @property
    def stack(self) -> str:
        return campaign_stack(self.campaign)

    @property
    def state_prefix(self) -> str:
        """Prefix of this campaign in the state and archive buckets; ends in a slash."""
        return f"campaigns/{self.campaign}/"
