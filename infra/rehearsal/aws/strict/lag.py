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
from infra.rehearsal.aws.iam.ec2_resources import RESOURCES
from infra.rehearsal.aws.strict.document import AnswerDocument, JsonDocument, XmlDocument
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

_KINDS = [row for row in RESOURCES.values() if "made_by" in row]
MADE = {row["made_by"]: row["element"] for row in _KINDS}
"""EC2 operation -> element of its answer with the new ID."""
SHOWN = {
    "DescribeInstanceStatus": ("InstanceStatuses", "instanceId"),
    "DescribeTags": ("Tags", "resourceId"),
    **{row["shown_by"]: (row["member"], row["element"]) for row in _KINDS},
}
"""EC2 operation -> list in its answer, and the element with an item's ID."""
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

    def creates(self, service: str, operation: str) -> bool:
        return operation in MADE if service == "ec2" else service != "s3" and operation.startswith("Create")

    def reads(self, service: str, operation: str) -> bool:
        return (service, operation) == ("tagging", "GetResources") or (service == "ec2" and operation in SHOWN)

    def hides(self) -> bool:
        """Return True if anything is not known yet."""
        moment = now()
        with self.world.lock:
            self._young = {key: young for key, young in self._young.items() if young.tagged > moment}
            self._indexed = {arn: deadline for arn, deadline in self._indexed.items() if deadline > moment}
            return bool(self._young or self._indexed)

    def note(self, service: str, operation: str, params: dict[str, Any], body: bytes) -> None:
        """Record a new resource."""
        moment = now()
        with self.world.lock:
            for arn in set(_ARN.findall(body)):
                self._indexed[arn.decode()] = moment + self._draw(INDEXED, "indexed")
            if service != "ec2":
                return
            for name in _texts(ElementTree.fromstring(body), MADE[operation]):
                known_at = moment + self._draw(KNOWN, f"known {operation}")
                tagged_at = known_at + self._draw(TAGGED, f"tagged {operation}")
                self._young[name] = Young(known_at, tagged_at)
                self._indexed[name] = tagged_at + self._draw(INDEXED, "indexed")

    def hide(self, service: str, operation: str, params: dict[str, Any], document: AnswerDocument) -> None:
        """Remove from an answer what is not known yet."""
        if service == "tagging" and isinstance(document, JsonDocument):
            resources = document.items("ResourceTagMappingList")
            visible = [resource for resource in resources if not self._is_unindexed(resource["ResourceARN"])]
            document.fill("ResourceTagMappingList", visible)
        elif isinstance(document, XmlDocument):
            member, element = SHOWN[operation]
            by_tag = operation == "DescribeTags" or any(
                resource["Name"].startswith("tag") for resource in params.get("Filters") or params.get("Filter") or ()
            )
            visible = [resource for resource in document.items(member) if self._is_visible(resource, element, by_tag)]
            if len(visible) < len(document.items(member)):
                document.fill(member, visible)

    def _is_unindexed(self, arn: str) -> bool:
        deadline = self._indexed.get(arn) or self._indexed.get(arn.rpartition("/")[2], 0.0)
        return deadline > now()

    def _is_visible(self, item: ElementTree.Element, element: str, by_tag: bool) -> bool:
        young = next((self._young[name] for name in _texts(item, element)[:1] if name in self._young), None)
        moment = now()
        if young is None or young.tagged <= moment:
            return True
        for part in item.iter():
            if part.tag.endswith("tagSet"):
                part[:] = []
        return young.known <= moment and not by_tag

    # Refusals by services.

    def refuse_unknown(self, service: str, operation: str, params: dict[str, Any]) -> None:
        moment = now()
        if service == "ec2" or service in ELSEWHERE:
            for resource_id in _names_in(params):
                young = self._young.get(resource_id)
                if young is not None and young.known > moment:
                    code = ELSEWHERE.get(service) or RESOURCES[resource_id.partition("-")[0]]["unknown"]
                    raise RequestRefused(code, f"The ID '{resource_id}' does not exist")
        if (service, operation) == ("ec2", "RunInstances"):
            profile = params.get("IamInstanceProfile") or {}
            name = profile.get("Name") or str(profile.get("Arn", "")).rpartition("/")[2]
            if self._profiles.get(name, 0.0) > moment:
                message = f"Value ({name}) for parameter iamInstanceProfile.name is invalid. "
                raise RequestRefused("InvalidParameterValue", message + "Invalid IAM Instance Profile name")
        if (service, operation) == ("eks", "CreateAccessEntry") and self.settling(params["principalArn"], "trust"):
            message = f"The specified principalArn is invalid: invalid principal: {params['principalArn']}"
            raise RequestRefused("InvalidParameterException", message)

    # Delayed effect of IAM's changes.

    def settling(self, arn: str, kind: str) -> list[Any] | None:
        """Return the documents still in force, or None for those that IAM shows."""
        deadline, documents = self._past.get((arn, kind), (0.0, []))
        return documents if deadline > now() else None

    def note_before(self, service: str, operation: str, params: dict[str, Any]) -> None:
        """Keep what the coming change will replace. The caller holds the world's lock."""
        if service != "iam":
            return
        if operation in ("CreateInstanceProfile", "AddRoleToInstanceProfile"):
            deadline = now() + self._draw(COUNTS, "profile")
            self._profiles[params["InstanceProfileName"]] = deadline
        elif operation == "CreateRole":
            arn = f"arn:aws:iam::{self.world.account}:role{params.get('Path') or '/'}{params['RoleName']}"
            if self._role(params["RoleName"]) is None:
                self._keep(arn, "trust", [{"Statement": []}])
        elif operation == "UpdateAssumeRolePolicy":
            if (role := self._role(params["RoleName"])) is not None:
                self._keep(role.arn, "trust", [access.trust_policy(self.world, role.arn)])
        elif match := _GRANTS.fullmatch(operation):
            owner = self._role(params["RoleName"]) if match[2] == "Role" else self._user(params["UserName"])
            if owner is not None:
                self._keep(owner.arn, "granted", self._policy_documents(owner))
        elif operation in ("CreatePolicyVersion", "SetDefaultPolicyVersion"):
            for owner in self._attachments(params["PolicyArn"]):
                self._keep(owner.arn, "granted", self._policy_documents(owner))

    def _keep(self, arn: str, kind: str, documents: list[Any]) -> None:
        still = self.settling(arn, kind)
        deadline = now() + self._draw(COUNTS, kind)
        self._past[arn, kind] = deadline, documents if still is None else still

    def _policy_documents(self, owner: Any) -> list[Any]:
        documents = [policies.parse(access.unquote_once(document)) for document in list(owner.policies.values())]
        return documents + [access.managed_document(policy) for policy in list(owner.managed_policies.values())]

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

    def _attachments(self, policy: str) -> Iterator[Any]:
        iam = self.world.backend("iam")
        for owner in [*list(iam.roles.values()), *list(iam.users.values())]:
            if policy in owner.managed_policies:
                yield owner


def _texts(element: ElementTree.Element, name: str) -> list[str]:
    """Return the texts of elements of this name, the element's own children first."""
    children = [child for child in element if child.tag.rpartition("}")[2] == name]
    elements = children or [child for child in element.iter() if child.tag.rpartition("}")[2] == name]
    return list(dict.fromkeys(child.text for child in elements if child.text))


def _names_in(value: Any) -> Iterator[str]:
    """Yield every word of a request except its filters, which match unknown IDs without an error."""
    if isinstance(value, dict):
        for key, part in value.items():
            if key not in ("Filter", "Filters", "TagSpecifications", "Tags"):
                yield from _names_in(part)
    elif isinstance(value, list):
        for part in value:
            yield from _names_in(part)
    elif isinstance(value, str):
        yield value
