"""Obstacles to a VPC's teardown that moto lacks: deletions refused for dependencies, deletions that take time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.models.elastic_network_interfaces import NetworkInterface
from moto.ec2.responses import EC2Response

from infra.rehearsal.aws.operations import AwsError, Parameters, ServicePart, add_operations, wrap
from infra.rehearsal.aws.world import World

NAT_CREATION_S = 1.0
NAT_DELETION_S = 1.0
NAT_FORGOTTEN_S = 60.0
"""AWS shows a deleted NAT gateway for about an hour, the emulator for a minute."""
ENDPOINT_DELETION_S = 1.0
Moto = Callable[..., ActionResult]


def violation(message: str) -> AwsError:
    return AwsError("DependencyViolation", message)


class Dependencies(ServicePart):
    """Checks before moto's own deletions."""

    @property
    def ec2(self) -> Any:
        return self.world.backend("ec2")

    def install(self) -> None:
        checks = {
            "delete_security_group": self._security_group,
            "delete_subnet": self._subnet,
            "delete_vpc": self._vpc,
            "detach_internet_gateway": self._internet_gateway,
            "release_address": self._address,
            "delete_network_interface": self._interface,
        }
        for name, check in checks.items():
            wrap(EC2Response, name, _check_before(self.world, name, check))

    def _security_group(self, params: Callable[..., Any]) -> None:
        group = self.ec2.get_security_group_from_id(params("GroupId"))
        if group is None:
            return
        if group.name == "default":
            raise AwsError("CannotDelete", "the specified group: default name: default cannot be deleted by a user")
        users = [eni.id for eni in list(self.ec2.enis.values()) if group.id in {group.id for group in eni.group_set}]
        if users or any(True for _ in self._references(group.id)):
            raise violation(f"resource {group.id} has a dependent object")

    def _references(self, group_id: str) -> Iterator[str]:
        """Yield other groups whose rules name this one."""
        for groups in list(self.ec2.groups.values()):
            for group in list(groups.values()):
                rules = [*group.ingress_rules, *group.egress_rules]
                if group.id != group_id and any((r.source_group or {}).get("GroupId") == group_id for r in rules):
                    yield group.id

    def _subnet(self, params: Callable[..., Any]) -> None:
        subnet_id = params("SubnetId")
        if any(eni.subnet.id == subnet_id for eni in list(self.ec2.enis.values())):
            raise violation(f"The subnet '{subnet_id}' has dependencies and cannot be deleted.")

    def _vpc(self, params: Callable[..., Any]) -> None:
        vpc_id, ec2 = params("VpcId"), self.ec2
        dependents = [igw.id for igw in ec2.internet_gateways.values() if igw.vpc and igw.vpc.id == vpc_id]
        dependents += [group.id for group in ec2.groups[vpc_id].values() if group.name != "default"]
        dependents += [resource.id for resource in ec2.vpc_end_points.values() if resource.vpc_id == vpc_id]
        dependents += [eni.id for eni in ec2.enis.values() if eni.subnet.vpc_id == vpc_id]
        if dependents:
            raise violation(f"The vpc '{vpc_id}' has dependencies and cannot be deleted.")

    def _internet_gateway(self, params: Callable[..., Any]) -> None:
        vpc_id = params("VpcId")
        addresses = [eni.id for eni in self.ec2.enis.values() if eni.public_ip and eni.subnet.vpc_id == vpc_id]
        if addresses:
            raise violation(
                f"Network {vpc_id} has some mapped public address(es). "
                "Please unmap those public address(es) before detaching the gateway."
            )

    def _address(self, params: Callable[..., Any]) -> None:
        for address in self.ec2.addresses:
            if address.allocation_id == params("AllocationId") and address.association_id:
                raise AwsError("InvalidIPAddress.InUse", f"Address {address.public_ip} is in use.")

    def _interface(self, params: Callable[..., Any]) -> None:
        eni = self.ec2.enis.get(params("NetworkInterfaceId"))
        if eni is not None and eni.status == "in-use":
            raise AwsError("InvalidParameterValue", f"Network interface '{eni.id}' is currently in use.")


def _check_before(world: World, name: str, check: Callable[[Callable[..., Any]], None]) -> Callable[..., ActionResult]:
    def checked(moto: Moto, response: Any) -> ActionResult:
        with world.lock:
            check(response._get_param)
            return moto(response)

    checked.__qualname__ = f"checked.{name}"
    return checked


class Lifecycles(ServicePart):
    """NAT gateways and VPC endpoints that change state in steps and keep their interfaces meanwhile."""

    @property
    def ec2(self) -> Any:
        return self.world.backend("ec2")

    def install(self) -> None:
        wrap(EC2Response, "create_nat_gateway", self._create_nat)
        add_operations(self.world, EC2Response, {"delete_nat_gateway": self._delete_nat})
        wrap(EC2Response, "create_vpc_endpoint", self._create_endpoint)
        add_operations(self.world, EC2Response, {"delete_vpc_endpoints": self._delete_endpoints})

    def _create_nat(self, moto: Moto, response: Any) -> ActionResult:
        with self.world.lock:
            answer = moto(response)
            gateway = answer.result["NatGateway"]  # type: ignore[index]
            gateway.state = "pending"
            _claim(gateway._eni, f"Interface for NAT Gateway {gateway.id}", "nat_gateway")
            self.world.schedule_once(
                self.world.takes("NAT gateway made", NAT_CREATION_S),
                lambda: self._nat_state(gateway, "pending", "available"),
            )
            return answer

    def _nat_state(self, gateway: Any, previous_state: str, next_state: str) -> None:
        with self.world.lock:
            if gateway.state == previous_state:
                gateway.state = next_state

    def _delete_nat(self, params: Parameters) -> dict[str, Any]:
        gateway = self.ec2.nat_gateways.get(params["NatGatewayId"])
        if gateway is None:
            raise AwsError("NatGatewayNotFound", f"The Nat Gateway {params['NatGatewayId']} was not found")
        if gateway.state in ("pending", "available"):
            gateway.state = "deleting"
            self.world.schedule_once(
                self.world.takes("NAT gateway deleted", NAT_DELETION_S), lambda: self._nat_deleted(gateway)
            )
        return {"NatGatewayId": gateway.id}

    def _nat_deleted(self, gateway: Any) -> None:
        with self.world.lock:
            for address in self.ec2.addresses:
                if address.eni is gateway._eni:
                    self.ec2.disassociate_address(association_id=address.association_id)
            self.ec2.enis.pop(gateway._eni.id, None)
            gateway.state = "deleted"
        self.world.schedule_once(NAT_FORGOTTEN_S, lambda: self._nat_forgotten(gateway))

    def _nat_forgotten(self, gateway: Any) -> None:
        with self.world.lock:
            self.ec2.nat_gateways.pop(gateway.id, None)
            self.ec2.tags.pop(gateway.id, None)

    def _create_endpoint(self, moto: Moto, response: Any) -> ActionResult:
        with self.world.lock:
            answer = moto(response)
            endpoint = answer.result["VpcEndpoint"]  # type: ignore[index]
            groups = [self.ec2.get_security_group_from_id(group_id) for group_id in endpoint.security_group_ids or []]
            for eni_id in endpoint.network_interface_ids or []:
                eni = self.ec2.enis[eni_id]
                eni._group_set = [group for group in groups if group] or eni._group_set
                _claim(eni, f"VPC Endpoint Interface {endpoint.id}", "vpc_endpoint")
            return answer

    def _delete_endpoints(self, params: Parameters) -> dict[str, Any]:
        failures = []
        for endpoint_id in params.get("VpcEndpointIds") or []:
            endpoint = self.ec2.vpc_end_points.get(endpoint_id)
            if endpoint is None:
                error = {"Code": "InvalidVpcEndpoint.NotFound", "Message": f"'{endpoint_id}' does not exist"}
                failures.append({"ResourceId": endpoint_id, "Error": error})
            elif endpoint.state != "deleting":
                endpoint.state = "deleting"
                gone_after = self.world.takes("endpoint deleted", ENDPOINT_DELETION_S)
                self.world.schedule_once(gone_after, functools.partial(self._endpoint_deleted, endpoint))
        return {"Unsuccessful": failures}

    def _endpoint_deleted(self, endpoint: Any) -> None:
        with self.world.lock:
            for table_id in endpoint.route_table_ids or []:
                table = self.ec2.route_tables.get(table_id)
                for route in table.routes if table else []:
                    if getattr(route.gateway, "id", None) == endpoint.id:
                        table._routes.pop(route.id)
            for eni_id in endpoint.network_interface_ids or []:
                self.ec2.enis.pop(eni_id, None)
            self.ec2.vpc_end_points.pop(endpoint.id, None)
            self.ec2.tags.pop(endpoint.id, None)


def _claim(eni: NetworkInterface, description: str, kind: str) -> None:
    """Mark an interface as made by an AWS service."""
    eni.description, eni.status, eni.requester_managed, eni.interface_type = description, "in-use", True, kind


def _of_type(moto: Moto, response: Any) -> ActionResult:
    """Keep InterfaceType (efa, efa-only), which moto drops."""
    answer = moto(response)
    kind = response._get_param("InterfaceType")
    if kind:
        answer.result["NetworkInterface"].interface_type = kind  # type: ignore[index]
    return answer


def _of_owner(moto: Moto, response: Any) -> ActionResult:
    """Apply OwnerIds, which moto ignores: it would show the snapshots of every public AMI as the account's own."""
    answer = moto(response)
    owners = {response.current_account if owner == "self" else owner for owner in response._get_param("OwnerIds", [])}
    if owners:
        document: Any = answer.result
        document["Snapshots"] = [snapshot for snapshot in document["Snapshots"] if snapshot.owner_id in owners]
    return answer


def install(world: World) -> None:
    Dependencies(world).install()
    Lifecycles(world).install()
    wrap(EC2Response, "create_network_interface", _of_type)
    wrap(EC2Response, "describe_snapshots", _of_owner)
