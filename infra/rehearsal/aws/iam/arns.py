"""A call in IAM's terms: its action, the ARNs of its resources, and the context for conditions.

Unlisted services have resource None: a policy that allows only named resources then does not allow the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from infra.rehearsal.aws.iam import build_context, ec2_resources, iam_context, key_context
from infra.rehearsal.aws.iam.actions import ACTIONS, BESIDE, PREFIXES, ROLE_PASSED_BY, TAGS_WITH, VERSIONED
from infra.rehearsal.aws.iam.asked_tags import given_tags, tagged_at_creation, taken_tags
from infra.rehearsal.aws.operations import AwsError
from infra.rehearsal.aws.s3 import bucket_settings, keys
from infra.rehearsal.aws.world import World

Parameters = dict[str, Any]


@dataclass(frozen=True)
class Need:
    action: str
    resources: list[str] | None
    context: dict[str, list[str]]


def needs(world: World, service: str, operation: str, params: Parameters) -> Iterator[Need]:
    """Yield every permission that the call needs, its own first."""
    prefix = PREFIXES.get(service, service)
    action = f"{prefix}:{ACTIONS.get(service, {}).get(operation, operation)}"
    everything = service in DESCRIBED_AS_A_WHOLE and operation.startswith("Describe")
    resolver = _everything if everything else RESOLVERS.get(service)
    resources = resolver(world, operation, params) if resolver else None
    if service == "ec2" and ec2_resources.by_resource(operation):
        yield from _of_ec2(world, operation, params)
    elif service == "s3":
        yield from _of_s3(world, operation, action, resources or [], params)
    else:
        # One by one: conditions test the tags of a single resource.
        for one in [[part] for part in resources] if resources else [None]:
            context = _context(world, service, operation, params, one)
            yield Need(action, one, context)
        if (service, operation) in TAGS_WITH and given_tags(params):
            new = [tagged_at_creation(operation, params, resources or ["*"])]
            yield Need(TAGS_WITH[service, operation], new, _context(world, service, operation, params, new))
    for asked, key, via in keys.through(world, service, operation, params):
        yield Need(asked, [key], via)
    if (service, operation) in ROLE_PASSED_BY:
        path, principal = ROLE_PASSED_BY[service, operation]
        role: Any = params
        for step in path.split("."):
            role = (role or {}).get(step)
        if role:
            passed = [role] if str(role).startswith("arn:") else iam_context.arns_of_role(world, role, params)
            yield Need("iam:PassRole", passed, {"iam:passedtoservice": [principal]})


def _of_s3(world: World, operation: str, action: str, resources: list[str], params: Parameters) -> Iterator[Need]:
    """Add the permissions for a version, a lock or tags, the bucket's key, and the source of a copy."""
    deleted = params.get("Delete", {}).get("Objects", []) if operation == "DeleteObjects" else [params]
    for one, target in zip(resources, deleted, strict=True):
        context = _context(world, "s3", operation, params, [one])
        versioned = target.get("VersionId") and action.partition(":")[2] in VERSIONED
        if versioned:
            context["s3:versionid"] = [str(target["VersionId"])]
        yield Need(action.replace("Object", "ObjectVersion", 1) if versioned else action, [one], context)
        for asked in sorted({need for name, need in BESIDE.items() if params.get(name) and "/" in one}):
            yield Need(asked, [one], context)
        if operation == "CreateBucket" and params.get("ObjectLockEnabledForBucket"):
            yield Need("s3:PutBucketObjectLockConfiguration", [one], context)
            yield Need("s3:PutBucketVersioning", [one], context)
    if operation == "CopyObject":
        source = str(params["CopySource"]).lstrip("/").partition("?")[0]
        yield Need("s3:GetObject", [f"arn:aws:s3:::{source}"], {})


def _of_ec2(world: World, operation: str, params: Parameters) -> Iterator[Need]:
    """Yield one permission per resource: the new one with the request's tags, each other with its own."""
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
    if profile := params.get("IamInstanceProfile"):
        known = list(world.backend("iam").instance_profiles.values())
        chosen = [one for one in known if profile.get("Name") == one.name or profile.get("Arn") == one.arn]
        roles = [role.arn for one in chosen for role in one.roles]
        yield Need("iam:PassRole", roles or None, {"iam:passedtoservice": ["ec2.amazonaws.com"]})


def _of_kind(params: Parameters, resource: str) -> Parameters:
    """Reduce the request's tags to those for new resources of this kind."""
    kind = resource.rpartition(":")[2].partition("/")[0]
    given = params.get("TagSpecifications") or []
    return params | {"TagSpecifications": [one for one in given if one.get("ResourceType") == kind]}


def launch(world: World, template: Parameters, more: Parameters) -> Iterator[Need]:
    """Yield the permissions of a launch from a template; `more` has further parameters of RunInstances."""
    yield from _of_ec2(world, "RunInstances", {"LaunchTemplate": template, **more})


def arn(world: World, service: str, rest: str) -> str:
    return f"arn:aws:{service}:{world.region}:{world.account}:{rest}"


def _s3(world: World, operation: str, params: Parameters) -> list[str] | None:
    if operation == "ListBuckets":
        return ["*"]
    bucket = f"arn:aws:s3:::{params.get('Bucket')}"
    if operation == "DeleteObjects":
        return [f"{bucket}/{item['Key']}" for item in params.get("Delete", {}).get("Objects", [])]
    return [f"{bucket}/{params['Key']}" if "Key" in params else bucket]


def _everything(world: World, operation: str, params: Parameters) -> list[str] | None:
    return ["*"]


def _eks(world: World, operation: str, params: Parameters) -> list[str] | None:
    if operation in ("ListClusters", "ListAccessPolicies", "DescribeAddonVersions", "DescribeClusterVersions"):
        return ["*"]
    if "resourceArn" in params:
        return [params["resourceArn"]]
    cluster = params.get("clusterName") or params.get("name")
    name = params.get("nodegroupName")
    if name and operation != "CreateNodegroup":
        # The last part is a random ID: use the resource's own ARN if it exists.
        return [_eks_tags(world).get((str(cluster), name), (arn(world, "eks", f"nodegroup/{cluster}/{name}/x"), {}))[0]]
    if "associationId" in params:
        return [arn(world, "eks", f"podidentityassociation/{cluster}/{params['associationId']}")]
    if "addonName" in params and operation != "CreateAddon":
        return [arn(world, "eks", f"addon/{cluster}/{params['addonName']}/x")]
    if "principalArn" in params and operation != "CreateAccessEntry":
        kind, _, name = str(params["principalArn"]).rpartition(":")[2].partition("/")
        return [arn(world, "eks", f"access-entry/{cluster}/{kind}/{world.account}/{name}/x")]
    return [arn(world, "eks", f"cluster/{cluster}")]


def _eks_tags(world: World) -> dict[tuple[str, str], tuple[str, dict[str, str]]]:
    return {
        (str(cluster.name), str(name)): (group.document["nodegroupArn"], group.document["tags"])
        for cluster in list(world.clusters.values())
        for name, group in list(cluster.nodegroups.items())
    }


def _autoscaling(world: World, operation: str, params: Parameters) -> list[str] | None:
    groups = world.backend("autoscaling").autoscaling_groups
    name = params.get("AutoScalingGroupName")
    if name is None and "InstanceId" in params:
        states = ((group, state) for group in list(groups.values()) for state in list(group.instance_states))
        name = next((group.name for group, state in states if state.instance.id == params["InstanceId"]), None)
        if name is None:
            # The group is the resource, so AWS looks for it before IAM decides.
            missing = f"Instance Id not found - No managed instance found for instance ID {params['InstanceId']}"
            raise AwsError("ValidationError", missing)
    if launch := params.get("LaunchConfigurationName"):
        return [arn(world, "autoscaling", f"launchConfiguration:*:launchConfigurationName/{launch}")]
    if name is None:
        return None
    return [
        groups[name].arn
        if name in groups
        else arn(world, "autoscaling", f"autoScalingGroup:*:autoScalingGroupName/{name}")
    ]


def _named(kind: str, *keys: str) -> Callable[[World, str, Parameters], list[str] | None]:
    """Make a resolver for one kind: `kind` is 'service:type/', `keys` the parameters with one or several names."""

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
        return [one for one in known if one.endswith(association)] or [
            arn(world, "fsx", f"association/*/{association}")
        ]
    if operation == "CreateFileSystem":
        return [arn(world, "fsx", "file-system/*")]
    if operation == "CreateDataRepositoryAssociation":
        system = params.get("FileSystemId")
        return [arn(world, "fsx", f"file-system/{system}"), arn(world, "fsx", f"association/{system}/*")]
    return _named("fsx:file-system/", "FileSystemId", "ResourceARN")(world, operation, params)


def _scheduler(world: World, operation: str, params: Parameters) -> list[str] | None:
    if "Name" in params:
        within = "schedule-group" if "ScheduleGroup" in operation else f"schedule/{params.get('GroupName', 'default')}"
        return [arn(world, "scheduler", f"{within}/{params['Name']}")]
    return _named("scheduler:", "ResourceArn")(world, operation, params)


def _ssm(world: World, operation: str, params: Parameters) -> list[str] | None:
    if operation == "SendCommand":
        document = f"arn:aws:ssm:{world.region}::document/{params['DocumentName']}"
        return [document, *(arn(world, "ec2", f"instance/{one}") for one in params.get("InstanceIds", []))]
    if operation in ("GetCommandInvocation", "ListCommands", "ListCommandInvocations", "DescribeInstanceInformation"):
        return ["*"]
    if names := params.get("Names") or ([params["Name"]] if "Name" in params else None):
        return [_parameter(world, str(name)) for name in names]
    return None


def _secret(world: World, operation: str, params: Parameters) -> list[str] | None:
    """Return the whole ARN. A secret that does not exist has no six characters at its end, so no policy names it."""
    name = params.get("SecretId") or params.get("Name")
    if name is None:
        return ["*"]
    found = world.backend("secretsmanager").secrets.get(name)
    return [found.arn] if found else _named("secretsmanager:secret:", "SecretId", "Name")(world, operation, params)


def _parameter(world: World, name: str) -> str:
    """Return a parameter's ARN; AWS's public ones belong to no account."""
    owner = "" if name.startswith("/aws/service/") else world.account
    return f"arn:aws:ssm:{world.region}:{owner}:parameter/{name.lstrip('/')}"


def _balancers(world: World, operation: str, params: Parameters) -> list[str] | None:
    given = [params[key] for key in ("LoadBalancerArn", "TargetGroupArn") if params.get(key)]
    names = [params["LoadBalancerName"]] if params.get("LoadBalancerName") else []
    given += params.get("ResourceArns") or []
    return given + [arn(world, "elasticloadbalancing", f"loadbalancer/{name}") for name in names] or None


def _events(world: World, operation: str, params: Parameters) -> list[str] | None:
    name = params.get("Rule") or params.get("Name")
    if name is None or operation.startswith("List"):
        return ["*"]
    bus = params.get("EventBusName") or "default"
    return [arn(world, "events", f"rule/{name}" if bus == "default" else f"rule/{bus}/{name}")]


def _budgets(world: World, operation: str, params: Parameters) -> list[str] | None:
    name = params.get("BudgetName") or (params.get("Budget") or params.get("NewBudget") or {}).get("BudgetName")
    action = f"/action/{params.get('ActionId', '*')}" if operation.endswith("BudgetAction") else ""
    return [params.get("ResourceARN") or f"arn:aws:budgets::{world.account}:budget/{name or '*'}{action}"]


def _ecr(world: World, operation: str, params: Parameters) -> list[str] | None:
    if operation == "GetAuthorizationToken":
        return ["*"]
    return _named("ecr:repository/", "repositoryName", "repositoryNames", "resourceArn")(world, operation, params)


def _logs(world: World, operation: str, params: Parameters) -> list[str] | None:
    """Return the group, with `:log-stream:` at its end but for calls on tags (`LogGroup.arn` in botocore's model)."""
    groups = _named("logs:log-group:", "logGroupName", "resourceArn")(world, operation, params)
    if groups is None or "resourceArn" in params:
        return groups
    return [f"{group}:log-stream:{params.get('logStreamName', '')}" for group in groups]


DESCRIBED_AS_A_WHOLE = {"autoscaling", "elasticloadbalancing", "fsx"}
"""Services whose `Describe…` operations IAM asks about without a resource."""
RESOLVERS: dict[str, Callable[[World, str, Parameters], list[str] | None]] = {
    "s3": _s3,
    "ec2": _everything,
    "eks": _eks,
    "codebuild": build_context.resources,
    "eks-auth": lambda world, operation, params: [arn(world, "eks", f"cluster/{params.get('clusterName')}")],
    "autoscaling": _autoscaling,
    "iam": iam_context.resources,
    "kms": key_context.resources,
    "sns": _named("sns:", "TopicArn", "ResourceArn", "Name"),
    "budgets": _budgets,
    "elasticloadbalancing": _balancers,
    "events": _events,
    "monitoring": _named("cloudwatch:alarm:", "AlarmNames", "AlarmName"),
    "sts": lambda world, operation, params: [params["RoleArn"]] if "RoleArn" in params else ["*"],
    "scheduler": _scheduler,
    "secretsmanager": _secret,
    "ssm": _ssm,
    "ecr": _ecr,
    "fsx": _fsx,
    "logs": _logs,
    "tagging": _everything,
    "servicequotas": _everything,
    "ce": _everything,
}


def _context(
    world: World, service: str, operation: str, params: Parameters, resources: list[str] | None
) -> dict[str, list[str]]:
    context: dict[str, list[str]] = {}
    tags = given_tags(params)
    if named := [*tags, *taken_tags(params)]:
        context["aws:tagkeys"] = named
    if tags:
        context |= {f"aws:requesttag/{key.lower()}": [value] for key, value in tags.items()}
    for key, value in _resource_tags(world, resources or []).items():
        context[f"aws:resourcetag/{key.lower()}"] = context[f"{service}:resourcetag/{key.lower()}"] = [value]
    if service == "s3":
        opened = bucket_settings.opening_tags(world, params.get("Bucket"))
        context |= {f"s3:buckettag/{key.lower()}": [value] for key, value in opened.items()}
    if service == "s3" and "Prefix" in params:
        context["s3:prefix"] = [params["Prefix"]]
    context |= build_context.context(params) if service == "codebuild" else {}
    context |= key_context.context(params) if service == "kms" else {}
    if service == "iam":
        context |= iam_context.context(world, operation, params)
    return context


def _resource_tags(world: World, resources: list[str]) -> dict[str, str]:
    """Return the tags of a single resource: instances, Auto Scaling groups, node groups, clusters."""
    if len(resources) != 1 or resources[0] == "*":
        return {}
    if ":iam:" in resources[0]:
        return iam_context.tags(world, resources[0])
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
        return next((tags for found, tags in list(_eks_tags(world).values()) if found == resources[0]), {})
    if kind.startswith("cluster/") and kind.removeprefix("cluster/") in world.clusters:
        return dict(world.clusters[kind.removeprefix("cluster/")].document["tags"])
    return {}
