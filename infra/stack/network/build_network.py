"""The build network: images are baked in the foundation, so that no campaign resource bills meanwhile.

It costs nothing while no builder runs. A builder has a public address to fetch packages without a NAT gateway, and no
ingress: it polls Systems Manager. Where all campaigns name a place for their builders (`image.builders`), only the
roles are made: no VPC, and no internet gateway, which an organization may forbid.
"""

from __future__ import annotations

import pulumi
import pulumi_aws as aws
from pulumi import Input, ResourceOptions

from infra.spec.names import BUILD_NETWORK, builder_guard_role, builder_role
from infra.stack.access import building, policies
from infra.stack.access.identity import limited_role
from infra.stack.access.policies import AccountPlace

CIDR = "10.254.0.0/24"
BUILDER_POLICIES = ("AmazonSSMManagedInstanceCore",)


class BuildNetwork(pulumi.ComponentResource):
    """`subnet`, `group` without ingress, the builder's `profile`, and `guard`, the role that ends builders."""

    subnet: aws.ec2.Subnet | None = None
    group: aws.ec2.SecurityGroup | None = None

    def __init__(
        self,
        place: AccountPlace,
        boundary: Input[str],
        zone: str | None = None,
        opts: ResourceOptions | None = None,
        *,
        make_network: bool = True,
    ) -> None:
        """`boundary`: ARN of the permissions boundary. `zone`: one that sells the builders' type; None: any.
        `make_network`: False makes the roles only."""
        super().__init__("bivouac:infra:BuildNetwork", "build-network", None, opts)
        self._child = ResourceOptions(parent=self)
        # Older foundations have names without the region, which stay: builders may run under them.
        self._named = ResourceOptions(parent=self, ignore_changes=["name"])
        if make_network:
            self._network(zone)
        self._place, self._boundary = place, boundary
        role = self._role("builder", builder_role(place.region), policies.EC2, building.builder(place))
        for name in BUILDER_POLICIES:
            aws.iam.RolePolicyAttachment(
                f"builder-{name}", role=role.name, policy_arn=f"arn:aws:iam::aws:policy/{name}", opts=self._child
            )
        self.profile = aws.iam.InstanceProfile(
            "builder", name=builder_role(place.region), role=role.name, opts=self._named
        )
        self.guard = self._role(
            "builder-guard", builder_guard_role(place.region), "scheduler.amazonaws.com", building.builder_guard(place)
        )
        self.register_outputs({"profile": self.profile.name})

    def _network(self, zone: str | None) -> None:
        self.vpc = aws.ec2.Vpc(
            "build-network",
            cidr_block=CIDR,
            enable_dns_hostnames=True,
            enable_dns_support=True,
            tags={"Name": BUILD_NETWORK},
            opts=self._child,
        )
        gateway = aws.ec2.InternetGateway(
            "build-network", vpc_id=self.vpc.id, tags={"Name": BUILD_NETWORK}, opts=self._child
        )
        self.subnet = aws.ec2.Subnet(
            "build-network",
            vpc_id=self.vpc.id,
            cidr_block=CIDR,
            availability_zone=zone,
            map_public_ip_on_launch=True,
            tags={"Name": BUILD_NETWORK},
            # Another zone needs another subnet with the same addresses.
            opts=ResourceOptions(parent=self, delete_before_replace=True),
        )
        table = aws.ec2.RouteTable("build-network", vpc_id=self.vpc.id, tags={"Name": BUILD_NETWORK}, opts=self._child)
        aws.ec2.Route(
            "build-network-internet",
            route_table_id=table.id,
            destination_cidr_block="0.0.0.0/0",
            gateway_id=gateway.id,
            opts=self._child,
        )
        aws.ec2.RouteTableAssociation(
            "build-network", subnet_id=self.subnet.id, route_table_id=table.id, opts=self._child
        )
        self.group = aws.ec2.SecurityGroup(
            "builder",
            name=BUILD_NETWORK,
            description="Image builder, reached through Systems Manager only",
            vpc_id=self.vpc.id,
            revoke_rules_on_delete=True,
            tags={"Name": BUILD_NETWORK},
            opts=self._child,
        )
        aws.vpc.SecurityGroupEgressRule(
            "builder-internet",
            security_group_id=self.group.id,
            cidr_ipv4="0.0.0.0/0",
            ip_protocol="-1",
            opts=self._child,
        )

    def _role(self, label: str, name: str, service: str, statements: list[policies.Statement]) -> aws.iam.Role:
        trust = policies.trust(service, self._place)
        role, _ = limited_role(label, name, trust, self._boundary, statements, self._child, role_opts=self._named)
        return role
