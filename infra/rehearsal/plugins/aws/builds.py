"""CodeBuild projects."""

from __future__ import annotations

from typing import Any

from infra.rehearsal.plugins.aws.call import Call, Resource
from infra.rehearsal.plugins.aws.table import LOCAL, Case, Input, Naming
from infra.rehearsal.plugins.wire import Props


def _request(call: Call) -> dict[str, Any]:
    tags = [{"key": key, "value": value} for key, value in sorted(call.tags.items())]
    return {"name": call.new["name"], **call.request(*call.resource.inputs), "tags": tags}


def create(call: Call) -> str:
    make, request = call.client().create_project, _request(call)
    # The role is new and may not be known yet.
    answer = call.retry(lambda: make(**request), "InvalidInputException", saying="CodeBuild is not authorized")
    return str(answer["project"]["arn"])


def update(call: Call) -> None:
    call.client().update_project(**_request(call))


def read(call: Call) -> Props | None:
    found = call.client().batch_get_projects(names=[call.id])["projects"]
    if not found:
        return None
    tags = {one["key"]: one["value"] for one in found[0].get("tags") or []}
    return {**call.observed(found[0]), "name": found[0]["name"], "arn": found[0]["arn"], "tags": tags}


def delete(call: Call) -> None:
    call.destroy(lambda: call.client().delete_project(name=call.state["name"]))


def retag(call: Call, fresh: dict[str, str], stale: list[str]) -> None:
    """A project's tags are set as a whole, with all else that it is."""
    call.client().update_project(**_request(call))


_VARIABLE = {"name": Input(required=True), "value": Input(required=True), "type": Input(default="PLAINTEXT")}
_CLOUDWATCH = {"status": Input(default="ENABLED"), "groupName": Input(), "streamName": Input()}

RESOURCES = (
    Resource(
        token="aws:codebuild/project:Project",
        service="codebuild",
        case=Case.CAMEL,
        inputs={
            "description": Input(),
            "serviceRole": Input(required=True),
            "buildTimeout": Input(api="timeoutInMinutes", default=60),
            "queuedTimeout": Input(api="queuedTimeoutInMinutes", default=480),
            "artifacts": Input(required=True, fields={"type": Input(required=True)}),
            "source": Input(required=True, fields={"type": Input(required=True), "buildspec": Input()}),
            "environment": Input(
                required=True,
                fields={
                    "type": Input(required=True),
                    "computeType": Input(required=True),
                    "image": Input(required=True),
                    "imagePullCredentialsType": Input(default="CODEBUILD"),
                    "privilegedMode": Input(default=False),
                    "environmentVariables": Input(fields=_VARIABLE),
                },
            ),
            "logsConfig": Input(fields={"cloudwatchLogs": Input(api="cloudWatchLogs", fields=_CLOUDWATCH)}),
        },
        outputs={"arn": LOCAL},
        naming=Naming(longest=255, prefix_property=None),
        identity=("name",),
        create=create,
        read=read,
        update=update,
        delete=delete,
        tagger=retag,
    ),
)
