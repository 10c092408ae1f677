"""What a program sets no more is taken back at AWS, not sent again with its old value."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from infra.rehearsal.plugins.aws.call import ResourceCall
from infra.rehearsal.plugins.aws.catalogue import RESOURCES

GROUP, ROLE, TOPIC = "aws:cloudwatch/logGroup:LogGroup", "aws:iam/role:Role", "aws:sns/topic:Topic"
Calls = list[tuple[str, dict[str, Any]]]


def update(token: str, old: dict[str, Any], new: dict[str, Any]) -> Calls:
    resource = RESOURCES[token]
    client = Mock()
    clients: Any = SimpleNamespace(get=lambda *_: client, region="us-east-1", account="1")
    call = ResourceCall(resource.row, clients, "x", 0.0, threading.Event(), "the-id", new, old, dict(old))
    steps = [step for step in resource.row.update or () if resource.applies(call, step)]
    return [(step.call, resource.request(call, step)) for step in steps]


@pytest.mark.parametrize(
    ("token", "old", "new", "expected"),
    [
        (GROUP, {"retentionInDays": 30}, {}, [("delete_retention_policy", {"logGroupName": "the-id"})]),
        (GROUP, {"kmsKeyId": "k"}, {}, []),
        (GROUP, {}, {"kmsKeyId": "k"}, [("associate_kms_key", {"logGroupName": "the-id", "kmsKeyId": "k"})]),
        (ROLE, {"permissionsBoundary": "b"}, {}, [("delete_role_permissions_boundary", {"RoleName": "the-id"})]),
        (
            TOPIC,
            {"kmsMasterKeyId": "k"},
            {},
            [
                (
                    "set_topic_attributes",
                    {"TopicArn": "the-id", "AttributeName": "KmsMasterKeyId", "AttributeValue": ""},
                )
            ],
        ),
    ],
)
def test_an_input_that_is_gone(token: str, old: dict[str, Any], new: dict[str, Any], expected: Calls) -> None:
    assert update(token, {"name": "the-id", **old}, {"name": "the-id", **new}) == expected


def test_a_log_group_is_deleted_unless_it_is_to_stay() -> None:
    row = RESOURCES[GROUP]
    for skip, calls in ((False, ["delete_log_group"]), (True, [])):
        state = {"name": "g", "skipDestroy": skip}
        call = ResourceCall(row.row, Mock(region="us-east-1"), "x", 0.0, threading.Event(), "g", state, state, state)
        assert [step.call for step in row.row.delete if row.applies(call, step)] == calls
