"""A call of CodeBuild for IAM: the project, and what the request says, by the keys of
https://docs.aws.amazon.com/codebuild/latest/userguide/action-context-keys.html
"""

from __future__ import annotations

from typing import Any

from infra.rehearsal.aws.iam.actions import BUILD_OVERRIDES
from infra.rehearsal.aws.world import World

Parameters = dict[str, Any]


def resources(world: World, operation: str, params: Parameters) -> list[str] | None:
    """Return the ARNs of the projects; listings know no resource."""
    if operation.startswith("List") and "projectName" not in params:
        return ["*"]
    project_names = [params.get("projectName") or params.get("name"), *(params.get("names") or params.get("ids") or ())]
    names = [str(name).rpartition("project/")[2].partition(":")[0] for name in project_names if name]
    return [f"arn:aws:codebuild:{world.region}:{world.account}:project/{name}" for name in names] or None


def context(params: Parameters) -> dict[str, list[str]]:
    values = {}
    for name, key in BUILD_OVERRIDES.items():
        if (value := params.get(name)) is not None:
            values[f"codebuild:{key}"] = ["true" if isinstance(value, (dict, list)) else str(value)]
    if variables := params.get("environmentVariablesOverride"):
        path = "codebuild:environment.environmentvariables"
        values[f"{path}.name"] = [variable["name"] for variable in variables]
        values |= {f"{path}/{variable['name'].lower()}.value": [variable["value"]] for variable in variables}
    return values
