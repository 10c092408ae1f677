"""The consequence of each kind of drift, by resource type and name."""

from __future__ import annotations

from fnmatch import fnmatchcase

from infra.engine.drift import Row

_NO_WAY_OUT = "nodes have no way out: images cannot be pulled and AWS cannot be called"
_NO_DOOR = "the driver cannot reach the cluster's private endpoint: no preflight, launch or look from outside"
_STEWARD = "the steward cannot see, replace or launch anything: training does not survive its next failure"
_TRAINER = "the trainer's pods lose their rights: no checkpoint reaches S3"
_ARCHIVE = "the golden checkpoint cannot be carried out"
_DATA = "the data cannot be prepared in the cluster; a campaign whose data are there does not need it"
_BUILDER = "no image can be baked; a campaign past its bake does not need it"
_NODE = "a node that is replaced cannot join, or pull its image"
_CNI = "a new node gets no addresses for its pods, and stays not ready"

_MEANING: tuple[tuple[str, str, str], ...] = (
    # Storage
    ("LustreFileSystem", "*", "it holds the newest checkpoints that are not yet in S3"),
    ("DataRepositoryAssociation", "*", "the file system shows no training data that it has not read yet"),
    ("Bucket", "archive", "the archives of all campaigns of this account and region are gone with what was in it"),
    ("Bucket", "data", "the prepared data sets are gone; the repair carries this campaign's in again"),
    ("BucketPublicAccessBlock", "*", "the bucket may be opened to the world"),
    ("BucketVersioning", "*", "what is overwritten or deleted in the bucket is gone for good"),
    ("BucketPolicy", "*", "the bucket takes calls that are not encrypted"),
    ("BucketServerSideEncryption*", "*", "objects are not encrypted as the bucket promises"),
    ("BucketLifecycle*", "*", "old versions and broken uploads are never removed, and bill"),
    ("BucketOwnershipControls", "*", "objects of the bucket may belong to others"),
    ("BucketObjectLock*", "*", "new objects in the archive can be deleted before their time"),
    ("Key", "*", "nothing that lies under the key can be read without it: buckets, file system, volumes, secrets"),
    ("Alias", "*", "the next campaign does not find the key by its name"),
    ("Repository", "*", "the baked images are gone: a node that is replaced cannot pull"),
    ("LifecyclePolicy", "*", "old images are never removed, and bill"),
    # Money
    ("Schedule", "data", "nothing stops the nodes that prepare the data at the deadline if all our processes die"),
    ("Schedule", "deadline", "nothing stops the GPU nodes at the deadline if all our processes die"),
    ("Schedule", "*-notice", "nobody is told when a schedule has set the GPU nodes to zero"),
    ("Schedule", "launch", "nothing stops GPU nodes that no driver brings to training, where CodeBuild runs no builds"),
    ("Role*", "guard", "the schedule may not stop the GPU nodes at the deadline if all our processes die"),
    ("Budget", "*", "nobody gets a mail when the budget runs out"),
    ("Topic", "notices", "people hear nothing of any campaign of the region by mail"),
    ("Topic", "*", "alarms reach nobody who subscribed to the topic"),
    ("BudgetAction", "*", "a spent budget keeps nobody from buying more"),
    ("*", "freeze", "a spent budget keeps nobody from buying more"),
    ("Role*", "budget", "a spent budget keeps nobody from buying more"),
    # Who may do what
    ("*", "steward", _STEWARD),
    ("Role*", "trainer", _TRAINER),
    ("PodIdentityAssociation", "trainer", _TRAINER),
    ("ServiceAccount", "trainer", "no new attempt can start: its pods have no account"),
    ("*", "archive", _ARCHIVE),
    ("Role*", "data", _DATA),
    ("PodIdentityAssociation", "data", _DATA),
    ("ServiceAccount", "data", _DATA),
    ("*", "builder*", _BUILDER),
    ("*", "build-network*", _BUILDER),
    ("Role*", "node*", _NODE),
    ("Role*", "cni*", _CNI),
    ("PodIdentityAssociation", "aws-node", _CNI),
    ("Role*", "cluster*", "EKS cannot manage the cluster's network interfaces: new nodes and pods fail"),
    ("Access*", "access-*", "somebody whom the spec names cannot enter the cluster, or with other rights"),
    ("Access*", "operator", "the driver cannot speak to Kubernetes: no preflight, launch or look from outside"),
    # The network
    ("Vpc", "*", "the whole campaign is in this network"),
    ("Subnet", "gpu", "the GPU nodes and the file system are in it"),
    ("Subnet", "*", "the control plane, the system node or the NAT gateway is in it"),
    ("NatGateway", "*", _NO_WAY_OUT),
    ("Eip", "*", _NO_WAY_OUT),
    ("InternetGateway", "*", _NO_WAY_OUT),
    ("Route", "driver-*", _NO_DOOR),
    ("VpcPeering*", "*", _NO_DOOR),
    ("SecurityGroup*Rule", "driver-*", _NO_DOOR),
    ("Route*", "*", _NO_WAY_OUT),
    ("VpcEndpoint", "s3", "traffic to S3 goes through the NAT gateway, which bills each GB"),
    ("VpcEndpoint", "*", "nodes cannot reach this AWS service"),
    ("SecurityGroup", "*", "resources with it cannot be replaced: new nodes or a new builder are refused"),
    ("SecurityGroup*Rule", "nodes-self*", "nodes cannot talk to each other: collectives over EFA stop"),
    ("SecurityGroup*Rule", "*lustre*", "the nodes are cut off from the shared file system: checkpoints wait"),
    ("SecurityGroup*Rule", "*internet*", _NO_WAY_OUT),
    # The cluster
    ("Cluster", "*", "it carries steward, training and all their objects"),
    ("NodeGroup", "gpu*", "the GPU nodes are launched and replaced by it"),
    ("NodeGroup", "data*", "the data are not prepared: their nodes are launched by it"),
    ("NodeGroup", "system*", "CoreDNS, the JobSet controller and the steward run on it"),
    ("LaunchTemplate", "*", "new nodes cannot be launched, or come up with other settings"),
    ("PlacementGroup", "*", "new nodes are not placed close to each other: collectives get slower"),
    ("LogGroup", "*", "the control plane's audit log is not kept"),
    ("Addon", "coredns", "names inside the cluster do not resolve: a new attempt finds no peer"),
    ("Addon", "vpc-cni", "new pods get no address"),
    ("Addon", "kube-proxy", "services inside the cluster are not reached from new nodes"),
    ("Addon", "eks-pod-identity-agent", "pods get no credentials: no checkpoint reaches S3"),
    ("Addon", "aws-fsx-csi-driver", "new pods cannot mount the shared file system"),
    ("Release", "jobset", "no attempt can be launched or ended: its controller is missing"),
    ("Addon", "eks-node-monitoring-agent", "broken nodes are found later, by their own silence"),
    ("Release", "dcgm-exporter", "GPU metrics are missing from then on"),
    ("Release", "kube-prometheus-stack", "metrics are missing from then on, and the stored ones are lost"),
    ("Release", "kueue", "jobs with a queue's name are not admitted; the gang has none"),
    ("Release", "*device-plugin", "nodes offer none of these devices: new pods are not placed"),
    ("Namespace", "campaign", "steward and training have ended with it; after the repair `bivouac run` continues"),
    ("Namespace", "jobset*", "no attempt can be launched or ended: its controller is missing"),
    ("PriorityClass", "*", "no new attempt is admitted: its pods name this class"),
    ("PersistentVolume*", "*", "new pods cannot mount the shared file system"),
)  # fmt: skip
"""(type, name, consequence); the first match wins."""


def consequence(row: Row) -> str:
    """Return the consequence of this drift; empty where only the difference is known."""
    bare = row.kind.rpartition(":")[2]
    for kind, name, meaning in _MEANING:
        if fnmatchcase(bare, kind) and fnmatchcase(row.name, name):
            only_tags = row.changes and all(change.path.startswith(("tags", "description")) for change in row.changes)
            return "" if only_tags else meaning
    return ""
