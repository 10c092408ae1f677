"""IAM roles, inline policies, attachments and instance profiles."""

from __future__ import annotations

from typing import Any

from infra.rehearsal.plugins.aws.call import Call, Resource
from infra.rehearsal.plugins.aws.table import LOCAL, Conversion, Input, Naming
from infra.rehearsal.plugins.aws.tags import by_id, retagging, tag_list, tag_map
from infra.rehearsal.plugins.wire import Props


def create_role(call: Call) -> str:
    inputs = [name for name in call.resource.inputs if name != "forceDetachPolicies"]
    call.client().create_role(RoleName=call.new["name"], Tags=tag_list(call.tags), **call.request(*inputs))
    return str(call.new["name"])


def read_role(call: Call) -> Props | None:
    answer = call.or_none(lambda: call.client().get_role(RoleName=call.id))
    if not answer:
        return None
    found = answer["Role"]
    boundary = (found.get("PermissionsBoundary") or {}).get("PermissionsBoundaryArn")
    observed = call.observed({**found, "PermissionsBoundary": boundary})
    return {**observed, "name": call.id, "tags": tag_map(found.get("Tags") or [])}


def update_role(call: Call) -> None:
    client = call.client()
    if call.changed("assumeRolePolicy"):
        client.update_assume_role_policy(RoleName=call.id, PolicyDocument=call.new["assumeRolePolicy"])
    if call.changed("description", "maxSessionDuration"):
        client.update_role(RoleName=call.id, **call.request("description", "maxSessionDuration"))
    if call.changed("permissionsBoundary"):
        if call.new.get("permissionsBoundary"):
            client.put_role_permissions_boundary(RoleName=call.id, **call.request("permissionsBoundary"))
        else:
            client.delete_role_permissions_boundary(RoleName=call.id)


def delete_role(call: Call) -> None:
    client = call.client()
    if call.state.get("forceDetachPolicies"):
        call.or_none(lambda: _detach_all(call))
    call.destroy(lambda: client.delete_role(RoleName=call.id), "DeleteConflict")


def _detach_all(call: Call) -> None:
    client = call.client()
    for policy in call.listed("list_attached_role_policies", "AttachedPolicies", RoleName=call.id):
        client.detach_role_policy(RoleName=call.id, PolicyArn=policy["PolicyArn"])
    for name in call.listed("list_role_policies", "PolicyNames", RoleName=call.id):
        client.delete_role_policy(RoleName=call.id, PolicyName=name)


retag_role = retagging("RoleName", by_id, noun="role")


def put_inline(call: Call) -> str:
    role, name = call.new["role"], call.new["name"]
    call.client().put_role_policy(RoleName=role, PolicyName=name, PolicyDocument=call.new["policy"])
    return f"{role}:{name}"


def update_inline(call: Call) -> None:
    put_inline(call)


def read_inline(call: Call) -> Props | None:
    role, name = call.id.split(":", 1)
    answer = call.or_none(lambda: call.client().get_role_policy(RoleName=role, PolicyName=name))
    return {**call.observed(answer), "role": role, "name": name} if answer else None


def delete_inline(call: Call) -> None:
    role, name = call.id.split(":", 1)
    call.destroy(lambda: call.client().delete_role_policy(RoleName=role, PolicyName=name))


def attach(call: Call) -> str:
    role, policy = call.new["role"], call.new["policyArn"]
    call.client().attach_role_policy(RoleName=role, PolicyArn=policy)
    return f"{role}/{policy}"


def read_attachment(call: Call) -> Props | None:
    role, policy = call.id.split("/", 1)
    found = call.or_none(lambda: call.listed("list_attached_role_policies", "AttachedPolicies", RoleName=role))
    arns = {item["PolicyArn"] for item in found or ()}
    return {"role": role, "policyArn": policy} if policy in arns else None


def detach(call: Call) -> None:
    role, policy = call.id.split("/", 1)
    call.destroy(lambda: call.client().detach_role_policy(RoleName=role, PolicyArn=policy))


def create_profile(call: Call) -> str:
    name, client = call.new["name"], call.client()
    client.create_instance_profile(InstanceProfileName=name, Tags=tag_list(call.tags), **call.request("path"))
    call.id = name
    if call.new.get("role"):
        client.add_role_to_instance_profile(InstanceProfileName=name, RoleName=call.new["role"])
    return str(name)


def read_profile(call: Call) -> Props | None:
    answer = call.or_none(lambda: call.client().get_instance_profile(InstanceProfileName=call.id))
    if not answer:
        return None
    found = answer["InstanceProfile"]
    role = next((item["RoleName"] for item in found["Roles"]), None)
    return {**call.observed(found), "name": call.id, "role": role, "tags": tag_map(found.get("Tags") or [])}


def update_profile(call: Call) -> None:
    client = call.client()
    if call.old.get("role"):
        client.remove_role_from_instance_profile(InstanceProfileName=call.id, RoleName=call.old["role"])
    if call.new.get("role"):
        client.add_role_to_instance_profile(InstanceProfileName=call.id, RoleName=call.new["role"])


def delete_profile(call: Call) -> None:
    client = call.client()
    found: Any = read_profile(call)
    if found and found.get("role"):
        client.remove_role_from_instance_profile(InstanceProfileName=call.id, RoleName=found["role"])
    call.destroy(lambda: client.delete_instance_profile(InstanceProfileName=call.id), "DeleteConflict")


retag_profile = retagging("InstanceProfileName", by_id, noun="instance_profile")


_OUTPUTS: dict[str, str | None] = {"arn": None, "createDate": None}

RESOURCES = (
    Resource(
        token="aws:iam/role:Role",
        service="iam",
        regional=False,
        inputs={
            "assumeRolePolicy": Input(api="AssumeRolePolicyDocument", required=True, kind=Conversion.JSON),
            "description": Input(),
            "maxSessionDuration": Input(default=3600),
            "path": Input(default="/", replaces=True),
            "permissionsBoundary": Input(),
            "forceDetachPolicies": Input(api=LOCAL, default=False),
        },
        outputs={**_OUTPUTS, "uniqueId": "RoleId"},
        naming=Naming(longest=64),
        identity=("name",),
        create=create_role,
        read=read_role,
        update=update_role,
        delete=delete_role,
        tagger=retag_role,
    ),
    Resource(
        token="aws:iam/rolePolicy:RolePolicy",
        service="iam",
        regional=False,
        inputs={
            "role": Input(required=True, replaces=True),
            "policy": Input(api="PolicyDocument", required=True, kind=Conversion.JSON),
        },
        naming=Naming(longest=128),
        identity=("name", "role"),
        create=put_inline,
        read=read_inline,
        update=update_inline,
        delete=delete_inline,
    ),
    Resource(
        token="aws:iam/rolePolicyAttachment:RolePolicyAttachment",
        service="iam",
        regional=False,
        inputs={"role": Input(required=True, replaces=True), "policyArn": Input(required=True, replaces=True)},
        create=attach,
        read=read_attachment,
        delete=detach,
    ),
    Resource(
        token="aws:iam/instanceProfile:InstanceProfile",
        service="iam",
        regional=False,
        inputs={"role": Input(api=LOCAL), "path": Input(default="/", replaces=True)},
        outputs={**_OUTPUTS, "uniqueId": "InstanceProfileId"},
        naming=Naming(longest=128),
        identity=("name",),
        create=create_profile,
        read=read_profile,
        update=update_profile,
        delete=delete_profile,
        tagger=retag_profile,
    ),
)
