"""The campaign's network, own or existing: control plane in two zones, GPU nodes in one subnet, one egress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws
from pulumi import Input, ResourceOptions

from infra.spec.campaign import DriverVpc, Egress, Spec
from infra.spec.names import Names
from infra.stack.network.addresses import subnet_plan


@dataclass(frozen=True)
class NetworkPlace:
    """The campaign's network: its own, or one that existed before and stays."""

    vpc_id: Input[str]
    control_plane: tuple[Input[str], Input[str]]
    """Subnets in two zones; the first also holds the system nodes."""
    gpu: Input[str]
    """The subnet in the campaign's zone."""
    made: tuple[pulumi.Resource, ...] = ()
    """Resources that nodes depend on: Pulumi makes them first and deletes them last."""


def place_of(
    spec: Spec, zones: tuple[str, str], depends_on: Sequence[pulumi.Resource] = (), opts: ResourceOptions | None = None
) -> NetworkPlace:
    """Return the existing network that the spec names, else make one with a control plane in `zones`.

    `depends_on`: what Pulumi makes before, and deletes after, all that bills."""
    network = spec.network
    if network.vpc_id is None or network.subnet_ids is None:
        return OwnNetwork(spec, zones, depends_on, opts).place
    return NetworkPlace(network.vpc_id, network.subnet_ids.control_plane, network.subnet_ids.gpu, tuple(depends_on))


class OwnNetwork(pulumi.ComponentResource):
    """`control_plane_subnets` (two zones; the first is `system_subnet`) and `gpu_subnet` (the campaign's zone); all
    private. `place` is what the rest of the campaign knows of them."""

    def __init__(
        self,
        spec: Spec,
        zones: tuple[str, str],
        depends_on: Sequence[pulumi.Resource] = (),
        opts: ResourceOptions | None = None,
    ) -> None:
        """`zones`: of the control plane; neither is the nodes' zone if EKS does not take that.
        `depends_on`: what Pulumi makes before the network and deletes after it."""
        super().__init__("bivouac:infra:Network", "network", None, opts)
        self._names, self._spec = Names(spec), spec
        self._plan = subnet_plan(spec.network.cidr)
        self.vpc = aws.ec2.Vpc(
            "vpc",
            cidr_block=spec.network.cidr,
            enable_dns_hostnames=True,
            enable_dns_support=True,
            tags={"Name": self._names.of("VPC")},
            opts=self._child(depends_on=list(depends_on)),
        )
        self.control_plane_subnets = [
            self._subnet("control-plane-a", self._plan.control_plane[0], zones[0]),
            self._subnet("control-plane-b", self._plan.control_plane[1], zones[1]),
        ]
        self.system_subnet = self.control_plane_subnets[0]
        self.gpu_subnet = self._subnet("gpu", self._plan.gpu, spec.zone)
        self._routes = self._route_table("private", [*self.control_plane_subnets, self.gpu_subnet])
        self._gateway_endpoint()
        if spec.network.egress is Egress.NAT:
            self._nat()
        else:
            self._interface_endpoints()
        if spec.network.driver_vpc is not None:
            self._peer(spec.network.driver_vpc)
        first_zone, second = self.control_plane_subnets
        self.place = NetworkPlace(self.vpc.id, (first_zone.id, second.id), self.gpu_subnet.id, (self,))
        self.register_outputs({"vpc_id": self.vpc.id, "gpu_subnet_id": self.gpu_subnet.id})

    def _child(self, **changes: object) -> ResourceOptions:
        return ResourceOptions(parent=self, **changes)  # type: ignore[arg-type]

    def _subnet(self, name: str, cidr: str, zone: str) -> aws.ec2.Subnet:
        return aws.ec2.Subnet(
            name,
            vpc_id=self.vpc.id,
            cidr_block=cidr,
            availability_zone=zone,
            map_public_ip_on_launch=False,
            tags={"Name": self._names.of("subnet", name)},
            opts=self._child(),
        )

    def _route_table(self, name: str, subnets: list[aws.ec2.Subnet]) -> aws.ec2.RouteTable:
        table = aws.ec2.RouteTable(
            name, vpc_id=self.vpc.id, tags={"Name": self._names.of("route table", name)}, opts=self._child()
        )
        for subnet in subnets:
            aws.ec2.RouteTableAssociation(
                f"{name}-{subnet._name}", subnet_id=subnet.id, route_table_id=table.id, opts=self._child()
            )
        return table

    def _nat(self) -> None:
        gateway = aws.ec2.InternetGateway(
            "internet", vpc_id=self.vpc.id, tags={"Name": self._names.of("internet gateway")}, opts=self._child()
        )
        public = self._subnet("public", self._plan.public, self._spec.zone)
        table = self._route_table("public", [public])
        way_out = aws.ec2.Route(
            "public-internet",
            route_table_id=table.id,
            destination_cidr_block="0.0.0.0/0",
            gateway_id=gateway.id,
            opts=self._child(),
        )
        address = aws.ec2.Eip(
            "nat",
            domain="vpc",
            tags={"Name": self._names.of("elastic address")},
            # It bills: it falls before the gateway, and so before the schedule that starts the closer.
            opts=self._child(depends_on=[gateway]),
        )
        nat = aws.ec2.NatGateway(
            "nat",
            allocation_id=address.id,
            subnet_id=public.id,
            tags={"Name": self._names.of("NAT gateway")},
            opts=self._child(depends_on=[way_out]),
        )
        aws.ec2.Route(
            "private-nat",
            route_table_id=self._routes.id,
            destination_cidr_block="0.0.0.0/0",
            nat_gateway_id=nat.id,
            opts=self._child(),
        )

    def _peer(self, driver: DriverVpc) -> None:
        """Peer the driver's network with the cluster's private endpoint; nothing else is reachable."""
        peering = aws.ec2.VpcPeeringConnection(
            "driver",
            vpc_id=self.vpc.id,
            peer_vpc_id=driver.vpc_id,
            auto_accept=True,
            tags={"Name": self._names.of("VPC peering", "driver")},
            opts=self._child(),
        )
        ways: list[tuple[str, Input[str], str]] = [("back", self._routes.id, driver.cidr)]
        ways += [(table, table, self._spec.network.cidr) for table in driver.route_table_ids]
        for label, table, destination in ways:
            aws.ec2.Route(
                f"driver-{label}",
                route_table_id=table,
                destination_cidr_block=destination,
                vpc_peering_connection_id=peering.id,
                opts=self._child(),
            )

    def _gateway_endpoint(self) -> None:
        """Route S3 traffic past the NAT gateway, which bills each GB."""
        aws.ec2.VpcEndpoint(
            "s3",
            vpc_id=self.vpc.id,
            service_name=f"com.amazonaws.{self._spec.region}.s3",
            vpc_endpoint_type="Gateway",
            route_table_ids=[self._routes.id],
            tags={"Name": self._names.of("VPC endpoint", "s3")},
            opts=self._child(),
        )

    def _interface_endpoints(self) -> None:
        name = self._names.of("security group", "endpoints")
        group = aws.ec2.SecurityGroup(
            "endpoints",
            name=name,
            description="AWS interface endpoints",
            vpc_id=self.vpc.id,
            revoke_rules_on_delete=True,
            tags={"Name": name},
            opts=self._child(),
        )
        aws.vpc.SecurityGroupIngressRule(
            "endpoints-https",
            security_group_id=group.id,
            ip_protocol="tcp",
            from_port=443,
            to_port=443,
            cidr_ipv4=self._spec.network.cidr,
            opts=self._child(),
        )
        for service in self._spec.endpoint_services:
            aws.ec2.VpcEndpoint(
                f"endpoint-{service}",
                vpc_id=self.vpc.id,
                service_name=f"com.amazonaws.{self._spec.region}.{service}",
                vpc_endpoint_type="Interface",
                private_dns_enabled=True,
                subnet_ids=[self.system_subnet.id],
                security_group_ids=[group.id],
                tags={"Name": self._names.of("VPC endpoint", service)},
                opts=self._child(),
            )
