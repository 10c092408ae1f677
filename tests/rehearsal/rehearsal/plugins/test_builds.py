"""The closer's project through the plugin, without an engine: what is made is what is read, changed and removed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from infra.rehearsal.aws.world import World
from infra.rehearsal.plugins.aws.package import AwsPackage
from infra.rehearsal.plugins.package import Request, ResourceGone
from infra.stack.access import policies
from infra.stack.access.policies import CODEBUILD, AccountPlace
from tests.rehearsal.aws_account import Account, signed_in

TOKEN = "aws:codebuild/project:Project"


@pytest.fixture
def package(world: World, monkeypatch: pytest.MonkeyPatch) -> AwsPackage:
    signed_in(monkeypatch, world)
    aws_package = AwsPackage()
    aws_package.configure({"region": world.region, "defaultTags": {"tags": {"bivouac:foundation": "true"}}})
    return aws_package


def project(role: str) -> dict[str, Any]:
    return {
        "name": "bivouac_closer",
        "description": "ends campaigns",
        "serviceRole": role,
        "buildTimeout": 480,
        "artifacts": {"type": "NO_ARTIFACTS"},
        "source": {"type": "NO_SOURCE", "buildspec": "version: 0.2\nphases:\n  build:\n    commands: ['true']\n"},
        "environment": {
            "type": "LINUX_CONTAINER",
            "computeType": "BUILD_GENERAL1_SMALL",
            "image": "aws/codebuild/standard:7.0",
            "privilegedMode": False,
            "environmentVariables": [{"name": "BIVOUAC_STATE", "value": "bucket", "type": "PLAINTEXT"}],
        },
        "logsConfig": {"cloudwatchLogs": {"status": "ENABLED", "groupName": "/aws/codebuild/bivouac_closer"}},
    }


def test_a_project_is_read_as_it_was_made_changed_in_place_and_removed(
    world: World, aws: Account, package: AwsPackage
) -> None:
    trust = policies.trust(CODEBUILD, AccountPlace(world.account, world.region))
    role = aws.iam.create_role(RoleName="closer", AssumeRolePolicyDocument=trust)["Role"]["Arn"]
    request = Request(urn="", type=TOKEN, name="closer", inputs=project(role))
    inputs, failures = package.check(request)
    assert not failures and inputs["tags"]["bivouac:foundation"] == "true"
    id, state = package.create(replace(request, inputs=inputs))
    assert id == state["arn"] == f"arn:aws:codebuild:{world.region}:{world.account}:project/bivouac_closer"
    there = replace(request, id=id, inputs=inputs, old_inputs=inputs, state=state)
    _, seen, _ = package.read(there)
    assert package.diff(replace(there, inputs=seen))[0] == [], "a second look finds nothing to change"

    wider = {**inputs, "buildTimeout": 300, "tags": {**inputs["tags"], "more": "1"}}
    changes, _ = package.diff(replace(there, inputs=wider))
    assert {change.path for change in changes} == {"buildTimeout", "tags"}
    assert not any(change.replaces for change in changes)
    package.update(replace(there, inputs=wider))
    (found,) = aws.codebuild.batch_get_projects(names=["bivouac_closer"])["projects"]
    assert found["timeoutInMinutes"] == 300 and {"key": "more", "value": "1"} in found["tags"]

    package.delete(there)
    with pytest.raises(ResourceGone):
        package.read(there)
