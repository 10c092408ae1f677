"""AWS's eventual consistency: new resources are unknown at first, then untagged; IAM's changes take longer still."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from moto.iam.exceptions import NotFoundException

from infra.rehearsal.aws.answers import RequestRefused
from infra.rehearsal.aws.iam import access, policies
from infra.rehearsal.aws.strict.document import Document, JsonDocument, XmlDocument
from infra.rehearsal.aws.strict.settings import Delay
from infra.rehearsal.aws.world import World

now = time.monotonic
KNOWN = Delay(0.05, 0.4, share=0.6)
"""Time until EC2 knows an ID."""
TAGGED = Delay(0.05, 0.4, share=0.6)
"""Additional time until EC2 shows its tags, and filters by them."""
INDEXED = Delay(0.2, 1.0)
"""Time until the tagging API lists a new resource."""
COUNTS = Delay(0.3, 1.0)
"""Time until a new role, instance profile, trust or permission takes effect."""

MADE = {
    "AllocateAddress": "allocationId",
    "CreateCapacityReservation": "capacityReservationId",
    "CreateImage": "imageId",
    "CreateInternetGateway": "internetGatewayId",
    "CreateLaunchTemplate": "launchTemplateId",
    "CreateNatGateway": "natGatewayId",
    "CreateNetworkInterface": "networkInterfaceId",
    "CreateRouteTable": "routeTableId",
    "CreateSecurityGroup": "groupId",
    "CreateSnapshot": "snapshotId",
    "CreateSubnet": "subnetId",
    "CreateVolume": "volumeId",
    "CreateVpc": "vpcId",
    "CreateVpcEndpoint": "vpcEndpointId",
    "CreateVpcPeeringConnection": "vpcPeeringConnectionId",
    "RunInstances": "instanceId",
}
"""EC2 operation -> element of its answer with the new ID."""
SHOWN = {
    "DescribeAddresses": ("Addresses", "allocationId"),
    "DescribeCapacityReservations": ("CapacityReservations", "capacityReservationId"),
    "DescribeImages": ("Images", "imageId"),
    "DescribeInstanceStatus": ("InstanceStatuses", "instanceId"),
    "DescribeInstances": ("Reservations", "instanceId"),
    "DescribeInternetGateways": ("InternetGateways", "internetGatewayId"),
    "DescribeLaunchTemplates": ("LaunchTemplates", "launchTemplateId"),
    "DescribeNatGateways": ("NatGateways", "natGatewayId"),
    "DescribeNetworkInterfaces": ("NetworkInterfaces", "networkInterfaceId"),
    "DescribeRouteTables": ("RouteTables", "routeTableId"),
    "DescribeSecurityGroups": ("SecurityGroups", "groupId"),
    "DescribeSnapshots": ("Snapshots", "snapshotId"),
    "DescribeSubnets": ("Subnets", "subnetId"),
    "DescribeTags": ("Tags", "resourceId"),
    "DescribeVolumes": ("Volumes", "volumeId"),
    "DescribeVpcEndpoints": ("VpcEndpoints", "vpcEndpointId"),
    "DescribeVpcPeeringConnections": ("VpcPeeringConnections", "vpcPeeringConnectionId"),
    "DescribeVpcs": ("Vpcs", "vpcId"),
}
"""EC2 operation -> list in its answer, and the element with an item's ID."""
NOT_FOUND = {
    "ami": "InvalidAMIID.NotFound",
    "cr": "InvalidCapacityReservationId.NotFound",
    "eipalloc": "InvalidAllocationID.NotFound",
    "eni": "InvalidNetworkInterfaceID.NotFound",
    "i": "InvalidInstanceID.NotFound",
    "igw": "InvalidInternetGatewayID.NotFound",
    "lt": "InvalidLaunchTemplateId.NotFound",
    "nat": "NatGatewayNotFound",
    "pcx": "InvalidVpcPeeringConnectionID.NotFound",
    "rtb": "InvalidRouteTableID.NotFound",
    "sg": "InvalidGroup.NotFound",
    "snap": "InvalidSnapshot.NotFound",
    "subnet": "InvalidSubnetID.NotFound",
    "vol": "InvalidVolume.NotFound",
    "vpc": "InvalidVpcID.NotFound",
    "vpce": "InvalidVpcEndpointId.NotFound",
}
"""ID prefix -> EC2's error for an unknown ID."""
ELSEWHERE = {"eks": "InvalidParameterException", "fsx": "InvalidNetworkSettings", "autoscaling": "ValidationError"}
"""Service -> its error for an ID that EC2 does not know."""
_ARN = re.compile(rb"arn:aws:[a-z0-9-]+:[a-z0-9-]*:[0-9]{12}:[A-Za-z0-9_./:+=,@-]+")
_GRANTS = re.compile(r"(Put|Delete|Attach|Detach)(Role|User)Policy")


@dataclass
class Young:
    """Times (monotonic) at which a new resource and its tags become known."""

    known: float
    tagged: float


class Lag:
    """Resources and changes not known yet. Each delay is drawn by kind and number, independent of other kinds."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._young: dict[str, Young] = {}
        self._indexed: dict[str, float] = {}
        self._past: dict[tuple[str, str], tuple[float, list[Any]]] = {}
        self._profiles: dict[str, float] = {}
        self._drawn: Counter[str] = Counter()
        world.settling = self.settling

    def _draw(self, delay: Delay, kind: str) -> float:
        self._drawn[kind] += 1
        return delay.draw(self.world.strictness, kind, self._drawn[kind])

    # Answers of EC2 and the tagging API.

    def makes(self, service: str, operation: str) -> bool:
        return operation in MADE if service == "ec2" else service != "s3" and operation.startswith("Create")

    def reads(self, service: str, operation: str) -> bool:
        return (service, operation) == ("tagging", "GetResources") or (service == "ec2" and operation in SHOWN)

    def hides(self) -> bool:
        """Return True if anything is not known yet."""
        at = now()
        with self.world.lock:
            self._young = {key: one for key, one in self._young.items() if one.tagged > at}
            self._indexed = {arn: until for arn, until in self._indexed.items() if until > at}
            return bool(self._young or self._indexed)

    def note(self, service: str, operation: str, params: dict[str, Any], body: bytes) -> None:
        """Record a new resource."""
        at = now()
        with self.world.lock:
            for arn in set(_ARN.findall(body)):
                self._indexed[arn.decode()] = at + self._draw(INDEXED, "indexed")
            if service != "ec2":
                return
            for made in _texts(ElementTree.fromstring(body), MADE[operation]):
                known = at + self._draw(KNOWN, f"known {operation}")
                tagged = known + self._draw(TAGGED, f"tagged {operation}")
                self._young[made] = Young(known, tagged)
                self._indexed[made] = tagged + self._draw(INDEXED, "indexed")

    def hide(self, service: str, operation: str, params: dict[str, Any], document: Document) -> None:
        """Remove from an answer what is not known yet."""
        if service == "tagging" and isinstance(document, JsonDocument):
            listed = document.items("ResourceTagMappingList")
            kept = [one for one in listed if not self._unindexed(one["ResourceARN"])]
            document.fill("ResourceTagMappingList", kept)
        elif isinstance(document, XmlDocument):
            member, element = SHOWN[operation]
            by_tag = operation == "DescribeTags" or any(
                one["Name"].startswith("tag") for one in params.get("Filters") or params.get("Filter") or ()
            )
            kept = [one for one in document.items(member) if self._shown(one, element, by_tag)]
            if len(kept) < len(document.items(member)):
                document.fill(member, kept)

    def _unindexed(self, arn: str) -> bool:
        until = self._indexed.get(arn) or self._indexed.get(arn.rpartition("/")[2], 0.0)
        return until > now()

    def _shown(self, item: ElementTree.Element, element: str, by_tag: bool) -> bool:
        one = next((self._young[found] for found in _texts(item, element)[:1] if found in self._young), None)
        at = now()
        if one is None or one.tagged <= at:
            return True
        for part in item.iter():
            if part.tag.endswith("tagSet"):
                part[:] = []
        return one.known <= at and not by_tag

    # Refusals by services.

    def refuse_unknown(self, service: str, operation: str, params: dict[str, Any]) -> None:
        at = now()
        if service == "ec2" or service in ELSEWHERE:
            for found in _named(params):
                one = self._young.get(found)
                if one is not None and one.known > at:
                    code = ELSEWHERE.get(service) or NOT_FOUND[found.partition("-")[0]]
                    raise RequestRefused(code, f"The ID '{found}' does not exist")
        if (service, operation) == ("ec2", "RunInstances"):
            profile = params.get("IamInstanceProfile") or {}
            name = profile.get("Name") or str(profile.get("Arn", "")).rpartition("/")[2]
            if self._profiles.get(name, 0.0) > at:
                message = f"Value ({name}) for parameter iamInstanceProfile.name is invalid. "
                raise RequestRefused("InvalidParameterValue", message + "Invalid IAM Instance Profile name")
        if (service, operation) == ("eks", "CreateAccessEntry") and self.settling(params["principalArn"], "trust"):
            message = f"The specified principalArn is invalid: invalid principal: {params['principalArn']}"
            raise RequestRefused("InvalidParameterException", message)

    # Delayed effect of IAM's changes.

    def settling(self, arn: str, what: str) -> list[Any] | None:
        """Return the documents still in force, or None for those that IAM shows."""
        until, documents = self._past.get((arn, what), (0.0, []))
        return documents if until > now() else None

    def before(self, service: str, operation: str, params: dict[str, Any]) -> None:
        """Keep what the coming change will replace. The caller holds the world's lock."""
        if service != "iam":
            return
        if operation in ("CreateInstanceProfile", "AddRoleToInstanceProfile"):
            until = now() + self._draw(COUNTS, "profile")
            self._profiles[params["InstanceProfileName"]] = until
        elif operation == "CreateRole":
            arn = f"arn:aws:iam::{self.world.account}:role{params.get('Path') or '/'}{params['RoleName']}"
            if self._role(params["RoleName"]) is None:
                self._keep(arn, "trust", [{"Statement": []}])
        elif operation == "UpdateAssumeRolePolicy":
            if (role := self._role(params["RoleName"])) is not None:
                self._keep(role.arn, "trust", [access.trust_policy(self.world, role.arn)])
        elif changed := _GRANTS.fullmatch(operation):
            owner = self._role(params["RoleName"]) if changed[2] == "Role" else self._user(params["UserName"])
            if owner is not None:
                self._keep(owner.arn, "granted", self._granted(owner))
        elif operation in ("CreatePolicyVersion", "SetDefaultPolicyVersion"):
            for owner in self._attached(params["PolicyArn"]):
                self._keep(owner.arn, "granted", self._granted(owner))

    def _keep(self, arn: str, what: str, documents: list[Any]) -> None:
        still = self.settling(arn, what)
        until = now() + self._draw(COUNTS, what)
        self._past[arn, what] = until, documents if still is None else still

    def _granted(self, owner: Any) -> list[Any]:
        own = [policies.parse(access.unquote_once(document)) for document in list(owner.policies.values())]
        return own + [access.managed_document(policy) for policy in list(owner.managed_policies.values())]

    def _role(self, name: str) -> Any:
        return self._or_none(self.world.backend("iam").get_role, name)

    def _user(self, name: str) -> Any:
        return self._or_none(self.world.backend("iam").get_user, name)

    @staticmethod
    def _or_none(find: Callable[[str], Any], name: str) -> Any:
        try:
            return find(name)
        except NotFoundException:
            return None

    def _attached(self, policy: str) -> Iterator[Any]:
        iam = self.world.backend("iam")
        for owner in [*list(iam.roles.values()), *list(iam.users.values())]:
            if policy in owner.managed_policies:
                yield owner


def _texts(element: ElementTree.Element, name: str) -> list[str]:
    """Return the texts of elements of this name, the element's own children first."""
    own = [one for one in element if one.tag.rpartition("}")[2] == name]
    found = own or [one for one in element.iter() if one.tag.rpartition("}")[2] == name]
    return list(dict.fromkeys(one.text for one in found if one.text))


def _named(value: Any) -> Iterator[str]:
    """Yield every word of a request except its filters, which match unknown IDs without an error."""
    if isinstance(value, dict):
        for key, part in value.items():
            if key not in ("Filter", "Filters", "TagSpecifications", "Tags"):
                yield from _named(part)
    elif isinstance(value, list):
        for part in value:
            yield from _named(part)
    elif isinstance(value, str):
        yield value
