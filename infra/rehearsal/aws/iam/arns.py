"""A call in IAM's terms: its action, the ARNs of its resources, and the context for conditions.

Unlisted services have resource None: a policy that allows only named resources then does not allow the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from infra.rehearsal.aws.iam import build_context, ec2_resources, iam_context, key_context
from infra.rehearsal.aws.iam.actions import ACTIONS, BESIDE, PREFIXES, ROLE_PASSED_BY, TAGS_WITH, VERSIONED
from infra.rehearsal.aws.iam.call_context import call_context, eks_tags, given_tags, tagged_at_creation
from infra.rehearsal.aws.operations import AwsError
from infra.rehearsal.aws.s3 import keys
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
    describes_all = service in DESCRIBED_AS_A_WHOLE and operation.startswith("Describe")
    resolver = _any_resource if describes_all else RESOLVERS.get(service)
    resources = resolver(world, operation, params) if resolver else None
    if service == "ec2" and ec2_resources.by_resource(operation):
        yield from _of_ec2(world, operation, params)
    elif service == "s3":
        yield from _of_s3(world, operation, action, resources or [], params)
    else:
        # One by one: conditions test the tags of a single resource.
        for single in [[part] for part in resources] if resources else [None]:
            context = call_context(world, service, operation, params, single)
            yield Need(action, single, context)
        if (service, operation) in TAGS_WITH and given_tags(params):
            new = [tagged_at_creation(operation, params, resources or ["*"])]
            yield Need(TAGS_WITH[service, operation], new, call_context(world, service, operation, params, new))
    for key_action, key, via in keys.key_needs(world, service, operation, params):
        yield Need(key_action, [key], via)
    if (service, operation) in ROLE_PASSED_BY:
        path, principal = ROLE_PASSED_BY[service, operation]
        role: Any = params
        for step in path.split("."):
            role = (role or {}).get(step)
        if role:
            role_arns = [role] if str(role).startswith("arn:") else iam_context.arns_of_role(world, role, params)
            yield Need("iam:PassRole", role_arns, {"iam:passedtoservice": [principal]})


def _of_s3(world: World, operation: str, action: str, resources: list[str], params: Parameters) -> Iterator[Need]:
    """Add the permissions for a version, a lock or tags, the bucket's key, and the source of a copy."""
    targets = params.get("Delete", {}).get("Objects", []) if operation == "DeleteObjects" else [params]
    for resource, target in zip(resources, targets, strict=True):
        context = call_context(world, "s3", operation, params, [resource])
        of_version = target.get("VersionId") and action.partition(":")[2] in VERSIONED
        if of_version:
            context["s3:versionid"] = [str(target["VersionId"])]
        yield Need(action.replace("Object", "ObjectVersion", 1) if of_version else action, [resource], context)
        for extra_action in sorted({need for name, need in BESIDE.items() if params.get(name) and "/" in resource}):
            yield Need(extra_action, [resource], context)
        if operation == "CreateBucket" and params.get("ObjectLockEnabledForBucket"):
            yield Need("s3:PutBucketObjectLockConfiguration", [resource], context)
            yield Need("s3:PutBucketVersioning", [resource], context)
    if operation == "CopyObject":
        source = str(params["CopySource"]).lstrip("/").partition("?")[0]
        yield Need("s3:GetObject", [f"arn:aws:s3:::{source}"], {})


def _of_ec2(world: World, operation: str, params: Parameters) -> Iterator[Need]:
    """Yield one permission per resource: the new one with the request's tags, each other with its own."""
    if operation == "RunInstances":
        params = ec2_resources.whole_launch(world, params)
    request_context = call_context(world, "ec2", operation, params, None)
    present = ec2_resources.present_arns(world, operation, params)
    needs = [Need(f"ec2:{operation}", [resource], context) for resource, context in present]
    if operation in ("CreateTags", "DeleteTags"):
        needs = [Need(need.action, need.resources, need.context | request_context) for need in needs]
    new_resources = ec2_resources.new_arns(world, operation, params)
    for resource in new_resources:
        marks = request_context
        if len(new_resources) > 1:
            marks = call_context(world, "ec2", operation, _of_kind(params, resource), None)
        needs.append(Need(f"ec2:{operation}", [resource], marks))
        if params.get("TagSpecifications") and marks:
            needs.append(Need("ec2:CreateTags", [resource], marks | {"ec2:createaction": [operation]}))
    yield from needs or [Need(f"ec2:{operation}", None, request_context)]
    if profile := params.get("IamInstanceProfile"):
        profiles = list(world.backend("iam").instance_profiles.values())
        matches = [
            candidate
            for candidate in profiles
            if profile.get("Name") == candidate.name or profile.get("Arn") == candidate.arn
        ]
        roles = [role.arn for match in matches for role in match.roles]
        yield Need("iam:PassRole", roles or None, {"iam:passedtoservice": ["ec2.amazonaws.com"]})


def _of_kind(params: Parameters, resource: str) -> Parameters:
    """Reduce the request's tags to those for new resources of this kind."""
    kind = resource.rpartition(":")[2].partition("/")[0]
    specifications = params.get("TagSpecifications") or []
    return params | {
        "TagSpecifications": [
            specification for specification in specifications if specification.get("ResourceType") == kind
        ]
    }


def launch(world: World, template: Parameters, overrides: Parameters) -> Iterator[Need]:
    """Yield the permissions of a launch from a template; `more` has further parameters of RunInstances."""
    yield from _of_ec2(world, "RunInstances", {"LaunchTemplate": template, **overrides})


def arn(world: World, service: str, path: str) -> str:
    return f"arn:aws:{service}:{world.region}:{world.account}:{path}"


def _s3(world: World, operation: str, params: Parameters) -> list[str] | None:
    if operation == "ListBuckets":
        return ["*"]
    bucket = f"arn:aws:s3:::{params.get('Bucket')}"
    if operation == "DeleteObjects":
        return [f"{bucket}/{item['Key']}" for item in params.get("Delete", {}).get("Objects", [])]
    return [f"{bucket}/{params['Key']}" if "Key" in params else bucket]


def _any_resource(world: World, operation: str, params: Parameters) -> list[str] | None:
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
        return [eks_tags(world).get((str(cluster), name), (arn(world, "eks", f"nodegroup/{cluster}/{name}/x"), {}))[0]]
    if "associationId" in params:
        return [arn(world, "eks", f"podidentityassociation/{cluster}/{params['associationId']}")]
    if "addonName" in params and operation != "CreateAddon":
        return [arn(world, "eks", f"addon/{cluster}/{params['addonName']}/x")]
    if "principalArn" in params and operation != "CreateAccessEntry":
        kind, _, name = str(params["principalArn"]).rpartition(":")[2].partition("/")
        return [arn(world, "eks", f"access-entry/{cluster}/{kind}/{world.account}/{name}/x")]
    return [arn(world, "eks", f"cluster/{cluster}")]


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


def _resolver(kind: str, *keys: str) -> Callable[[World, str, Parameters], list[str] | None]:
    """Make a resolver for one kind: `kind` is 'service:type/', `keys` the parameters with one or several names."""

    def resolve(world: World, operation: str, params: Parameters) -> list[str] | None:
        service, _, kind_prefix = kind.partition(":")
        for key in keys:
            if value := params.get(key):
                names = value if isinstance(value, list) else [value]
                return [
                    name if str(name).startswith("arn:") else arn(world, service, kind_prefix + str(name))
                    for name in names
                ]
        return None

    return resolve


def _fsx(world: World, operation: str, params: Parameters) -> list[str] | None:
    if association := params.get("AssociationId"):
        tagged_arns = world.backend("fsx").tagger.tags
        return [resource_arn for resource_arn in tagged_arns if resource_arn.endswith(association)] or [
            arn(world, "fsx", f"association/*/{association}")
        ]
    if operation == "CreateFileSystem":
        return [arn(world, "fsx", "file-system/*")]
    if operation == "CreateDataRepositoryAssociation":
        system = params.get("FileSystemId")
        return [arn(world, "fsx", f"file-system/{system}"), arn(world, "fsx", f"association/{system}/*")]
    return _resolver("fsx:file-system/", "FileSystemId", "ResourceARN")(world, operation, params)


def _scheduler(world: World, operation: str, params: Parameters) -> list[str] | None:
    if "Name" in params:
        parent = "schedule-group" if "ScheduleGroup" in operation else f"schedule/{params.get('GroupName', 'default')}"
        return [arn(world, "scheduler", f"{parent}/{params['Name']}")]
    return _resolver("scheduler:", "ResourceArn")(world, operation, params)


def _ssm(world: World, operation: str, params: Parameters) -> list[str] | None:
    if operation == "SendCommand":
        document = f"arn:aws:ssm:{world.region}::document/{params['DocumentName']}"
        return [
            document,
            *(arn(world, "ec2", f"instance/{instance_id}") for instance_id in params.get("InstanceIds", [])),
        ]
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
    secret = world.backend("secretsmanager").secrets.get(name)
    return [secret.arn] if secret else _resolver("secretsmanager:secret:", "SecretId", "Name")(world, operation, params)


def _parameter(world: World, name: str) -> str:
    """Return a parameter's ARN; AWS's public ones belong to no account."""
    owner = "" if name.startswith("/aws/service/") else world.account
    return f"arn:aws:ssm:{world.region}:{owner}:parameter/{name.lstrip('/')}"


def _balancers(world: World, operation: str, params: Parameters) -> list[str] | None:
    resource_arns = [params[key] for key in ("LoadBalancerArn", "TargetGroupArn") if params.get(key)]
    names = [params["LoadBalancerName"]] if params.get("LoadBalancerName") else []
    resource_arns += params.get("ResourceArns") or []
    return resource_arns + [arn(world, "elasticloadbalancing", f"loadbalancer/{name}") for name in names] or None


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
    return _resolver("ecr:repository/", "repositoryName", "repositoryNames", "resourceArn")(world, operation, params)


def _logs(world: World, operation: str, params: Parameters) -> list[str] | None:
    """Return the group, with `:log-stream:` at its end but for calls on tags (`LogGroup.arn` in botocore's model)."""
    groups = _resolver("logs:log-group:", "logGroupName", "resourceArn")(world, operation, params)
    if groups is None or "resourceArn" in params:
        return groups
    return [f"{group}:log-stream:{params.get('logStreamName', '')}" for group in groups]


DESCRIBED_AS_A_WHOLE = {"autoscaling", "elasticloadbalancing", "fsx"}
"""Services whose `Describe…` operations IAM asks about without a resource."""
RESOLVERS: dict[str, Callable[[World, str, Parameters], list[str] | None]] = {
    "s3": _s3,
    "ec2": _any_resource,
    "eks": _eks,
    "codebuild": build_context.resources,
    "eks-auth": lambda world, operation, params: [arn(world, "eks", f"cluster/{params.get('clusterName')}")],
    "autoscaling": _autoscaling,
    "iam": iam_context.resources,
    "kms": key_context.resources,
    "sns": _resolver("sns:", "TopicArn", "ResourceArn", "Name"),
    "budgets": _budgets,
    "elasticloadbalancing": _balancers,
    "events": _events,
    "monitoring": _resolver("cloudwatch:alarm:", "AlarmNames", "AlarmName"),
    "sts": lambda world, operation, params: [params["RoleArn"]] if "RoleArn" in params else ["*"],
    "scheduler": _scheduler,
    "secretsmanager": _secret,
    "ssm": _ssm,
    "ecr": _ecr,
    "fsx": _fsx,
    "logs": _logs,
    "tagging": _any_resource,
    "servicequotas": _any_resource,
    "ce": _any_resource,
}
