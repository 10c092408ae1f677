"""The EKS cluster, its access entries, and the Kubernetes provider that uses it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import pulumi
import pulumi_aws as aws
import pulumi_kubernetes as kubernetes
from pulumi import Input, InvokeOptions, Output, ResourceOptions
from pulumi_aws.eks import AccessPolicyAssociationAccessScopeArgsDict, ClusterVpcConfigArgsDict

from infra.monitoring.prometheus import SPACE
from infra.spec import waits
from infra.spec.campaign import ApiEndpoint, Spec
from infra.spec.monitoring.remote_write import RemoteWrite
from infra.spec.names import (
    ARCHIVE_ACCOUNT,
    CNI_ACCOUNT,
    DATA_ACCOUNT,
    NAMESPACE,
    STEWARD_ACCOUNT,
    TRAINER_ACCOUNT,
    Names,
)
from infra.spec.sections import Role
from infra.stack.access.identity import Roles
from infra.stack.cluster.remote_write import SERVICE_ACCOUNT
from infra.stack.network.addresses import SERVICE_CIDR
from infra.stack.timeouts import timeouts_of

_POLICIES = "arn:aws:eks::aws:cluster-access-policy/"
ADMINISTRATION = f"{_POLICIES}AmazonEKSClusterAdminPolicy"
_HERE: AccessPolicyAssociationAccessScopeArgsDict = {"type": "namespace", "namespaces": [NAMESPACE]}
RIGHTS: dict[Role, tuple[str, AccessPolicyAssociationAccessScopeArgsDict]] = {
    Role.ADMIN: (ADMINISTRATION, {"type": "cluster"}),
    Role.OPERATOR: (f"{_POLICIES}AmazonEKSEditPolicy", _HERE),
    Role.VIEWER: (f"{_POLICIES}AmazonEKSViewPolicy", _HERE),
}
"""https://docs.aws.amazon.com/eks/latest/userguide/access-policy-permissions.html"""
_SESSION = re.compile(r"^arn:(?P<partition>[\w-]+):sts::(?P<account>\d{12}):assumed-role/(?P<role>[^/]+)/.+$")


class EksCluster(pulumi.ComponentResource):
    """`eks`, and `roles` by service account."""

    def __init__(
        self,
        spec: Spec,
        identity: Roles,
        subnet_ids: Sequence[Input[str]],
        operator_arn: str | None,
        depends_on: Sequence[pulumi.Resource],
        key_arn: str | None = None,
        opts: ResourceOptions | None = None,
    ) -> None:
        """`key_arn`: the customer's key for the cluster's secrets and logs."""
        super().__init__("bivouac:infra:Cluster", "cluster", None, opts)
        self._spec, self._names = spec, Names(spec)
        # The log group is part of the stack so that it goes with it: the ending control plane would make its own.
        logs = aws.cloudwatch.LogGroup(
            "logs",
            name=self._names.log_group,
            retention_in_days=30,
            kms_key_id=key_arn,
            opts=ResourceOptions(parent=self),
        )
        self.eks = aws.eks.Cluster(
            "cluster",
            name=self._names.cluster,
            version=spec.kubernetes,
            role_arn=identity.cluster.arn,
            vpc_config=vpc_config(spec, subnet_ids),
            encryption_config={"provider": {"key_arn": key_arn}, "resources": ["secrets"]} if key_arn else None,
            access_config={"authentication_mode": "API", "bootstrap_cluster_creator_admin_permissions": False},
            bootstrap_self_managed_addons=False,
            upgrade_policy={"support_type": "STANDARD"},
            kubernetes_network_config={"service_ipv4_cidr": SERVICE_CIDR, "ip_family": "ipv4"},
            enabled_cluster_log_types=["audit", "authenticator"],
            opts=ResourceOptions(
                parent=self,
                depends_on=[logs, *identity.cluster_ready, *depends_on],
                custom_timeouts=timeouts_of(waits.CLUSTER),
            ),
        )
        self.endpoint = self.eks.endpoint
        self.authority = self.eks.certificate_authority.apply(lambda ca: ca.data or "")
        self.security_group_id = self.eks.vpc_config.apply(lambda config: config.cluster_security_group_id or "")
        self.kubeconfig = kubeconfig(self._names.cluster, spec.region, self.endpoint, self.authority)
        self._doors = self._let_in(operator_arn)
        self.roles = {
            account: aws.eks.PodIdentityAssociation(
                account,
                cluster_name=self.eks.name,
                namespace=namespace,
                service_account=account,
                role_arn=role.arn,
                opts=ResourceOptions(parent=self),
            )
            for namespace, account, role in (
                ("kube-system", CNI_ACCOUNT, identity.cni),
                (NAMESPACE, TRAINER_ACCOUNT, identity.trainer),
                (NAMESPACE, STEWARD_ACCOUNT, identity.steward),
                (NAMESPACE, ARCHIVE_ACCOUNT, identity.archive),
                *([(NAMESPACE, DATA_ACCOUNT, identity.data)] if identity.data is not None else []),
            )
        }
        self._lend_to_prometheus(spec.addons.remote_write)
        self.register_outputs({"name": self.eks.name, "endpoint": self.endpoint})

    def _lend_to_prometheus(self, target: RemoteWrite | None) -> None:
        """Lend Prometheus the role by which it signs what it writes, if the spec names one."""
        if target is not None and target.role is not None:
            aws.eks.PodIdentityAssociation(
                SERVICE_ACCOUNT,
                cluster_name=self.eks.name,
                namespace=SPACE,
                service_account=SERVICE_ACCOUNT,
                role_arn=target.role,
                opts=ResourceOptions(parent=self),
            )

    def kubernetes_after(self, nodes: pulumi.Resource) -> kubernetes.Provider:
        """Return the provider for objects in the cluster, ready after the operator's access entry and the node group
        `nodes`.

        An access entry takes up to a minute to count. The plugin asks the API server once, and an early refusal fails
        every Kubernetes resource of the run; a node group takes longer than that.
        """
        return kubernetes.Provider(
            "kubernetes",
            kubeconfig=self.kubeconfig,
            # A cluster that is gone must not block its teardown.
            delete_unreachable=True,
            # Take over an object whose creation was interrupted: the cluster is the campaign's alone.
            upsert_existing_objects=True,
            opts=ResourceOptions(parent=self, depends_on=[*self._doors, nodes]),
        )

    def _let_in(self, operator_arn: str | None) -> list[pulumi.Resource]:
        """Make the access entries of the spec, and the driver's own unless the spec has it: the cluster's creator has
        no access by itself. A driver that the spec names keeps one entry whoever drives next."""
        grants = self._spec.access
        doors = [self._entry(label_of(grant.principal), grant.principal, grant.role) for grant in grants]
        if operator_arn in {grant.principal for grant in grants}:
            return doors
        caller = aws.get_caller_identity_output(opts=InvokeOptions(parent=self)).arn if operator_arn is None else None
        principal: Input[str] = operator_arn or (caller.apply(principal_arn) if caller is not None else "")
        return [*doors, self._entry("operator", principal, Role.ADMIN)]

    def _entry(self, label: str, principal: Input[str], role: Role) -> pulumi.Resource:
        entry = aws.eks.AccessEntry(
            label,
            cluster_name=self.eks.name,
            principal_arn=principal,
            type="STANDARD",
            opts=ResourceOptions(parent=self),
        )
        policy, scope = RIGHTS[role]
        return aws.eks.AccessPolicyAssociation(
            label,
            cluster_name=self.eks.name,
            principal_arn=principal,
            policy_arn=policy,
            access_scope=scope,
            opts=ResourceOptions(parent=self, depends_on=[entry]),
        )


def label_of(principal: str) -> str:
    """Return the name of a principal's entry in the stack: `access-role-team-ada`."""
    return f"access-{principal.split(':')[5].replace('/', '-')}"


def vpc_config(spec: Spec, subnet_ids: Sequence[Input[str]]) -> ClusterVpcConfigArgsDict:
    """Return the endpoint's access: always from inside, from outside only if the spec allows it."""
    network = spec.network
    public = network.api_endpoint is ApiEndpoint.PUBLIC
    config: ClusterVpcConfigArgsDict = {
        "subnet_ids": list(subnet_ids),
        "endpoint_private_access": True,
        "endpoint_public_access": public,
    }
    if public and network.api_allowed_cidrs:
        config["public_access_cidrs"] = list(network.api_allowed_cidrs)
    return config


def principal_arn(caller: str) -> str:
    """Return the caller's principal for an access entry: itself, or a session's role (without the role's path)."""
    session = _SESSION.match(caller)
    if session is None:
        return caller
    return f"arn:{session['partition']}:iam::{session['account']}:role/{session['role']}"


def kubeconfig(name: str, region: str, endpoint: Input[str], authority: Input[str]) -> Output[str]:
    """Return a kubeconfig as JSON whose credentials come from `bivouac token`, new for every call."""
    user = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "bivouac",
            "args": ["token", "--cluster", name, "--region", region],
            "interactiveMode": "Never",
        }
    }
    return Output.all(endpoint, authority).apply(
        lambda address: json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [
                    {"name": name, "cluster": {"server": address[0], "certificate-authority-data": address[1]}}
                ],
                "users": [{"name": name, "user": user}],
                "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
                "current-context": name,
            },
            sort_keys=True,
        )
    )
