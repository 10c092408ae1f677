"""EKS clusters."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from infra.rehearsal.plugins.aws.call import Call, NotReady, Resource
from infra.rehearsal.plugins.aws.table import LOCAL, Case, Conversion, Input, Naming
from infra.rehearsal.plugins.aws.tags import retagging
from infra.rehearsal.plugins.wire import Props

_VPC = {
    "subnetIds": Input(required=True, kind=Conversion.SET),
    "securityGroupIds": Input(kind=Conversion.SET),
    "endpointPrivateAccess": Input(),
    "endpointPublicAccess": Input(),
    "publicAccessCidrs": Input(kind=Conversion.SET),
    "clusterSecurityGroupId": Input(computed=True),
    "vpcId": Input(computed=True),
}
_CREATED = (
    "name",
    "roleArn",
    "version",
    "vpcConfig",
    "accessConfig",
    "kubernetesNetworkConfig",
    "upgradePolicy",
    "bootstrapSelfManagedAddons",
    "deletionProtection",
    "encryptionConfig",
)


def create(call: Call) -> str:
    request = call.request(*_CREATED)
    if "encryptionConfig" in request:
        # The SDK has one object, the API a list.
        request["encryptionConfig"] = [request["encryptionConfig"]]
    if call.new.get("enabledClusterLogTypes"):
        request["logging"] = _logging(call)
    make = call.client().create_cluster
    # The role is new and may not be known yet.
    call.retry(lambda: make(**request, tags=call.tags), "InvalidParameterException", saying="could not be assumed")
    call.id = call.new["name"]
    call.wait(lambda: _is_active(call), f"EKS cluster {call.id} to become ACTIVE")
    return call.id


def _logging(call: Call) -> dict[str, Any]:
    wanted = call.new.get("enabledClusterLogTypes") or []
    every = ["api", "audit", "authenticator", "controllerManager", "scheduler"]
    entries = [{"types": sorted(wanted), "enabled": True}] if wanted else []
    rest = sorted(set(every) - set(wanted))
    return {"clusterLogging": [*entries, *([{"types": rest, "enabled": False}] if rest else [])]}


def _is_active(call: Call) -> bool:
    found = call.client().describe_cluster(name=call.id)["cluster"]
    if found["status"] == "FAILED":
        issues = (found.get("health") or {}).get("issues") or []
        raise NotReady(f"EKS cluster {call.id} FAILED: {issues}")
    return bool(found["status"] == "ACTIVE")


def read(call: Call) -> Props | None:
    answer = call.or_none(lambda: call.client().describe_cluster(name=call.id))
    if not answer:
        return None
    found = answer["cluster"]
    found = {**found, "encryptionConfig": next(iter(found.get("encryptionConfig") or []), None)}
    entries = (found.get("logging") or {}).get("clusterLogging") or []
    issuer = ((found.get("identity") or {}).get("oidc") or {}).get("issuer")
    return {
        **call.observed(found),
        "name": call.id,
        "clusterId": found.get("id"),
        "enabledClusterLogTypes": [kind for item in entries if item.get("enabled") for kind in item["types"]] or None,
        "identities": [{"oidcs": [{"issuer": issuer}]}] if issuer else [],
        "tags": found.get("tags") or {},
    }


def update(call: Call) -> None:
    """Update in several requests: EKS accepts one kind of change at a time."""
    client = call.client()
    if call.changed("version"):
        _await(call, client.update_cluster_version(name=call.id, version=call.new["version"]))
    wanted = call.request("vpcConfig")["resourcesVpcConfig"]
    before = call.old.get("vpcConfig") or {}
    for names in (
        ("endpointPrivateAccess", "endpointPublicAccess", "publicAccessCidrs"),
        ("subnetIds", "securityGroupIds"),
    ):
        if any(wanted.get(name) != before.get(name) for name in names):
            part = {name: wanted[name] for name in names if name in wanted}
            _await(call, client.update_cluster_config(name=call.id, resourcesVpcConfig=part))
    if call.changed("enabledClusterLogTypes"):
        _await(call, client.update_cluster_config(name=call.id, logging=_logging(call)))
    for name in ("accessConfig", "upgradePolicy", "deletionProtection"):
        if call.changed(name) and call.new.get(name) is not None:
            value = call.request(name)
            if name == "accessConfig":
                value[name].pop("bootstrapClusterCreatorAdminPermissions", None)
            _await(call, client.update_cluster_config(name=call.id, **value))


def _await(call: Call, answer: dict[str, Any]) -> None:
    await_update(call, answer, "EKS cluster", name=call.id)


def await_update(call: Call, answer: dict[str, Any], kind: str, **named: str) -> None:
    """Wait for an update of a cluster, or of a part of it. Raises `NotReady` for one that fails."""
    update_id = answer["update"]["id"]
    what = f"update {update_id} of {kind} {call.id}"

    def done() -> bool:
        found = call.client().describe_update(**named, updateId=update_id)["update"]
        if found["status"] in ("Failed", "Cancelled"):
            raise NotReady(f"{what} {found['status']}: {found.get('errors')}")
        return bool(found["status"] == "Successful")

    call.wait(done, what)


def delete(call: Call) -> None:
    client = call.client()
    call.destroy(lambda: client.delete_cluster(name=call.id), "ResourceInUseException")
    call.wait_gone(lambda: client.describe_cluster(name=call.id), f"EKS cluster {call.id} to go")


def _arn(call: Call) -> str:
    return next(str(call.state[name]) for name in ("arn", "accessEntryArn", "associationArn") if call.state.get(name))


retag = retagging("resourceArn", _arn, keys="tagKeys", tags="tags", form=dict)
"""For any resource of EKS."""


RESOURCES = (
    Resource(
        token="aws:eks/cluster:Cluster",
        service="eks",
        case=Case.CAMEL,
        inputs={
            "roleArn": Input(required=True, replaces=True),
            "version": Input(computed=True),
            "vpcConfig": Input(api="resourcesVpcConfig", required=True, fields=_VPC, computed=True),
            "accessConfig": Input(
                computed=True,
                fields={
                    "authenticationMode": Input(),
                    "bootstrapClusterCreatorAdminPermissions": Input(replaces=True),
                },
            ),
            "bootstrapSelfManagedAddons": Input(replaces=True, default=True),
            "deletionProtection": Input(computed=True),
            "enabledClusterLogTypes": Input(api=LOCAL, kind=Conversion.SET),
            "encryptionConfig": Input(
                replaces=True,
                fields={"resources": Input(kind=Conversion.SET), "provider": Input(fields={"keyArn": Input()})},
            ),
            "kubernetesNetworkConfig": Input(
                computed=True,
                replaces=True,
                fields={"ipFamily": Input(), "serviceIpv4Cidr": Input(), "serviceIpv6Cidr": Input(computed=True)},
            ),
            "upgradePolicy": Input(fields={"supportType": Input()}, computed=True),
        },
        outputs={
            "arn": None,
            "certificateAuthority": None,
            "clusterId": LOCAL,
            "createdAt": None,
            "endpoint": None,
            "identities": LOCAL,
            "platformVersion": None,
            "status": None,
        },
        naming=Naming(longest=100, prefix_property=None),
        identity=("name",),
        patience=timedelta(minutes=30),
        create=create,
        read=read,
        update=update,
        delete=delete,
        tagger=retag,
    ),
)
