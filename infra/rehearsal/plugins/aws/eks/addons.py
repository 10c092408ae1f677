"""EKS add-ons."""

from __future__ import annotations

from typing import Any

from infra.rehearsal.plugins.aws.call import Call, NotReady, Resource
from infra.rehearsal.plugins.aws.eks.clusters import retag
from infra.rehearsal.plugins.aws.table import LOCAL, Case, Conversion, Input
from infra.rehearsal.plugins.wire import Props

_SETTINGS = ("addonVersion", "serviceAccountRoleArn", "configurationValues", "podIdentityAssociations")


def create(call: Call) -> str:
    cluster, name = call.new["clusterName"], call.new["addonName"]
    conflicts = call.new.get("resolveConflictsOnCreate")
    request = call.request(*_SETTINGS) | ({"resolveConflicts": conflicts} if conflicts else {})
    call.client().create_addon(clusterName=cluster, addonName=name, tags=call.tags, **request)
    call.id = f"{cluster}:{name}"
    _wait_active(call)
    return call.id


def _key(call: Call) -> dict[str, str]:
    cluster, name = call.id.split(":", 1)
    return {"clusterName": cluster, "addonName": name}


def _wait_active(call: Call) -> None:
    seen: list[Any] = []

    def active() -> bool:
        found = call.client().describe_addon(**_key(call))["addon"]
        seen[:] = [found["status"], (found.get("health") or {}).get("issues") or []]
        if found["status"] in ("CREATE_FAILED", "UPDATE_FAILED"):
            raise NotReady(f"add-on {call.id} {found['status']}: {seen[1]}")
        # Wait through DEGRADED: an add-on recovers when its first node joins.
        return bool(found["status"] == "ACTIVE")

    try:
        call.wait(active, f"add-on {call.id} to become ACTIVE")
    except NotReady as error:
        raise NotReady(f"{error} (last seen: {seen})") from error


def read(call: Call) -> Props | None:
    answer = call.or_none(lambda: call.client().describe_addon(**_key(call)))
    if not answer:
        return None
    found = answer["addon"]
    # AWS lists associations by ARN, the program by role and service account.
    observed = {name: value for name, value in call.observed(found).items() if name != "podIdentityAssociations"}
    return {**observed, **_key(call), "tags": found.get("tags") or {}}


def update(call: Call) -> None:
    if call.changed(*_SETTINGS):
        conflicts = call.new.get("resolveConflictsOnUpdate")
        request = call.request(*_SETTINGS) | ({"resolveConflicts": conflicts} if conflicts else {})
        call.client().update_addon(**_key(call), **request)
        _wait_active(call)


def delete(call: Call) -> None:
    client = call.client()
    preserve = bool(call.state.get("preserve"))
    call.destroy(lambda: client.delete_addon(**_key(call), preserve=preserve), "ResourceInUseException")
    call.wait_gone(lambda: client.describe_addon(**_key(call)), f"add-on {call.id} to go")


RESOURCES = (
    Resource(
        token="aws:eks/addon:Addon",
        service="eks",
        case=Case.CAMEL,
        inputs={
            "clusterName": Input(required=True, replaces=True),
            "addonName": Input(required=True, replaces=True),
            "addonVersion": Input(computed=True),
            "configurationValues": Input(kind=Conversion.JSON, computed=True),
            "serviceAccountRoleArn": Input(),
            "podIdentityAssociations": Input(
                fields={"roleArn": Input(required=True), "serviceAccount": Input(required=True)}
            ),
            "preserve": Input(api=LOCAL),
            "resolveConflictsOnCreate": Input(api=LOCAL),
            "resolveConflictsOnUpdate": Input(api=LOCAL),
        },
        outputs={"arn": "addonArn", "createdAt": None, "modifiedAt": None},
        identity=("clusterName", "addonName"),
        create=create,
        read=read,
        update=update,
        delete=delete,
        tagger=retag,
    ),
)
