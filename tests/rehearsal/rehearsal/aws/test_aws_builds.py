"""The emulated CodeBuild: a build is a process with its project's role, started only as the project says."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.rehearsal.aws.iam import access
from infra.rehearsal.aws.world import World
from infra.stack.access import closing, policies
from infra.stack.access.policies import CODEBUILD, AccountPlace
from tests.rehearsal.aws_account import Account, code_of, make_user, until

CODE = "a" * 64


def buildspec(*commands: str) -> str:
    return json.dumps({"version": 0.2, "phases": {"build": {"commands": list(commands)}}})


@pytest.fixture(scope="module")
def role(world: World, aws: Account) -> str:
    where = AccountPlace(world.account, world.region)
    trust = policies.trust(CODEBUILD, where)
    arn = aws.iam.create_role(RoleName="bivouac_closer_us-east-1", AssumeRolePolicyDocument=trust)["Role"]["Arn"]
    return str(arn)


def project(role: str, spec: str, **changes: Any) -> dict[str, Any]:
    return {
        "name": "bivouac_closer",
        "source": {"type": "NO_SOURCE", "buildspec": spec},
        "artifacts": {"type": "NO_ARTIFACTS"},
        "environment": {
            "type": "LINUX_CONTAINER", "computeType": "BUILD_GENERAL1_SMALL", "image": "aws/codebuild/standard:7.0",
            "environmentVariables": [{"name": "BIVOUAC_STATE", "value": "the-bucket", "type": "PLAINTEXT"}],
        },
        "serviceRole": role,
    } | changes  # fmt: skip


@pytest.fixture
def made(aws: Account, role: str) -> Any:
    """Makes the project, with these commands."""

    def make(*commands: str) -> None:
        aws.codebuild.create_project(**project(role, buildspec(*commands)))

    yield make
    aws.codebuild.delete_project(name="bivouac_closer")


def variables(**given: str) -> list[dict[str, str]]:
    return [{"name": name, "value": value, "type": "PLAINTEXT"} for name, value in given.items()]


def ended(aws: Account, id: str) -> str:
    def look() -> str | None:
        (build,) = aws.codebuild.batch_get_builds(ids=[id])["builds"]
        return build["buildStatus"] if build["buildComplete"] else None

    return str(until(look))


def said(world: World, id: str) -> str:
    return Path(world.work, "aws", "builds", id.rpartition(":")[2], "log").read_text()


def test_a_build_runs_its_projects_commands_in_one_shell_as_its_projects_role(
    world: World, aws: Account, made: Callable[..., None]
) -> None:
    made(
        "export HEARD=$BIVOUAC_CAMPAIGN",
        'echo "$HEARD of $BIVOUAC_STATE in $(basename "$PWD")"',
        "echo $AWS_ACCESS_KEY_ID",
    )
    id = aws.codebuild.start_build(
        projectName="bivouac_closer", environmentVariablesOverride=variables(BIVOUAC_CAMPAIGN="train")
    )["build"]["id"]
    assert ended(aws, id) == "SUCCEEDED", said(world, id)
    first, key = said(world, id).split("\n")[:2]
    assert first == "train of the-bucket in src"
    assert access.arn_of_key(world, key).startswith(
        f"arn:aws:sts::{world.account}:assumed-role/bivouac_closer_us-east-1/AWSCodeBuild-"
    )


def test_a_build_fails_with_the_first_command_that_does(world: World, aws: Account, made: Callable[..., None]) -> None:
    made("false", "echo never")
    id = aws.codebuild.start_build(projectName="bivouac_closer")["build"]["id"]
    assert ended(aws, id) == "FAILED" and "never" not in said(world, id)


def test_a_project_that_codebuild_would_refuse_is_refused(world: World, aws: Account, role: str) -> None:
    make, good = aws.codebuild.create_project, buildspec("true")
    stranger = aws.iam.create_role(
        RoleName="stranger", AssumeRolePolicyDocument=policies.trust("ec2.amazonaws.com", AccountPlace("1", "x"))
    )["Role"]["Arn"]
    for wrong in (
        {"serviceRole": stranger},
        {"source": {"type": "NO_SOURCE"}},
        {"source": {"type": "NO_SOURCE", "buildspec": "phases: ["}},
        {"timeoutInMinutes": 3000},
        {"name": "with a space"},
    ):
        refused = partial(make, **project(role, good, **wrong))
        assert code_of(refused) == "InvalidInputException", wrong
    missing = partial(aws.codebuild.start_build, projectName="bivouac_closer")
    assert code_of(missing) == "ResourceNotFoundException"


def test_who_may_start_the_closer_may_name_one_campaign_and_override_nothing(
    world: World, aws: Account, made: Callable[..., None]
) -> None:
    made("true")
    where = AccountPlace(world.account, world.region)
    steward = Account(world, *make_user(world, "asking", closing.asking(where, "train", CODE)))

    def start(campaign: str = "train", code: str = CODE, more: dict[str, str] | None = None, **changes: Any) -> Any:
        given = variables(BIVOUAC_CAMPAIGN=campaign, BIVOUAC_CODE=code, **(more or {}))
        return steward.codebuild.start_build(
            **{"projectName": "bivouac_closer", "environmentVariablesOverride": given} | changes
        )

    assert ended(aws, start()["build"]["id"]) == "SUCCEEDED"
    for wrong in (
        lambda: start("another"),
        lambda: start(code="b" * 64),
        lambda: start(more={"BASH_ENV": "/tmp/mine"}),
        lambda: start(environmentVariablesOverride=variables(BIVOUAC_CAMPAIGN="train")),
        lambda: start(environmentVariablesOverride=[]),
        lambda: start(buildspecOverride=buildspec("env")),
        lambda: start(imageOverride="aws/codebuild/standard:6.0"),
        lambda: start(sourceTypeOverride="S3", sourceLocationOverride="mine/code.zip"),
        lambda: start(serviceRoleOverride=f"arn:aws:iam::{world.account}:role/admin"),
        lambda: start(privilegedModeOverride=True),
        lambda: steward.codebuild.batch_get_projects(names=["bivouac_closer"]),
    ):
        with pytest.raises(ClientError, match="not authorized to perform: codebuild:"):
            wrong()
