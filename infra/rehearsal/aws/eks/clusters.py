"""EKS clusters: CREATING while the real control plane starts, ACTIVE, DELETING, gone."""

from __future__ import annotations

import base64
import itertools
import logging
import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from moto.core.responses import BaseResponse

from infra.rehearsal.aws.eks import settings
from infra.rehearsal.aws.eks.entries import admin_entry, eks_arn
from infra.rehearsal.aws.iam.access import caller, role_trusts
from infra.rehearsal.aws.operations import AwsError, Parameters, add_backend
from infra.rehearsal.aws.strict.settings import Delay
from infra.rehearsal.aws.world import World

log = logging.getLogger(__name__)

VERSIONS = ("1.36", "1.35", "1.34", "1.33")
"""Newest first. A version without binaries fails in the control plane, and the cluster is FAILED."""
NO_CONTROL_PLANE = ("use1-az3", "usw1-az2", "cac1-az3")
"""Zone IDs from EKS's user guide."""
UPDATABLE = ("upgradePolicy", "logging", "zonalShiftConfig", "deletionProtection")
UPDATED = Delay(0.2, 0.6)
"""Duration of a cluster update; on AWS minutes."""
UNKNOWN_CLUSTER = "No cluster found for name: {}."


class EksResponse(BaseResponse):
    """The modules of this package add every operation."""

    def __init__(self) -> None:
        super().__init__(service_name="eks")
        self.automated_parameter_parsing = True


@dataclass
class Cluster:
    """`document` is DescribeCluster's answer; the cluster's other resources are kept by name or ID."""

    name: str
    document: dict[str, Any]
    nodegroups: dict[str, Any] = field(default_factory=dict)
    addons: dict[str, dict[str, Any]] = field(default_factory=dict)
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Access entries by principal ARN; `policies` in each are its associations."""
    associations: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Pod identity associations by ID."""
    updates: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def active(self) -> bool:
        return self.document["status"] == "ACTIVE"

    @property
    def security_group(self) -> str:
        return str(self.document["resourcesVpcConfig"]["clusterSecurityGroupId"])

    @property
    def uses_entries(self) -> bool:
        return "API" in self.document["accessConfig"]["authenticationMode"]

    def record(self, kind: str, params: list[dict[str, str]] | None = None, **fields: Any) -> dict[str, Any]:
        """Record an Update that was applied at once; `begin` makes one that takes time."""
        update: dict[str, Any] = {
            "id": str(uuid.uuid4()),
            "status": "Successful",
            "type": kind,
            "params": params or [],
            "createdAt": datetime.now(UTC),
            "errors": [],
        } | fields
        self.updates[update["id"]] = update
        return update


def begin(
    world: World, cluster: Cluster, apply: Callable[[], None], kind: str, changes: list[dict[str, str]]
) -> dict[str, Any]:
    """Begin a change of a cluster's configuration: meanwhile it is UPDATING and refuses another."""
    document, delay = cluster.document, UPDATED.draw(world.strictness, "cluster update", len(cluster.updates))
    update = cluster.record(kind, changes)
    if not delay:
        apply()
        return update
    update["status"], document["status"] = "InProgress", "UPDATING"

    def end() -> None:
        with world.lock:
            apply()
            update["status"] = "Successful"
            if document["status"] == "UPDATING":
                document["status"] = "ACTIVE"

    world.schedule_once(delay, end)
    return update


def find(world: World, name: str) -> Cluster:
    if name not in world.clusters:
        raise AwsError("ResourceNotFoundException", UNKNOWN_CLUSTER.format(name))
    cluster: Cluster = world.clusters[name]
    return cluster


def find_active(world: World, name: str) -> Cluster:
    cluster = find(world, name)
    if not cluster.active:
        raise AwsError("InvalidRequestException", f"Cluster '{name}' is not in ACTIVE status")
    return cluster


class Clusters:
    def __init__(self, world: World) -> None:
        self.world = world
        self._numbers = itertools.count(1)

    def create_cluster(self, params: Parameters) -> dict[str, Any]:
        name = params["name"]
        self._refuse(name, params)
        version = params.get("version") or VERSIONS[0]
        cluster = Cluster(name, self._document(name, version, params))
        self.world.clusters[name] = cluster
        creator = caller.get()
        if params.get("accessConfig", {}).get("bootstrapClusterCreatorAdminPermissions", True) and creator:
            cluster.entries[creator.identity_arn] = admin_entry(self.world, name, creator.identity_arn)
        self._log_group(cluster)
        self.world.spawn(lambda: self._start(cluster))
        return {"cluster": cluster.document}

    def _refuse(self, name: str, params: Parameters) -> None:
        world = self.world
        if name in world.clusters:
            raise AwsError("ResourceInUseException", f"Cluster already exists with name: {name}")
        if not re.fullmatch(r"[0-9A-Za-z][A-Za-z0-9_-]{0,99}", name):
            raise AwsError("InvalidParameterException", f"The name {name!r} is not a cluster name")
        if params.get("version", VERSIONS[0]) not in VERSIONS:
            raise AwsError("InvalidParameterException", f"unsupported Kubernetes version {params['version']}")
        if not role_trusts(world, params["roleArn"], "eks.amazonaws.com"):
            raise AwsError(
                "InvalidParameterException",
                f"Role with arn: {params['roleArn']}, could not be assumed because it does not exist "
                "or the trusted entity is not correct",
            )
        subnets = find_subnets(world, params["resourcesVpcConfig"].get("subnetIds", []))
        if len({subnet.availability_zone for subnet in subnets}) < 2:
            raise AwsError("InvalidParameterException", "Subnets specified must be in at least two different AZs")
        self._refuse_zones({subnet.availability_zone for subnet in subnets})

    def _refuse_zones(self, zone_ids: set[str]) -> None:
        zones = self.world.backend("ec2").describe_availability_zones()
        able = sorted(zone.name for zone in zones if zone.zone_id not in NO_CONTROL_PLANE)
        if odd_zones := sorted(zone_ids.difference(able)):
            raise AwsError(
                "UnsupportedAvailabilityZoneException",
                f"Cannot create cluster '{self.world.account}' because EKS does not support creating control plane "
                f"instances in {', '.join(odd_zones)}, the targeted availability zone. Retry cluster creation using "
                f"control plane subnets that span at least two of these availability zones: {', '.join(able)}.",
            )

    def _document(self, name: str, version: str, params: Parameters) -> dict[str, Any]:
        world, vpc = self.world, dict(params["resourcesVpcConfig"])
        subnets = find_subnets(world, vpc["subnetIds"])
        issuer = f"https://oidc.eks.{world.region}.amazonaws.com/id/{uuid.uuid4().hex.upper()}"
        network = params.get("kubernetesNetworkConfig", {})
        access = params.get("accessConfig", {})
        return {
            "name": name,
            "arn": eks_arn(world, "cluster", name),
            "createdAt": datetime.now(UTC),
            "version": version,
            "platformVersion": "eks.1",
            "status": "CREATING",
            "roleArn": params["roleArn"],
            "resourcesVpcConfig": {
                "subnetIds": vpc["subnetIds"],
                "securityGroupIds": vpc.get("securityGroupIds", []),
                "clusterSecurityGroupId": self._security_group(name, subnets[0].vpc_id),
                "vpcId": subnets[0].vpc_id,
                "endpointPublicAccess": vpc.get("endpointPublicAccess", True),
                "endpointPrivateAccess": vpc.get("endpointPrivateAccess", False),
                "publicAccessCidrs": vpc.get("publicAccessCidrs", ["0.0.0.0/0"]),
            },
            "kubernetesNetworkConfig": {
                "serviceIpv4Cidr": network.get("serviceIpv4Cidr", "172.20.0.0/16"),
                "ipFamily": network.get("ipFamily", "ipv4"),
                "elasticLoadBalancing": network.get("elasticLoadBalancing", {"enabled": False}),
            },
            "accessConfig": {"authenticationMode": access.get("authenticationMode", "CONFIG_MAP")},
            "upgradePolicy": params.get("upgradePolicy", {"supportType": "EXTENDED"}),
            "logging": settings.logging({}, params.get("logging") or {}),
            "identity": {"oidc": {"issuer": issuer}},
            "certificateAuthority": {},
            "deletionProtection": params.get("deletionProtection", False),
            "health": {"issues": []},
            "tags": dict(params.get("tags", {})),
        } | {key: params[key] for key in settings.ONLY_IF_SET if params.get(key)}

    def _security_group(self, name: str, vpc_id: str) -> str:
        ec2 = self.world.backend("ec2")
        tags = {
            "Name": f"eks-cluster-sg-{name}",
            f"kubernetes.io/cluster/{name}": "owned",
            "aws:eks:cluster-name": name,
        }
        description = (
            "EKS created security group applied to ENI that is attached to EKS control plane and managed nodes."
        )
        group = ec2.create_security_group(f"eks-cluster-sg-{name}-{next(self._numbers)}", description, vpc_id, tags)
        itself = [{"GroupId": group.id}]
        ec2.authorize_security_group_ingress(group.id, "-1", None, None, [], source_groups=itself, vpc_id=vpc_id)
        return str(group.id)

    def _log_group(self, cluster: Cluster) -> None:
        """Create the control plane's log group if it is missing: at the start, and again while it stops."""
        active = any(setup.get("enabled") for setup in cluster.document["logging"].get("clusterLogging", []))
        name, logs = f"/aws/eks/{cluster.name}/cluster", self.world.backend("logs")
        if active and name not in logs.groups:
            logs.create_log_group(name, {})

    def _start(self, cluster: Cluster) -> None:
        world, document = self.world, cluster.document
        settings = dict(
            name=cluster.name,
            version=document["version"],
            address=world.control_plane_address,
            work=world.work / "control-plane" / cluster.name,
            token_webhook_url=f"{world.endpoint_url}/_site/token-review/{cluster.name}",
            tools=world.tools,
            service_cidr=document["kubernetesNetworkConfig"]["serviceIpv4Cidr"],
        )
        time.sleep(world.takes("cluster made", 0.0))
        try:
            if trouble := world.troubles.find("cluster", cluster.name, "create"):
                raise AwsError("InternalFailure", trouble.message)
            plane = world.control_plane_factory(settings)
        except Exception as error:
            log.exception("the control plane of %s did not start", cluster.name)
            with world.lock:
                document["status"] = "FAILED"
                document["health"]["issues"] = [{"code": "Other", "message": str(error), "resourceIds": []}]
            return
        with world.lock:
            world.control_planes[cluster.name] = plane
            document["endpoint"] = plane.endpoint
            document["certificateAuthority"] = {"data": base64.b64encode(plane.ca_pem.encode()).decode()}
            if document["status"] == "CREATING":
                document["status"] = "ACTIVE"

    def describe_cluster(self, params: Parameters) -> dict[str, Any]:
        return {"cluster": find(self.world, params["name"]).document}

    def list_clusters(self, params: Parameters) -> dict[str, Any]:
        return {"clusters": sorted(self.world.clusters)}

    def delete_cluster(self, params: Parameters) -> dict[str, Any]:
        cluster = find(self.world, params["name"])
        document = cluster.document
        if cluster.nodegroups:
            raise AwsError("ResourceInUseException", "Cluster has nodegroups attached")
        if document["deletionProtection"]:
            raise AwsError("InvalidRequestException", "Cluster has deletion protection enabled")
        if document["status"] in ("CREATING", "UPDATING"):
            raise AwsError("ResourceInUseException", f"Cluster {cluster.name} is {document['status']}")
        if document["status"] != "DELETING":
            document["status"] = "DELETING"
            self.world.spawn(lambda: self._stop(cluster))
        return {"cluster": document}

    def _stop(self, cluster: Cluster) -> None:
        world = self.world
        time.sleep(world.takes("cluster deleted", 0.0))
        while world.troubles.find("cluster", cluster.name, "delete"):
            time.sleep(0.2)
        plane = world.control_planes.get(cluster.name)
        try:
            if plane is not None:
                plane.stop()
        finally:
            with world.lock:
                world.control_planes.pop(cluster.name, None)
                self._log_group(cluster)
                self._delete_security_group(cluster)
                world.clusters.pop(cluster.name, None)

    def _delete_security_group(self, cluster: Cluster) -> None:
        """Delete the security group as EKS does: one that an interface still uses stays."""
        ec2 = self.world.backend("ec2")
        attached_ids = {group.id for eni in ec2.enis.values() for group in eni.group_set}
        group = ec2.get_security_group_from_id(cluster.security_group)
        if group is not None and group.id not in attached_ids:
            ec2.delete_security_group(group_id=group.id)

    def update_cluster_config(self, params: Parameters) -> dict[str, Any]:
        cluster = find(self.world, params["name"])
        document, changes, inner = cluster.document, dict[str, Any](), dict(params.get("resourcesVpcConfig", {}))
        if document["status"] == "UPDATING":
            message = f"Cannot update cluster {cluster.name}: another update of it is in progress"
            raise AwsError("ResourceInUseException", message)
        find_active(self.world, params["name"])
        mode, names = params.get("accessConfig", {}).get("authenticationMode"), list[str]()
        if mode:
            if document["accessConfig"]["authenticationMode"] == "API" != mode:
                message = f"Unsupported authentication mode update from API to {mode}"
                raise AwsError("InvalidParameterException", message)
            names.append("authenticationMode")
        changes = {key: params[key] for key in UPDATABLE if key in params}
        names += [*changes, *inner]

        def apply() -> None:
            if mode:
                document["accessConfig"]["authenticationMode"] = mode
            if "logging" in changes:
                changes["logging"] = settings.logging(document["logging"], changes["logging"])
            document.update(changes)
            document["resourcesVpcConfig"].update(inner)

        parameters = settings.update_parameters(names, params)
        return {"update": begin(self.world, cluster, apply, settings.kind(names), parameters)}

    def update_cluster_version(self, params: Parameters) -> dict[str, Any]:
        find_active(self.world, params["name"])
        raise AwsError("InvalidParameterException", "a rehearsal cannot change the version of a running control plane")


def find_subnets(world: World, subnet_ids: list[str]) -> list[Any]:
    subnets_by_id = {subnet.id: subnet for zone in world.backend("ec2").subnets.values() for subnet in zone.values()}
    missing = [subnet_id for subnet_id in subnet_ids if subnet_id not in subnets_by_id]
    if missing or not subnet_ids:
        raise AwsError("InvalidParameterException", f"The subnet ID(s) {missing} do not exist")
    return [subnets_by_id[subnet_id] for subnet_id in subnet_ids]


def install(world: World) -> None:
    world.services["eks"] = EksResponse
    clusters = Clusters(world)
    add_backend(world, EksResponse, clusters)
