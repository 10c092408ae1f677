"""Every name that Bivouac gives, as a pure function of the campaign; no other module makes names."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from infra.spec.services import ENDPOINT_SERVICES, SECRETS_SERVICE

PROJECT = "bivouac"
FOUNDATION_STACK = "foundation"
FOUNDATION_PREFIX = "bivouac-"
"""Prefix of the names of the foundation's buckets."""
REPOSITORY, STEWARD_REPOSITORY = "bivouac/trainer", "bivouac/steward"
BUILD_NETWORK = "bivouac_build"
"""Network in which images are baked. No campaign's name can contain an underscore, so none collides with it."""

NOTICES = "bivouac_notices"
"""The account's topic on which all campaigns of a region tell people what happens. It outlives them: the last notice
comes after the teardown."""

CLOSER = "bivouac_closer"
"""CodeBuild project of the foundation that ends campaigns which nobody drives any more."""
CAMPAIGN_VARIABLE, CODE_VARIABLE, STATE_VARIABLE = "BIVOUAC_CAMPAIGN", "BIVOUAC_CODE", "BIVOUAC_STATE"
"""Environment of its builds: the campaign, the digest of the code, the state bucket."""

NAMESPACE = "campaign"
PRIORITY_CLASS = "bivouac-training"
STEWARD_PRIORITY_CLASS = "system-cluster-critical"
"""The class of add-ons, so that a node short of memory does not evict the steward first. Kubernetes allows it in every
namespace; only clusters whose admission plugin limits it need a quota, and EKS's does not."""
SHARED_CLAIM = "shared"
"""The claim on FSx; sub-path `data` is mounted at /data, sub-path `checkpoints` is the shared tier."""
DATA_FOLDER = "data"
LOCAL_CLAIM = "local"
"""The claim on each node's own checkpoint folder: one volume that is another folder on every node."""
NODE_CLAIM = "node"
"""The claim on the node's own facts, which the health check reads."""

EFA_CLAIM = "efa"
"""Template of the pods' claims on EFA devices, if a DRA driver hands them out."""

TRAINER_ACCOUNT = "trainer"
STEWARD_ACCOUNT = "steward"
ARCHIVE_ACCOUNT = "archive"
DATA_ACCOUNT = "data"
"""Of the pods that prepare the data in the cluster."""
CNI_ACCOUNT = "aws-node"

POOL_LABEL = "bivouac.dev/pool"
GPU_POOL = "gpu"
SYSTEM_POOL = "system"
DATA_POOL = "data"
"""Nodes that prepare the data, and go before the first GPU node comes."""
GPU_TAINT_KEY = "nvidia.com/gpu"
GPU_TAINT = f"{GPU_TAINT_KEY}=present:NoSchedule"

HUGE_PAGES = 5128
"""Pages of 2 MiB on a node with EFA: the number that AWS's full EFA installation reserves."""
HUGE_PAGES_PER_POD = "5120Mi"
"""Amount of `hugepages-2Mi`; a rank without them falls back to small pages."""
LOCAL_DISK = "/mnt/k8s-disks/0"
"""Mount point of nodeadm's RAID 0 over the NVMe disks."""
LOCAL_CHECKPOINTS_HOST_PATH = f"{LOCAL_DISK}/bivouac"
NODE_TOLD_HOST_PATH = "/run/bivouac"
"""Folder in which services of the node image write; see playbooks/roles/health_checks."""

SECRETS_COMMAND = ("python", "-m", "infra.steward.secrets")
"""Fetches a job's secrets, in an init container of its pods."""
SECRET_VALUE = "BIVOUAC_SECRET_"
"""Beginning of that container's variables, where a cluster's Secrets have the values: the job's name follows."""
BASICS_COMMAND = ("python", "-m", "infra.cluster.basics")
SHARE_COMMAND = ("python", "-m", "trainer.builtin.data.share")
"""One pod's share of the preparation of the data."""
STEWARD_COMMAND = ("python", "-m", "infra.steward")
ARCHIVE_COMMAND = ("python", "-m", "infra.archive.archive")
COPY_COMMAND = ("python", "-m", "infra.checkpoints.copies", "send")
FETCH_COMMAND = ("python", "-m", "infra.checkpoints.copies", "fetch")
"""Copy the newest committed checkpoint to S3, and the newest sound copy back to the shared tier."""
ARCHIVE_WORK = "/local-checkpoints/.archive"
ARCHIVE_ROOM = ("install", "-d", "-m", "1777", ARCHIVE_WORK)
"""First step of the archive, as root: a folder on the NVMe disk for the archive program, which is not root."""

CAMPAIGN_TAG = "bivouac:campaign"
CAMPAIGN_ID_TAG = "bivouac:campaign-id"
"""The campaign's identity, which outlives its name: a name can be reused."""
OWNER_TAG = "bivouac:owner"
LONGEST_TAG = 256
EXPIRES_TAG = "bivouac:expires"
REGION_TAG = "bivouac:region"
"""Region of a campaign's resource. IAM lists roles and policies alike in every region, and their names lack it."""
FOUNDATION_TAG = "bivouac:foundation"
ROLE_TAG, BUILDER = "bivouac:role", "builder"
INPUTS_TAG, MANIFEST_TAG = "bivouac:inputs", "bivouac:manifest"
"""On a baked node image and its snapshots: the digest of the inputs, and the manifest once it is written."""

KEY_ALIAS = "alias/bivouac"
"""Alias of the foundation's own key, which exists once a campaign has asked for one."""
STATE_CONTEXT = ("bivouac", "pulumi")
"""KMS encryption context with which the customer's key encrypts the engine's keys. Policies allow no other use."""
TEXT_TAG, MOUNTS_TAG = "bivouac:text", "bivouac:mounts"
"""On a bucket of other people's: the campaigns' nodes may read its text. S3 heeds it once the bucket's ABAC is on."""
KEY_TAG = "bivouac:key"
"""On a key of other people's: the campaigns' clusters may encrypt their secrets with it."""
JOB_SECRETS, WEBHOOK_SECRETS = f"{PROJECT}_job", f"{PROJECT}_webhook"
"""How the names of the secrets and parameters begin that a job's pods, and a steward, may read."""
TOPICS = PROJECT
"""How the names of the topics begin on which stewards and the closer may tell people."""


def tag_value(text: str) -> str:
    """Return a text that every service takes as a tag's value. Raises ValueError. The pattern is that of IAM, FSx and
    CloudWatch Logs, the narrowest in botocore's models; EC2 and others take any text. `aws:` is AWS's own beginning, of
    values too and in any case (IAM's guide, rules for tagging; awsdocs/amazon-ecs-developer-guide, issue 72)."""
    if text.lower().startswith("aws:"):
        raise ValueError("begins with aws:, which AWS keeps for itself; write your name or your team's")
    odd = sorted({sign for sign in text if sign not in "_.:/=+-@" and unicodedata.category(sign)[0] not in "LNZ"})
    if odd:
        raise ValueError(
            f"has {' '.join(map(repr, odd))}, and tags of AWS do not take that; write letters, digits, spaces and "
            "_ . : / = + - @ only"
        )
    return text


@dataclass(frozen=True)
class Buckets:
    """The buckets of the foundation: one of each per account and region."""

    state: str
    data: str
    archive: str


def buckets(account: str, region: str) -> Buckets:
    return Buckets(*(f"bivouac-{kind}-{account}-{region}" for kind in ("state", "data", "archive")))


def builder_role(region: str) -> str:
    """Name of the builders' role and instance profile. IAM names are global; the build network is regional."""
    return f"{BUILD_NETWORK}_{region}"


def builder_guard_role(region: str) -> str:
    """Return the name of the role that terminates builders."""
    return f"{BUILD_NETWORK}_guard_{region}"


def closer_role(region: str) -> str:
    """Return the name of the closer's role."""
    return f"{CLOSER}_{region}"


def closer_code(digest: str) -> str:
    """Return the key of the closer's code in the state bucket. No campaign's role can write there."""
    return f"closer/{digest}.zip"


def boundary(region: str) -> str:
    """Return the name of the permissions boundary of all campaigns' roles in this region."""
    return f"{PROJECT}_boundary_{region}"


def foundation_boundary(region: str) -> str:
    """Return the name of the boundary of the foundation's own roles, under which no operator may make one."""
    return f"{PROJECT}_foundation_boundary_{region}"


def freeze_policy(region: str) -> str:
    """Return the name of the policy that a spent budget attaches to the spec's `freeze_roles`. It has underscores, as
    everything that all campaigns share: no campaign's name can contain them."""
    return f"{PROJECT}_freeze_{region}"


DATASETS_PREFIX = "datasets/"
"""Folder of all prepared data sets in the data bucket."""


def data_prefix(manifest_digest: str) -> str:
    """Return the prefix of a prepared data set in the data bucket; it ends in a slash."""
    return f"{DATASETS_PREFIX}{manifest_digest}/"


COPIES_PREFIX = "copies/"
"""Folder of all campaigns' interval copies in the archive bucket: apart from the archives, so that the right to remove
a copy covers no archive."""


def copies_prefix(campaign: str, identity: str = "") -> str:
    """Return a campaign's folder of interval copies in the archive bucket, without a slash at its end."""
    return "/".join(filter(None, (COPIES_PREFIX.rstrip("/"), campaign, identity)))


def shared_tier(account: str, region: str, campaign: str, identity: str) -> str:
    """Return the URL of the shared tier of a campaign without a shared file system: where another keeps its interval
    copies."""
    return f"s3://{buckets(account, region).archive}/{copies_prefix(campaign, identity)}"


def data_source(account: str, region: str, manifest_digest: str) -> str:
    """Return the URL of a prepared data set, without a slash at its end."""
    return f"s3://{buckets(account, region).data}/{data_prefix(manifest_digest)}".rstrip("/")


def campaign_stack(campaign: str) -> str:
    return f"campaign-{campaign}"


_POOLS = (GPU_POOL, SYSTEM_POOL, DATA_POOL)
_MACHINES = (*_POOLS, BUILDER)
BUILDER_TYPE = "m7i.large"
"""Instance type of a builder."""
BUILDERS = (BUILDER, "trainer-image")
"""The schedules that end builders: of the node image's, and of the trainer image's."""
_NOTICES = ("deadline-notice", "launch-notice", "silence-notice")
_PARTS: Mapping[str, tuple[str, ...]] = {
    "cluster": ("",),
    "node group": _POOLS,
    "launch template": _POOLS,
    "placement group": (GPU_POOL,),
    "instance": _MACHINES,
    "volume": _MACHINES,
    "network interface": _MACHINES,
    "role": ("cluster", "node", "cni", "steward", "trainer", "archive", "data", "guard", "budget"),
    "schedule": ("closer", "data", "deadline", "launch", "silence", *BUILDERS, *_NOTICES),
    "topic": ("alarms",),
    "budget": ("",),
    "file system": ("shared",),
    "VPC": ("",),
    "VPC peering": ("driver",),
    "VPC endpoint": ("s3", *ENDPOINT_SERVICES, SECRETS_SERVICE),
    "subnet": ("public", "control-plane-a", "control-plane-b", GPU_POOL),
    "route table": ("public", "private"),
    "internet gateway": ("",),
    "elastic address": ("",),
    "NAT gateway": ("",),
    "security group": ("nodes", "lustre", "endpoints"),
}
"""Kind of resource -> suffixes of its names, which stand after the campaign's prefix and a dash.

No suffix ends with a dash and another suffix of its kind. So two campaigns never share a name of one kind, and a name
identifies its campaign, whatever the campaigns are called.
"""


@dataclass(frozen=True, init=False)
class Names:
    """Names of one campaign, made from its spec or from its name alone (`bivouac down NAME` knows only the name)."""

    campaign: str

    def __init__(self, campaign: Any) -> None:
        object.__setattr__(self, "campaign", campaign if isinstance(campaign, str) else campaign.campaign)

    @property
    def prefix(self) -> str:
        """Prefix of every AWS name of this campaign. Another campaign's names may have it too: compare whole names."""
        return f"bivouac-{self.campaign}"

    def of(self, kind: str, part: str = "") -> str:
        """Return the name of one resource; raise `ValueError` if `_PARTS` lacks it, so that every name is listed."""
        if part not in _PARTS.get(kind, ()):
            raise ValueError(f"no {kind} of a campaign is called {part!r}")
        return f"{self.prefix}-{part}" if part else self.prefix

    def given(self, kind: str) -> frozenset[str]:
        """Return all names that the campaign gives to a kind of resource; empty for kinds that it does not name."""
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
    def builder(self) -> str:
        """Name tag of this campaign's builders."""
        return self.of("instance", BUILDER)

    @property
    def builder_schedules(self) -> tuple[str, str]:
        """Schedules that end the builder of the node image, and that of the trainer image."""
        node_image, trainer_image = BUILDERS
        return self.of("schedule", node_image), self.of("schedule", trainer_image)

    @property
    def alarms(self) -> str:
        """SNS topic of the campaign's alarms."""
        return self.of("topic", "alarms")

    def role(self, part: str) -> str:
        return self.of("role", part)

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(self.of("role", part) for part in _PARTS["role"])

    @property
    def log_group(self) -> str:
        """Name that EKS prescribes. The stack creates the group before the cluster; else EKS recreates it while the
        cluster is deleted."""
        return f"/aws/eks/{self.cluster}/cluster"

    @property
    def schedule(self) -> str:
        return self.of("schedule", "deadline")

    @property
    def launch_schedules(self) -> tuple[str, str]:
        """Schedules that end the GPU nodes, and tell people, if training does not run in time."""
        return self.of("schedule", "launch"), self.of("schedule", "launch-notice")

    @property
    def silence_schedules(self) -> tuple[str, str]:
        """Schedules that end the GPU nodes, and tell people, if the steward falls silent."""
        return self.of("schedule", "silence"), self.of("schedule", "silence-notice")

    @property
    def closer_schedule(self) -> str:
        """Schedule that starts the closer again and again, as long as the campaign stands."""
        return self.of("schedule", "closer")

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
        """Prefix of this campaign in the state and archive buckets; it ends in a slash."""
        return f"campaigns/{self.campaign}/"
