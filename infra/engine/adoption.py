"""Adoption of creations that a killed engine left pending.

The engine was killed between AWS's answer and its write of the state, which then holds a pending creation without an
id. Dropping it would leave a second VPC or a taken name, so the resource is looked up by name or tags and adopted under
its id. Creations that may be repeated need no adoption; small rules inside an adopted resource are removed and made
again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import httpx2
from botocore.exceptions import ClientError
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Secret

from infra.aws.account import Account, says_missing
from infra.cluster.kubernetes import OF_WORLD, from_outside
from infra.engine.failures import RETRIED, Cause, cause_of
from infra.engine.state_copy import bare
from infra.errors import BivouacError, PermanentError
from infra.kinds import kind_of_type
from infra.kinds.kind import Inputs


class Life(StrEnum):
    COMING = "coming"
    THERE = "there"
    FAILED = "failed"
    """Also gone, or of a kind without a status."""


_COMING = frozenset({"CREATING", "UPDATING", "pending", "PENDING"})
_THERE = frozenset({"ACTIVE", "AVAILABLE", "available"})


def life(account: Account, resource: Mapping[str, Any]) -> Life:
    """Return the life of a resource of Pulumi's state, by its type and id."""
    ask = kind_of_type(str(resource["type"])).status
    if ask is None or not resource.get("id"):
        return Life.FAILED
    try:
        status = ask(account, str(resource["id"]))
    except ClientError as error:
        if says_missing(error):
            return Life.FAILED
        raise
    if status in _COMING:
        return Life.COMING
    return Life.THERE if status in _THERE else Life.FAILED


RELEASE = "kubernetes:helm.sh/v3:Release"
KUBERNETES = "kubernetes:"


@dataclass(frozen=True)
class Pending:
    """A creation that was under way when its engine ended."""

    urn: str
    type: str
    inputs: Inputs

    @property
    def title(self) -> str:
        """`Vpc network`."""
        return f"{self.type.rpartition(':')[2]} {self.urn.rpartition('::')[2]}"


Failed = Callable[[Pending, Exception], None]
"""Called for a creation of which nobody can say whether it was carried out: prints, or raises."""


def refuse(pending: Pending, error: Exception) -> None:
    """Raise: a second resource would be worse than stopping."""
    if passes(error):
        raise error
    raise PermanentError(
        f"nobody can say whether AWS made {pending.title} before its engine was ended",
        seen=f"{type(error).__name__}: {error}"[:400],
        cure="allow what is denied; else `bivouac down` tears down without it, and then removes what carries the "
        "campaign's tag",
    ) from error


def passes(error: Exception) -> bool:
    """Return whether the request may succeed later or with other credentials, or the error is not ours to judge."""
    if isinstance(error, BivouacError):
        return True
    if not isinstance(error, OF_WORLD):
        return False
    if isinstance(error, httpx2.HTTPError):
        return not isinstance(error, ApiError)
    return cause_of(str(error)) in RETRIED | {Cause.CREDENTIALS}


def pending_creates(deployment: Mapping[str, Any]) -> list[Pending]:
    creations = []
    for operation in deployment.get("pending_operations") or ():
        resource = operation["resource"]
        if operation["type"] == "creating":
            creations.append(Pending(resource["urn"], resource["type"], bare(resource.get("inputs") or {})))
    return creations


def adoptable(account: Account, cluster: str, deployment: Mapping[str, Any], report: Failed = refuse) -> dict[str, str]:
    """Return urn -> id of every pending creation that AWS carried out; ids that the state knows belong to others."""
    known_ids = {(row["type"], row.get("id")) for row in deployment.get("resources", ())}
    ids_by_urn: dict[str, str] = {}
    for pending in pending_creates(deployment):
        try:
            ids = _ids(account, cluster, pending)
        except Exception as error:  # no failure of a finder may stop a teardown
            report(pending, error)
            continue
        fresh = [id for id in ids if (pending.type, id) not in known_ids and id not in ids_by_urn.values()]
        if fresh:
            ids_by_urn[pending.urn] = fresh[0]
    return ids_by_urn


def _ids(account: Account, cluster: str, pending: Pending) -> list[str]:
    if pending.type == RELEASE:
        return _releases(account, cluster, pending.inputs)
    find = kind_of_type(pending.type).find
    return [] if find is None else find(account, pending.inputs)


def _releases(account: Account, cluster: str, inputs: Inputs) -> list[str]:
    """Return the release's id if Helm has a secret for it in its namespace."""
    labels: dict[str, Any] = {"owner": "helm", "name": inputs["name"]}
    client = from_outside(account, cluster)
    exists = any(True for _ in client.list(Secret, namespace=inputs["namespace"], labels=labels))
    return [f"{inputs['namespace']}/{inputs['name']}"] if exists else []


def resolve_pending(deployment: Mapping[str, Any], ids: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Return the deployment with adopted creations as resources and nothing pending, and the urns to refresh. Nothing
    in the state depends on an unfinished creation, so adopted ones may be put at the end."""
    operations = deployment.get("pending_operations") or ()
    creations = [
        {**row["resource"], "id": (id := ids[row["resource"]["urn"]]), "outputs": _first_outputs(row["resource"], id)}
        for row in operations
        if row["type"] == "creating" and row["resource"]["urn"] in ids
    ]
    changed_urns = [row["resource"]["urn"] for row in operations if row["type"] not in ("creating", "importing")]
    resources = [*deployment.get("resources", ()), *creations]
    urns = {row["urn"] for row in resources}
    look = [urn for urn in dict.fromkeys([*ids, *changed_urns]) if urn in urns]
    return {**deployment, "resources": resources, "pending_operations": []}, look


def _first_outputs(resource: Mapping[str, Any], id: str) -> dict[str, Any]:
    """Return initial outputs, which the refresh completes.

    Without any, pulumi-aws takes a refresh for an import (bridge, `Provider.Read`): it would forget what AWS does not
    keep (whether to empty a bucket, to make a last backup), and ask for a pod identity by a wrong id.
    """
    if str(resource["type"]).startswith(KUBERNETES):
        return {}
    id_key = kind_of_type(str(resource["type"])).id_output
    return {**bare(resource.get("inputs") or {}), "id": id, **({id_key: id} if id_key else {})}


def remove_rules(
    account: Account, deployment: Mapping[str, Any], guard: Callable[[], None], report: Failed = refuse
) -> list[str]:
    """Remove what pending creations of rules left in their route table or group, so that they can be made again."""
    kinds = []
    for pending in pending_creates(deployment):
        remake = kind_of_type(pending.type).remake
        if remake is None:
            continue
        guard()
        try:
            if remake(account, pending.inputs):
                kinds.append(pending.type.rpartition(":")[2])
        except Exception as error:
            report(pending, error)
    return kinds


def still_creating(account: Account, deployment: Mapping[str, Any], ids: Mapping[str, str]) -> list[str]:
    """Return ids of adopted resources that are not ready: AWS would refuse what depends on them."""
    types = {pending.urn: pending.type for pending in pending_creates(deployment)}
    return [id for urn, id in ids.items() if _coming(account, types[urn], id)]


def _coming(account: Account, kind: str, id: str) -> bool:
    """Return whether AWS still creates it; False where the request is denied."""
    try:
        return life(account, {"type": kind, "id": id}) is Life.COMING
    except OF_WORLD as error:
        if passes(error):
            raise
        return False
