"""The steps of docs/aws.md that a stranger types: rights for a new account, and the registry of the base image."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import boto3
import pytest

from infra.rehearsal.aws.world import World
from tests.rehearsal.acting import FOUNDER, policy
from tests.rehearsal.aws_account import Account as Client
from tests.root import ROOT

PAGE = (ROOT / "docs/aws.md").read_text()
ROLE = "bivouac_operator"
(REGION,) = re.findall("^export AWS_REGION=.*$", PAGE, re.MULTILINE)


def block(word: str) -> str:
    """The one block of shell lines with this word."""
    (found,) = [one for one in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) if word in one]
    return str(found)


def typed(world: World, script: str, key: str, secret: str, **more: str) -> str:
    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(world.work),
        "AWS_ENDPOINT_URL": world.endpoint_url,
        "AWS_PAGER": "",
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": secret,
    }
    done = subprocess.run(
        ["bash", "-euc", f"{REGION}\n{script}"], cwd=ROOT, env=environment | more, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.nightly
def test_the_pages_lines_make_a_role_that_pushes_the_base_image_and_has_no_more_rights(
    world: World, aws: Client
) -> None:
    aws.ecr.delete_repository(repositoryName="bivouac/base", force=True)  # an empty account has none
    typed(world, block("create-role"), *world.operator_key)
    attached = aws.iam.list_attached_role_policies(RoleName=ROLE)["AttachedPolicies"]
    written = {one["PolicyName"]: document(aws, one["PolicyArn"]) for one in attached}
    assert written == {f"bivouac_{name.rpartition('/')[2]}": policy(name) for name in FOUNDER}
    trust = aws.iam.get_role(RoleName=ROLE)["Role"]["AssumeRolePolicyDocument"]
    (statement,) = trust["Statement"] if isinstance(trust, dict) else json.loads(unquote(trust))["Statement"]
    assert statement["Principal"] == {"AWS": world.account} and statement["Action"] == "sts:AssumeRole"

    session = aws.sts.assume_role(RoleArn=f"arn:aws:iam::{world.account}:role/{ROLE}", RoleSessionName="stranger")[
        "Credentials"
    ]
    lines = [line.partition(" | ")[0] for line in block("create-repository").splitlines() if line.startswith("aws ecr")]
    as_role = (session["AccessKeyId"], session["SecretAccessKey"])
    told = typed(world, "\n".join(lines), *as_role, AWS_SESSION_TOKEN=session["SessionToken"])
    assert len(lines) == 2 and "bivouac/base" in told
    assert aws.ecr.describe_repositories(repositoryNames=["bivouac/base"])["repositories"]
    limited = boto3.Session(*as_role, session["SessionToken"], region_name=world.region)
    iam = limited.client("iam", endpoint_url=world.endpoint_url)
    with pytest.raises(iam.exceptions.ClientError, match="AccessDenied"):
        iam.create_user(UserName="stranger")


def document(aws: Client, arn: str) -> Any:
    version = aws.iam.get_policy(PolicyArn=arn)["Policy"]["DefaultVersionId"]
    found = aws.iam.get_policy_version(PolicyArn=arn, VersionId=version)["PolicyVersion"]["Document"]
    return found if isinstance(found, dict) else json.loads(unquote(found))
