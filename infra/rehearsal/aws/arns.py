"""What a call is about, in IAM's terms: its action, the ARNs of its resources, the facts that conditions ask for.

Services that are not listed give None: policies.Question says what an unknown resource means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from infra.rehearsal.aws import ec2_resources, keys
from infra.rehearsal.aws.iam_actions import ACTIONS, PREFIXES
from infra.rehearsal.aws.world import World

Parameters = dict[str, Any]


@dataclass(frozen=True)
class Need:
    """One permission that a call asks for."""

    action: str
    resources: list[str] | None
    context: dict[str, list[str]]


ROLE_PASSED_BY = {
    ("eks", "CreateCluster"): ("roleArn", "eks.amazonaws.com"),
    ("eks", "CreateNodegroup"): ("nodeRole", "eks.amazonaws.com"),
    ("eks", "CreateAddon"): ("serviceAccountRoleArn", "eks.amazonaws.com"),
    ("eks", "CreatePodIdentityAssociation"): ("roleArn", "pods.eks.amazonaws.com"),
    ("eks", "UpdatePodIdentityAssociation"): ("roleArn", "pods.eks.amazonaws.com"),
    ("budgets", "CreateBudgetAction"): ("ExecutionRoleArn", "budgets.amazonaws.com"),
    ("budgets", "UpdateBudgetAction"): ("ExecutionRoleArn", "budgets.amazonaws.com"),
    ("scheduler", "CreateSchedule"): ("Target.RoleArn", "scheduler.amazonaws.com"),
    ("scheduler", "UpdateSchedule"): ("Target.RoleArn", "scheduler.amazonaws.com"),
}
"""Operation -> (parameter that names a role, the service that will assume it): each needs iam:PassRole."""


def needs(world: World, service: str, operation: str, params: Parameters) -> Iterator[Need]:
    """Every permission that the call asks for, its own first."""
    prefix = PREFIXES.get(service, service)
    action = f"{prefix}:{ACTIONS.get(service, {}).get(operation, operation)}"
    resources = _resources(world, service, operation, params)
    if service == "ec2" and ec2_resources.by_resource(operation):
        yield from _of_ec2(world, operation, params)
    else:
        # Each by itself: conditions ask for the tags of one.
        for one in [[part] for part in resources] if resources else [None]:
            yield Need(action, one, _context(world, service, operation, params, one))
    if (service, operation) in ROLE_PASSED_BY:
        path, principal = ROLE_PASSED_BY[service, operation]
        role: Any = params
        for step in path.split("."):
            role = (role or {}).get(step)
        if role:
            yield Need("iam:PassRole", [role], {"iam:passedtoservice": [principal]})
    if service == "s3":
        for asked, key, context in keys.through_s3(world, operation, params):
            yield Need(asked, [key], dict(context))
    if service == "s3" and operation == "CopyObject":
        source = str(params["CopySource"]).lstrip("/").partition("?")[0]
        yield Need("s3:GetObject", [f"arn:aws:s3:::{source}"], {})


def _of_ec2(world: World, operation: str, params: Parameters) -> Iterator[Need]:
    """One for each resource: the new one with the request's tags, each other with its own."""
    if operation == "RunInstances":
        params = ec2_resources.whole_launch(world, params)
    asked = _context(world, "ec2", operation, params, None)
    needs = [Need(f"ec2:{operation}", [one], context) for one, context in ec2_resources.named(world, operation, params)]
    if operation in ("CreateTags", "DeleteTags"):
        needs = [Need(one.action, one.resources, one.context | asked) for one in needs]
    made = ec2_resources.made(world, operation, params)
    for one in made:
        marks = _context(world, "ec2", operation, _of_kind(params, one), None) if len(made) > 1 else asked
        needs.append(Need(f"ec2:{operation}", [one], marks))
        if params.get("TagSpecifications") and marks:
            needs.append(Need("ec2:CreateTags", [one], marks | {"ec2:createaction": [operation]}))
    yield from needs or [Need(f"ec2:{operation}", None, asked)]
    if profile := (params.get("IamInstanceProfile") or {}).get("Name"):
        known = world.backend("iam").instance_profiles.values()
        roles = [role.arn for one in known if one.name == profile for role in one.roles]
        yield Need("iam:PassRole", roles, {"iam:passedtoservice": ["ec2.amazonaws.com"]})


def _of_kind(params: Parameters, resource: str) -> Parameters:
    """The request with the tags alone that it gives what is made of this kind."""
    kind = resource.rpartition(":")[2].partition("/")[0]
    given = params.get("TagSpecifications") or []
    return params | {"TagSpecifications": [one for one in given if one.get("ResourceType") == kind]}


def launch(world: World, template: Parameters, more: Parameters) -> Iterator[Need]:
    """What a launch from a template asks for; `more`: what it says besides, as RunInstances has it."""
    yield from _of_ec2(world, "RunInstances", {"LaunchTemplate": template, **more})


def _resources(world: World, service: str, operation: str, params: Parameters) -> list[str] | None:
    resolver = RESOLVERS.get(service)
    return resolver(world, operation, params) if resolver else None


def arn(world: World, service: str, rest: str) -> str:
    return f"arn:aws:{service}:{world.region}:{world.account}:{rest}"


def _s3(world: World, operation: str, params: Parameters) -> list[str] | None:
    if operation == "ListBuckets":
        return ["*"]
    bucket = f"arn:aws:s3:::{params.get('Bucket')}"
    if operation == "DeleteObjects":
        return [f"{bucket}/{item['Key']}" for item in params.get("Delete", {}).get("Objects", [])]
    return [f"{bucket}/{params['Key']}" if "Key" in params else bucket]


def _ec2(world: World, operation: str, params: Parameters) -> list[str] | None:
    if operation.startswith("Describe"):
        return ["*"]
    return None


def _eks(world: World, operation: str, params: Parameters) -> list[str] | None:
    if operation in ("ListClusters", "DescribeAddonVersions"):
        return ["*"]
    if "resourceArn" in params:
        return [params["resourceArn"]]
    cluster = params.get("clusterName") or params.get("name")
    name = params.get("nodegroupName")
    if name and operation != "CreateNodegroup":
        # The last part is a random id: the resource's own ARN where there is one.
        return [_eks_tags(world).get((str(cluster), name), (arn(world, "eks", f"nodegroup/{cluster}/{name}/x"), {}))[0]]
    if "associationId" in params:
        return [arn(world, "eks", f"podidentityassociation/{cluster}/{params['associationId']}")]
    if "addonName" in params and operation != "CreateAddon":
        return [arn(world, "eks", f"addon/{cluster}/{params['addonName']}/x")]
    if "principalArn" in params and operation != "CreateAccessEntry":
        return None
    return [arn(world, "eks", f"cluster/{cluster}")]


def _eks_tags(world: World) -> dict[tuple[str, str], tuple[str, dict[str, str]]]:
    return {
        (str(cluster.name), str(name)): (group.document["nodegroupArn"], group.document["tags"])
        for cluster in list(world.clusters.values())
        for name, group in list(cluster.nodegroups.items())
    }


def _autoscaling(world: World, operation: str, params: Parameters) -> list[str] | None:
    if operation.startswith("Describe"):
        return ["*"]
    groups = world.backend("autoscaling").autoscaling_groups
    name = params.get("AutoScalingGroupName")
    if name is None and "InstanceId" in params:
        states = ((group, state) for group in groups.values() for state in group.instance_states)
        name = next((group.name for group, state in states if state.instance.id == params["InstanceId"]), None)
    return [groups[name].arn] if name in groups else None


def _iam(world: World, operation: str, params: Parameters) -> list[str] | None:
    account = f"arn:aws:iam::{world.account}:"
    iam = world.backend("iam")
    if "RoleName" in params:
        roles = [role.arn for role in iam.get_roles() if role.name == params["RoleName"]]
        return roles or [f"{account}role{params.get('Path') or '/'}{params['RoleName']}"]
    if "PolicyArn" in params:
        return [params["PolicyArn"]]
    if "InstanceProfileName" in params:
        return [f"{account}instance-profile{params.get('Path') or '/'}{params['InstanceProfileName']}"]
    if "UserName" in params:
        return [f"{account}user{params.get('Path') or '/'}{params['UserName']}"]
    return ["*"] if operation.startswith("List") else None


def _named(kind: str, *keys: str) -> Callable[[World, str, Parameters], list[str] | None]:
    """Resources of one kind: `kind` is 'service:type/', `keys` the parameters that name one or several."""

    def resolve(world: World, operation: str, params: Parameters) -> list[str] | None:
        service, _, rest = kind.partition(":")
        for key in keys:
            if value := params.get(key):
                names = value if isinstance(value, list) else [value]
                return [one if str(one).startswith("arn:") else arn(world, service, rest + str(one)) for one in names]
        return None

    return resolve


def _fsx(world: World, operation: str, params: Parameters) -> list[str] | None:
    if association := params.get("AssociationId"):
        known = world.backend("fsx").tagger.tags
        return [one for one in known if one.endswith(association)] or [arn(world, "fsx", f"association/{association}")]
    if operation == "CreateFileSystem":
        return [arn(world, "fsx", "file-system/*")]
    return _named("fsx:file-system/", "FileSystemId", "FileSystemIds", "ResourceARN")(world, operation, params)


def _scheduler(world: World, operation: str, params: Parameters) -> list[str] | None:
    if "Name" in params:
        return [arn(world, "scheduler", f"schedule/{params.get('GroupName', 'default')}/{params['Name']}")]
    return _named("scheduler:", "ResourceArn")(world, operation, params)


def _ssm(world: World, operation: str, params: Parameters) -> list[str] | None:
    if operation == "SendCommand":
        document = f"arn:aws:ssm:{world.region}::document/{params['DocumentName']}"
        return [document, *(arn(world, "ec2", f"instance/{one}") for one in params.get("InstanceIds", []))]
    if operation in ("GetCommandInvocation", "ListCommands", "ListCommandInvocations", "DescribeInstanceInformation"):
        return ["*"]
    if names := params.get("Names") or ([params["Name"]] if "Name" in params else None):
        return [arn(world, "ssm", f"parameter/{str(name).lstrip('/')}") for name in names]
    return None


def _kms(world: World, operation: str, params: Parameters) -> list[str] | None:
    if operation in ("CreateKey", "ListKeys", "ListAliases"):
        return ["*"]
    keys = [params[name] for name in ("KeyId", "TargetKeyId") if params.get(name)]
    aliases = [params["AliasName"]] if params.get("AliasName") else []
    known = [one if one.startswith("arn:") else arn(world, "kms", f"key/{one}") for one in keys if "alias/" not in one]
    return known + [arn(world, "kms", one) for one in aliases]


def _budgets(world: World, operation: str, params: Parameters) -> list[str] | None:
    name = params.get("BudgetName") or (params.get("Budget") or params.get("NewBudget") or {}).get("BudgetName")
    if params.get("ResourceARN"):
        return [params["ResourceARN"]]
    return [f"arn:aws:budgets::{world.account}:budget/{name or '*'}"]


def _ecr(world: World, operation: str, params: Parameters) -> list[str] | None:
    if operation == "GetAuthorizationToken":
        return ["*"]
    return _named("ecr:repository/", "repositoryName", "repositoryNames", "resourceArn")(world, operation, params)


RESOLVERS: dict[str, Callable[[World, str, Parameters], list[str] | None]] = {
    "s3": _s3,
    "ec2": _ec2,
    "eks": _eks,
    "eks-auth": lambda world, operation, params: [arn(world, "eks", f"cluster/{params.get('clusterName')}")],
    "autoscaling": _autoscaling,
    "iam": _iam,
    "kms": _kms,
    "sns": _named("sns:", "TopicArn", "ResourceArn", "Name"),
    "budgets": _budgets,
    "events": lambda world, operation, params: (
        [arn(world, "events", f"rule/{params['Rule']}")] if "Rule" in params else ["*"]
    ),
    "sts": lambda world, operation, params: [params["RoleArn"]] if "RoleArn" in params else ["*"],
    "scheduler": _scheduler,
    "ssm": _ssm,
    "ecr": _ecr,
    "fsx": _fsx,
    "logs": _named("logs:log-group:", "logGroupName", "resourceArn"),
    "tagging": lambda world, operation, params: ["*"],
    "servicequotas": lambda world, operation, params: ["*"],
    "ce": lambda world, operation, params: ["*"],
}


def _context(
    world: World, service: str, operation: str, params: Parameters, resources: list[str] | None
) -> dict[str, list[str]]:
    context: dict[str, list[str]] = {}
    if tags := _request_tags(params):
        context["aws:tagkeys"] = list(tags)
        context |= {f"aws:requesttag/{key.lower()}": [value] for key, value in tags.items()}
    for key, value in _resource_tags(world, resources or []).items():
        context[f"aws:resourcetag/{key.lower()}"] = context[f"{service}:resourcetag/{key.lower()}"] = [value]
    if service == "s3" and "Prefix" in params:
        context["s3:prefix"] = [params["Prefix"]]
    if service == "iam" and "PolicyArn" in params:
        context["iam:policyarn"] = [params["PolicyArn"]]
    return context


def _request_tags(params: Parameters) -> dict[str, str]:
    tags = params.get("tags") or params.get("Tags") or []
    if isinstance(tags, dict):
        return tags
    pairs = list(tags) if isinstance(tags, list) else []
    for specification in params.get("TagSpecifications", []):
        pairs += specification.get("Tags", [])
    return {
        str(pair.get("Key", pair.get("key", pair.get("TagKey")))): str(pair.get("Value", pair.get("value", "")))
        for pair in pairs
        if isinstance(pair, dict)
    }


def _resource_tags(world: World, resources: list[str]) -> dict[str, str]:
    """Tags of a single resource: instances, Auto Scaling groups, node groups, clusters."""
    if len(resources) != 1:
        return {}
    kind = resources[0].split(":", 5)[-1]
    if kind.startswith("instance/"):
        instance = world.backend("ec2").get_instance_by_id(kind.removeprefix("instance/"))
        return {tag["key"]: tag["value"] for tag in instance.get_tags()} if instance else {}
    if kind.startswith("autoScalingGroup:"):
        group = world.backend("autoscaling").autoscaling_groups.get(kind.rpartition("/")[2])
        return {tag["Key"]: tag["Value"] for tag in group.tags} if group else {}
    if ":fsx:" in resources[0]:
        return dict(world.backend("fsx").tagger.get_tag_dict_for_resource(resources[0]))
    if kind.startswith("key/"):
        return dict(world.backend("kms").tagger.get_tag_dict_for_resource(kind.removeprefix("key/")))
    if kind.startswith("nodegroup/"):
        return next((tags for found, tags in _eks_tags(world).values() if found == resources[0]), {})
    if kind.startswith("cluster/") and kind.removeprefix("cluster/") in world.clusters:
        return dict(world.clusters[kind.removeprefix("cluster/")].document["tags"])
    return {}
