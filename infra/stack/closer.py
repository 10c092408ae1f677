"""The closer: a build of the account that runs `bivouac close NAME` when nobody drives a campaign any more.

It costs nothing at rest. No VPC: it reaches AWS's endpoints and PyPI from CodeBuild's own network, and enters no
cluster: what is in one goes with it (decision 0028).
"""

from __future__ import annotations

import json
from datetime import timedelta

import pulumi
import pulumi_aws as aws
import yaml
from pulumi import Input, ResourceOptions

from infra.spec.campaign import Spec
from infra.spec.names import CAMPAIGN_VARIABLE, CLOSER, CODE_VARIABLE, STATE_VARIABLE, Names, closer_code, closer_role
from infra.stack.access import policies
from infra.stack.access.closing import LOG_GROUP, closer
from infra.stack.access.identity import limited_role
from infra.stack.access.policies import CODEBUILD, AccountPlace

IMAGE = "aws/codebuild/standard:7.0"
"""A standard image, with Python and the AWS CLI: what the driver needs is too much for the steward's (decision 0018).
https://docs.aws.amazon.com/codebuild/latest/userguide/available-runtimes.html"""
PYTHON = "3.11"
LONGEST = timedelta(hours=8)
"""An archive of many hours is waited for by the next build."""
QUEUED = timedelta(minutes=60)
LOGS_DAYS = 30
EVERY = timedelta(minutes=30)
"""Between two looks. One takes perhaps two minutes, at 0.005 USD each (https://aws.amazon.com/codebuild/pricing/)."""
_TARGET = "arn:aws:scheduler:::aws-sdk:codebuild:startBuild"
REQUIREMENTS = "requirements/closer.txt"


def buildspec() -> str:
    """Return what a build does: fetch the campaign's code, prove its digest, install what the image lacks, close."""
    code, key = f"${CODE_VARIABLE}", closer_code(f"${CODE_VARIABLE}")
    entry = '#!/bin/sh\\nexec python -m infra.cli.main "$@"\\n'
    install = [
        f'aws s3 cp --only-show-errors "s3://${STATE_VARIABLE}/{key}" code.zip',
        f'echo "{code}  code.zip" | sha256sum --check --quiet',
        "python -m zipfile -e code.zip .",
        # An image of our own has them already.
        'python -c "import boto3, lightkube, pulumi_aws, pulumi_kubernetes, typer" 2> /dev/null || '
        f"python -m pip install --quiet --require-hashes --no-deps --only-binary :all: -r {REQUIREMENTS}",
        # `bivouac` is also kubectl's plugin for credentials.
        f"mkdir -p bin && printf '{entry}' > bin/bivouac && chmod +x bin/bivouac",
    ]
    build = [
        'export PATH="$PWD/bin:$PATH" PYTHONPATH="$PWD"',
        # Without a campaign it is a trial: the role, the code, the packages and the engine are there.
        f'if [ -n "${CAMPAIGN_VARIABLE}" ]; then bivouac close "${CAMPAIGN_VARIABLE}" --region "$AWS_REGION"; '
        'else python -c "import infra.cli.end.close; from infra import target; target.have_engine()"; fi',
    ]
    return yaml.safe_dump(
        {
            "version": 0.2,
            "phases": {
                "install": {"runtime-versions": {"python": PYTHON}, "on-failure": "ABORT", "commands": install},
                "build": {"commands": build},
            },
        },
        sort_keys=False,
        width=1000,
    )


class Closer(pulumi.ComponentResource):
    """The foundation's project, its role and its log group."""

    def __init__(
        self, place: AccountPlace, boundary: Input[str], state_bucket: str, opts: ResourceOptions | None = None
    ) -> None:
        """`boundary`: ARN of the permissions boundary."""
        super().__init__("bivouac:infra:Closer", "closer", None, opts)
        child = ResourceOptions(parent=self)
        name, trust, longest_s = (
            closer_role(place.region),
            policies.trust(CODEBUILD, place),
            int(LONGEST.total_seconds()),
        )
        role, policy = limited_role("closer", name, trust, boundary, closer(place), child, max_session_s=longest_s)
        logs = aws.cloudwatch.LogGroup("closer", name=LOG_GROUP, retention_in_days=LOGS_DAYS, opts=child)
        self.project = aws.codebuild.Project(
            "closer",
            name=CLOSER,
            description="Tears down and certifies campaigns that nobody drives any more",
            service_role=role.arn,
            build_timeout=longest_s // 60,
            queued_timeout=int(QUEUED.total_seconds() // 60),
            artifacts={"type": "NO_ARTIFACTS"},
            source={"type": "NO_SOURCE", "buildspec": buildspec()},
            environment={
                "type": "LINUX_CONTAINER",
                "compute_type": "BUILD_GENERAL1_SMALL",
                "image": IMAGE,
                "image_pull_credentials_type": "CODEBUILD",
                "privileged_mode": False,
                "environment_variables": [{"name": STATE_VARIABLE, "value": state_bucket, "type": "PLAINTEXT"}],
            },
            logs_config={"cloudwatch_logs": {"status": "ENABLED", "group_name": logs.name}},
            opts=ResourceOptions(parent=self, depends_on=[policy]),
        )
        self.register_outputs({"project": self.project.name})


class ClosersClock(pulumi.ComponentResource):
    """A campaign's schedule that starts the closer, which ends what is over and nobody drives."""

    def __init__(self, spec: Spec, code: str, role: aws.iam.Role, opts: ResourceOptions) -> None:
        """`role`: may start the closer for this campaign, with this code."""
        super().__init__("bivouac:infra:ClosersClock", "closers-clock", None, ResourceOptions(parent=opts.parent))
        self.schedule = aws.scheduler.Schedule(
            "closer",
            name=Names(spec).closer_schedule,
            description=f"Ends campaign {spec.campaign} once nobody drives it and it is over",
            schedule_expression=f"rate({int(EVERY.total_seconds() // 60)} minutes)",
            flexible_time_window={"mode": "OFF"},
            target={
                "arn": _TARGET,
                "role_arn": role.arn,
                "input": start(spec.campaign, code),
                "retry_policy": {"maximum_event_age_in_seconds": 600, "maximum_retry_attempts": 10},
            },
            opts=ResourceOptions(parent=self, depends_on=opts.depends_on),
        )
        self.register_outputs({"schedule": self.schedule.name})


def start(campaign: str, code: str) -> str:
    """Return a request of `StartBuild` in Scheduler's Pascal case."""
    values = {CAMPAIGN_VARIABLE: campaign, CODE_VARIABLE: code}
    variables = [{"Name": name, "Value": value, "Type": "PLAINTEXT"} for name, value in values.items()]
    return json.dumps({"ProjectName": CLOSER, "EnvironmentVariablesOverride": variables}, sort_keys=True)
