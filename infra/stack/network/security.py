"""Security groups without ingress from the internet. EFA is matched only by rules that name a group, never by
addresses."""

from __future__ import annotations

from collections.abc import Sequence

import pulumi
import pulumi_aws as aws
from pulumi import Input, ResourceOptions

from infra.spec.campaign import Spec
from infra.spec.names import Names

LUSTRE_PORTS = ((988, 988), (1018, 1023))
EVERYWHERE = "0.0.0.0/0"


class Security(pulumi.ComponentResource):
    """Groups `nodes` (all nodes, EFA included) and `lustre` (the file system, if there is one)."""

    def __init__(
        self, spec: Spec, vpc_id: Input[str], given_groups: Sequence[str] = (), opts: ResourceOptions | None = None
    ) -> None:
        """`given_groups`: of the servers of existing file systems, which open connections to their clients."""
        super().__init__("bivouac:infra:Security", "security", None, opts)
        self._names, self._vpc_id = Names(spec), vpc_id
        self.nodes = self._group("nodes", "GPU and system nodes, EFA")
        self._rules("nodes-self", self.nodes, self.nodes)
        self._rules("nodes-self", self.nodes, self.nodes, egress=True)
        self._way_out("nodes", self.nodes)

        shared = spec.storage.shared
        self.lustre = None if shared is None else self._file_system(self._group("lustre", "FSx for Lustre"), shared.efa)
        # Clients let servers in, too: "File system access control with Amazon VPC" in FSx for Lustre's guide.
        for group in given_groups:
            for first_port, last_port in LUSTRE_PORTS:
                self._rules(f"nodes-{group}", self.nodes, group, first_port, last_port)
        lustre = {} if self.lustre is None else {"lustre": self.lustre.id}
        self.register_outputs({"nodes": self.nodes.id, **lustre})

    def _file_system(self, lustre: aws.ec2.SecurityGroup, efa: bool) -> aws.ec2.SecurityGroup:
        for first_port, last_port in ((-1, -1),) if efa else LUSTRE_PORTS:
            for peer, label in ((self.nodes, "nodes"), (lustre, "self")):
                self._rules(f"lustre-{label}", lustre, peer, first_port, last_port)
                self._rules(f"lustre-{label}", lustre, peer, first_port, last_port, egress=True)
            self._rules("nodes-lustre", self.nodes, lustre, first_port, last_port)
            if efa:
                self._rules("nodes-lustre", self.nodes, lustre, first_port, last_port, egress=True)
        return lustre

    def let_driver_in(self, cluster_group: Input[str], cidrs: Sequence[str]) -> None:
        """Allow HTTPS from the driver's ranges to the cluster's API."""
        for number, cidr in enumerate(cidrs):
            aws.vpc.SecurityGroupIngressRule(
                f"driver-api-{number}" if number else "driver-api",
                security_group_id=cluster_group,
                cidr_ipv4=cidr,
                ip_protocol="tcp",
                from_port=443,
                to_port=443,
                opts=ResourceOptions(parent=self),
            )

    def _group(self, name: str, description: str) -> aws.ec2.SecurityGroup:
        full = self._names.of("security group", name)
        return aws.ec2.SecurityGroup(
            name,
            name=full,
            description=description,
            vpc_id=self._vpc_id,
            # Groups that name each other cannot be deleted while their rules exist.
            revoke_rules_on_delete=True,
            tags={"Name": full},
            opts=ResourceOptions(parent=self),
        )

    def _rules(
        self,
        label: str,
        group: aws.ec2.SecurityGroup,
        peer: aws.ec2.SecurityGroup | str,
        first_port: int = -1,
        last_port: int = -1,
        *,
        egress: bool = False,
    ) -> None:
        """Make a rule between two groups, the peer by its id if it exists; ports -1 mean every protocol."""
        kind = aws.vpc.SecurityGroupEgressRule if egress else aws.vpc.SecurityGroupIngressRule
        all_ports = first_port == -1
        kind(
            f"{label}-{'out' if egress else 'in'}" + ("" if all_ports else f"-{first_port}"),
            security_group_id=group.id,
            referenced_security_group_id=peer if isinstance(peer, str) else peer.id,
            ip_protocol="-1" if all_ports else "tcp",
            from_port=None if all_ports else first_port,
            to_port=None if all_ports else last_port,
            opts=ResourceOptions(parent=self),
        )

    def _way_out(self, label: str, group: aws.ec2.SecurityGroup) -> None:
        aws.vpc.SecurityGroupEgressRule(
            f"{label}-internet",
            security_group_id=group.id,
            cidr_ipv4=EVERYWHERE,
            ip_protocol="-1",
            opts=ResourceOptions(parent=self),
        )
