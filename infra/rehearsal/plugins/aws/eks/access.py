"""Access entries of a cluster, and pod identity associations."""

from __future__ import annotations

from infra.rehearsal.plugins.aws.call import Call, Resource
from infra.rehearsal.plugins.aws.eks.clusters import retag
from infra.rehearsal.plugins.aws.table import Case, Conversion, Input
from infra.rehearsal.plugins.wire import Props


def create_entry(call: Call) -> str:
    make, request = call.client().create_access_entry, call.whole_request()
    # A new role is not a valid principal yet.
    call.retry(lambda: make(**request, tags=call.tags), "InvalidParameterException", saying="invalid principal")
    return f"{call.new['clusterName']}:{call.new['principalArn']}"


def _key(call: Call) -> dict[str, str]:
    cluster, principal = call.id.split(":", 1)
    return {"clusterName": cluster, "principalArn": principal}


def read_entry(call: Call) -> Props | None:
    answer = call.or_none(lambda: call.client().describe_access_entry(**_key(call)))
    if not answer:
        return None
    found = answer["accessEntry"]
    return {**call.observed(found), **_key(call), "tags": found.get("tags") or {}}


def update_entry(call: Call) -> None:
    call.client().update_access_entry(**_key(call), **call.request("kubernetesGroups", "userName"))


def delete_entry(call: Call) -> None:
    call.destroy(lambda: call.client().delete_access_entry(**_key(call)))


def associate(call: Call) -> str:
    call.client().associate_access_policy(**call.whole_request())
    return "#".join(call.new[name] for name in ("clusterName", "principalArn", "policyArn"))


def update_association(call: Call) -> None:
    call.client().associate_access_policy(**call.whole_request())


def read_association(call: Call) -> Props | None:
    cluster, principal, policy = call.id.split("#", 2)
    ask, key = "list_associated_access_policies", {"clusterName": cluster, "principalArn": principal}
    for found in call.or_none(lambda: call.listed(ask, "associatedAccessPolicies", **key)) or ():
        if found["policyArn"] == policy:
            return {**call.observed(found), "clusterName": cluster, "principalArn": principal}
    return None


def disassociate(call: Call) -> None:
    cluster, principal, policy = call.id.split("#", 2)
    erase = call.client().disassociate_access_policy
    call.destroy(lambda: erase(clusterName=cluster, principalArn=principal, policyArn=policy))


def create_identity(call: Call) -> str:
    make, request = call.client().create_pod_identity_association, call.whole_request()
    answer = call.retry(lambda: make(**request, tags=call.tags), "InvalidParameterException", saying="does not exist")
    return str(answer["association"]["associationId"])


def _association(call: Call) -> dict[str, str]:
    cluster = call.state.get("clusterName") or call.new["clusterName"]
    return {"clusterName": cluster, "associationId": call.id}


def read_identity(call: Call) -> Props | None:
    answer = call.or_none(lambda: call.client().describe_pod_identity_association(**_association(call)))
    if not answer:
        return None
    found = answer["association"]
    return {**call.observed(found), "tags": found.get("tags") or {}}


def update_identity(call: Call) -> None:
    request = call.request("roleArn", "disableSessionTags", "targetRoleArn")
    call.client().update_pod_identity_association(**_association(call), **request)


def delete_identity(call: Call) -> None:
    call.destroy(lambda: call.client().delete_pod_identity_association(**_association(call)))


_PRINCIPAL = {
    "clusterName": Input(required=True, replaces=True),
    "principalArn": Input(required=True, replaces=True),
}

RESOURCES = (
    Resource(
        token="aws:eks/accessEntry:AccessEntry",
        service="eks",
        case=Case.CAMEL,
        inputs={
            **_PRINCIPAL,
            "kubernetesGroups": Input(kind=Conversion.SET, computed=True),
            "type": Input(replaces=True, default="STANDARD"),
            "userName": Input(computed=True, api="username"),
        },
        outputs={"accessEntryArn": None, "createdAt": None, "modifiedAt": None},
        identity=("clusterName", "principalArn"),
        create=create_entry,
        read=read_entry,
        update=update_entry,
        delete=delete_entry,
        tagger=retag,
    ),
    Resource(
        token="aws:eks/accessPolicyAssociation:AccessPolicyAssociation",
        service="eks",
        case=Case.CAMEL,
        inputs={
            **_PRINCIPAL,
            "policyArn": Input(required=True, replaces=True),
            "accessScope": Input(
                required=True, fields={"type": Input(required=True), "namespaces": Input(kind=Conversion.SET)}
            ),
        },
        outputs={"associatedAt": None, "modifiedAt": None},
        identity=("clusterName", "principalArn", "policyArn"),
        create=associate,
        read=read_association,
        update=update_association,
        delete=disassociate,
    ),
    Resource(
        token="aws:eks/podIdentityAssociation:PodIdentityAssociation",
        service="eks",
        case=Case.CAMEL,
        inputs={
            "clusterName": Input(required=True, replaces=True),
            "namespace": Input(required=True, replaces=True),
            "serviceAccount": Input(required=True, replaces=True),
            "roleArn": Input(required=True),
            "disableSessionTags": Input(computed=True),
            "targetRoleArn": Input(),
        },
        outputs={"associationArn": None, "associationId": None, "externalId": None},
        identity=("clusterName", "namespace", "serviceAccount"),
        create=create_identity,
        read=read_identity,
        update=update_identity,
        delete=delete_identity,
        tagger=retag,
    ),
)
