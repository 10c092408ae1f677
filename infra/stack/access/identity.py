"""The campaign's IAM roles, with the least rights."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws
from pulumi import ResourceOptions

from infra.spec.campaign import Spec
from infra.spec.names import Names
from infra.stack.access import policies
from infra.stack.access.ceiling import boundary_arn
from infra.stack.access.closing import asking
from infra.stack.access.policies import Statement, allow, keys_through_s3, place

CLUSTER_POLICIES = ("AmazonEKSClusterPolicy",)
NODE_POLICIES = ("AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly")
CNI_POLICIES = ("AmazonEKS_CNI_Policy",)
"""Not on the node's role: any pod without its own role could then change network interfaces."""


def limited_role(
    label: str,
    name: str,
    trust: str,
    boundary: pulumi.Input[str],
    statements: list[policies.Statement],
    opts: ResourceOptions,
    *,
    role_opts: ResourceOptions | None = None,
    max_session_s: int | None = None,
) -> tuple[aws.iam.Role, aws.iam.RolePolicy]:
    """Make a role under a permissions boundary, and its own policy. `role_opts`: the role's, if they differ."""
    role = aws.iam.Role(
        label,
        name=name,
        assume_role_policy=trust,
        permissions_boundary=boundary,
        max_session_duration=max_session_s,
        opts=role_opts or opts,
    )
    document = policies.document(statements)
    return role, aws.iam.RolePolicy(label, name=label, role=role.name, policy=document, opts=opts)


class Roles(pulumi.ComponentResource):
    """Roles `cluster`, `node`, `cni`, `steward`, `trainer`, `archive`, and `data` where the cluster prepares it.

    Cluster and nodes depend on `cluster_ready` and `node_ready`: EKS and the CNI need the policies until the last
    interface is gone.
    """

    def __init__(
        self,
        spec: Spec,
        key_arn: str | None = None,
        closer_code: str | None = None,
        opts: ResourceOptions | None = None,
    ) -> None:
        """`key_arn`: the customer's key for the cluster's secrets. `closer_code`: with which the steward may start the
        closer."""
        super().__init__("bivouac:infra:Identity", "identity", None, opts)
        names, place = Names(spec), policies.place(spec)
        self._boundary = boundary_arn(place)
        self.cluster = self._role("cluster", names.role("cluster"), policies.trust("eks.amazonaws.com", place))
        self.cluster_ready = self._attach("cluster", self.cluster, CLUSTER_POLICIES)
        if key_arn is not None:
            self._inline("cluster", self.cluster, policies.cluster_secrets(key_arn))
        self.node = self._role("node", names.role("node"), policies.trust(policies.EC2, place))
        self.cni = self._role("cni", names.role("cni"), policies.pod_trust(place))
        self.node_ready = [
            *self._attach("node", self.node, NODE_POLICIES),
            *self._attach("cni", self.cni, CNI_POLICIES),
        ]
        self.steward = self._role("steward", names.role("steward"), policies.pod_trust(place))
        closer_rights = [] if closer_code is None else [asking(place, spec.campaign, closer_code)]
        self._inline("steward", self.steward, [*policies.steward(spec), *closer_rights])
        # Without secrets the trainer's role has no policies; without a role its pods would look for the node's.
        self.trainer = self._role("trainer", names.role("trainer"), policies.pod_trust(place))
        if rights := [*policies.trainer(spec), *reading_mounts(spec)]:
            self._inline("trainer", self.trainer, rights)
        self.archive = self._role("archive", names.role("archive"), policies.pod_trust(place))
        self._inline("archive", self.archive, policies.archive(spec))
        self.data: aws.iam.Role | None = None
        if spec.prepares_data:
            self.data = self._role("data", names.of("role", "data"), policies.pod_trust(place))
            self._inline("data", self.data, policies.preparation(spec))
        self.register_outputs({"node_role_arn": self.node.arn, "steward_role_arn": self.steward.arn})

    def _role(self, label: str, name: str, trust: str) -> aws.iam.Role:
        return aws.iam.Role(
            label,
            name=name,
            assume_role_policy=trust,
            permissions_boundary=self._boundary,
            opts=ResourceOptions(parent=self),
        )

    def _attach(self, label: str, role: aws.iam.Role, names: tuple[str, ...]) -> list[pulumi.Resource]:
        return [
            aws.iam.RolePolicyAttachment(
                f"{label}-{name}",
                role=role.name,
                policy_arn=f"arn:aws:iam::aws:policy/{name}",
                opts=ResourceOptions(parent=self),
            )
            for name in names
        ]

    def _inline(self, label: str, role: aws.iam.Role, statements: list[policies.Statement]) -> None:
        aws.iam.RolePolicy(
            label, name=label, role=role.name, policy=policies.document(statements), opts=ResourceOptions(parent=self)
        )


def reading_mounts(spec: Spec) -> list[Statement]:
    """Allow to list and read the prefixes of the spec, which Mountpoint mounts, and nothing beside them.

    The driver takes the pod's own identity (`authenticationSource: pod`), so the add-on has no role, and no other pod
    can read a prefix. https://github.com/awslabs/mountpoint-s3-csi-driver/blob/main/docs/CONFIGURATION.md
    """
    statements, buckets = list[Statement](), set[str]()
    for prefix in sorted(spec.runtime.by_mountpoint.values()):
        bucket, _, folder = prefix.removeprefix("s3://").rstrip("/").partition("/")
        root = f"{folder}/" if folder else ""
        by_prefix = {"StringLike": {"s3:prefix": [f"{root}*"]}} if root else None
        statements.append(allow(["s3:ListBucket"], [f"arn:aws:s3:::{bucket}"], by_prefix))
        statements.append(allow(["s3:GetObject"], [f"arn:aws:s3:::{bucket}/{root}*"]))
        buckets.add(bucket)
    return [*statements, *(keys_through_s3(place(spec), sorted(buckets)) if buckets else [])]
