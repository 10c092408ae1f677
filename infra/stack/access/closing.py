"""The rights of the closer, which ends campaigns that nobody drives any more, and of who may start it.

The closer has what a teardown and its certificate take, and nothing else: it makes nothing, lends no role, and writes
into no bucket but the state's; people it tells what is due. Whoever starts it may name the campaign and the code, both
fixed here, and override nothing: a build's caller could otherwise run any command with the closer's role. The keys are
those of
https://docs.aws.amazon.com/codebuild/latest/userguide/action-context-keys.html
No Pulumi here.
"""

from __future__ import annotations

from infra.spec.names import CAMPAIGN_VARIABLE, CLOSER, CODE_VARIABLE
from infra.stack.access.policies import AccountPlace, Statement, actions, allow
from infra.stack.access.rights import rights

_VARIABLES = "codebuild:environment.environmentVariables"
FIXED = actions(
    "codebuild",
    "artifacts cache encryptionKey environment.certificate environment.computeType environment.fleet.fleetArn "
    "environment.image environment.imagePullCredentialsType environment.privilegedMode "
    "environment.registryCredential environment.type logsConfig secondaryArtifacts secondarySources serviceRole "
    "source source.auth.type source.buildspec source.location",
)
"""What a request to start the build must leave alone."""
LOG_GROUP = f"/aws/codebuild/{CLOSER}"


def closer(place: AccountPlace) -> list[Statement]:
    """Allow what `bivouac down` takes."""
    return [*rights("closer_looks", place), *rights("closer", place)]


def project_arn(place: AccountPlace) -> str:
    return place.arn("codebuild", f"project/{CLOSER}")


def asking(place: AccountPlace, campaign: str, code: str) -> Statement:
    """Allow to start the closer for this campaign, with this code, as its project says."""
    variables = {CAMPAIGN_VARIABLE: campaign, CODE_VARIABLE: code}
    return allow(
        ["codebuild:StartBuild"],
        [project_arn(place)],
        {
            # In an Allow, every test must hold, so that a request without them, or with others, is refused.
            "StringEquals": {f"{_VARIABLES}/{name}.value": value for name, value in variables.items()},
            "ForAllValues:StringEquals": {f"{_VARIABLES}.name": sorted(variables)},
            "Null": dict.fromkeys(FIXED, "true"),
        },
    )
