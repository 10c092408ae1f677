"""EventBridge schedules."""

from __future__ import annotations

from typing import Any

from infra.rehearsal.plugins.aws.call import Call, Resource
from infra.rehearsal.plugins.aws.table import Conversion, Input, Naming
from infra.rehearsal.plugins.wire import Props


def _request(call: Call) -> dict[str, Any]:
    return {"Name": call.new["name"], **call.request(*call.resource.inputs)}


def create(call: Call) -> str:
    make, request = call.client().create_schedule, _request(call)
    # The role is new and may not be known yet.
    call.retry(lambda: make(**request), "ValidationException", saying="to assume the role")
    return f"{call.new.get('groupName', 'default')}/{call.new['name']}"


def update(call: Call) -> None:
    call.client().update_schedule(**_request(call))


def _key(call: Call) -> dict[str, str]:
    group, name = call.id.split("/", 1)
    return {"GroupName": group, "Name": name}


def read(call: Call) -> Props | None:
    answer = call.or_none(lambda: call.client().get_schedule(**_key(call)))
    return {**call.observed(answer), "name": _key(call)["Name"]} if answer else None


def delete(call: Call) -> None:
    call.destroy(lambda: call.client().delete_schedule(**_key(call)), "ConflictException")


_TARGET = {
    "arn": Input(required=True),
    "roleArn": Input(required=True),
    "input": Input(kind=Conversion.JSON),
    "deadLetterConfig": Input(fields={"arn": Input(required=True)}),
    "retryPolicy": Input(fields={"maximumEventAgeInSeconds": Input(), "maximumRetryAttempts": Input()}),
}

RESOURCES = (
    Resource(
        token="aws:scheduler/schedule:Schedule",
        service="scheduler",
        inputs={
            "groupName": Input(replaces=True, computed=True),
            "scheduleExpression": Input(required=True),
            "scheduleExpressionTimezone": Input(default="UTC"),
            "flexibleTimeWindow": Input(
                required=True, fields={"mode": Input(required=True), "maximumWindowInMinutes": Input()}
            ),
            "target": Input(required=True, fields=_TARGET),
            "description": Input(),
            "actionAfterCompletion": Input(computed=True),
            "startDate": Input(kind=Conversion.TIME),
            "endDate": Input(kind=Conversion.TIME),
            "state": Input(default="ENABLED"),
            "kmsKeyArn": Input(),
        },
        outputs={"arn": None},
        naming=Naming(longest=64),
        identity=("groupName", "name"),
        create=create,
        read=read,
        update=update,
        delete=delete,
    ),
)
