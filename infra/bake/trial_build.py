"""The closer's trial build: an account in which no build has run has no closer.

AWS holds the builds of new accounts back, region by region: StartBuild answers "Cannot have more than 0 builds in queue
for the account", with a quota of 0 or with a usual one, in which case only its support lifts the hold.
https://docs.aws.amazon.com/codebuild/latest/userguide/limits.html
https://github.com/aws-ia/terraform-aws-control_tower_account_factory/issues/100
https://github.com/data-dot-all/dataall/issues/100 (the quota said 60)
https://github.com/awslabs/landing-zone-accelerator-on-aws/issues/1013
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from infra.aws.account import explained, says_missing
from infra.bake.sources import code_of, keep_code
from infra.errors import UserError
from infra.session.context import Context
from infra.spec import waits
from infra.spec.names import CLOSER, CODE_VARIABLE

HOLD = "AccountLimitExceededException"
QUOTA = "L-9D07B6EF"
"""Service Quotas' code of "Concurrently running builds for Linux/Small environment", the closer's."""


class TrialState(StrEnum):
    """What the project's builds say of the account."""

    NO_PROJECT = "there is no project yet"
    NONE = "no build has run"
    RUNS = "its first build runs"
    FAILED = "no build has succeeded"
    SUCCEEDED = "a build has run"


_FINAL = (TrialState.NO_PROJECT, TrialState.SUCCEEDED)


def try_closer(context: Context) -> str:
    """Start a build that does all but end a campaign, unless one has run or runs; return why there can be none, with
    what to ask AWS for. It takes about two minutes, which nobody waits for here."""
    try:
        codebuild, code = context.account.client("codebuild"), code_of(context)
        if code is None or _builds(codebuild) not in (TrialState.NONE, TrialState.FAILED):
            return ""
        keep_code(context, code)
        context.guard()
        variable = {"name": CODE_VARIABLE, "value": code, "type": "PLAINTEXT"}
        codebuild.start_build(projectName=CLOSER, environmentVariablesOverride=[variable])
    except (ClientError, BotoCoreError) as error:
        if isinstance(error, ClientError) and error.response["Error"]["Code"] == HOLD:
            return _what_to_ask(context.spec.region, error.response["Error"]["Message"])
        return f"the account's closer could not be tried: {explained(error)}"
    context.progress.note("the account's closer is tried: a build of two minutes, about 0.01 USD")
    return ""


def insist(context: Context) -> None:
    """Wait for a build that has run, before a campaign that will be left to the closer. Raises `UserError` if there is
    none. A project that does not exist yet is asked for again once the foundation stands."""
    refusal, state = try_closer(context), TrialState.RUNS
    for turn, _ in enumerate(context.turns(waits.TRIAL_BUILD.seconds, 5.0)):
        try:
            state = _builds(context.account.client("codebuild"))
        except (ClientError, BotoCoreError) as error:
            refusal = refusal or f"its builds could not be looked at: {explained(error)}"
        # A build that has just been started may be missing in the first listing.
        if refusal or state in _FINAL or (turn and state is not TrialState.RUNS):
            break
        context.progress.step("the account's closer is tried")
    if refusal or state not in _FINAL:
        raise UserError(
            "`run --detach` leaves the campaign to the account's closer, of which no build has run here",
            seen=refusal or f"{state.value}; its output is in the log group /aws/codebuild/{CLOSER}",
            cure="run it without `--detach`, on a machine that stays awake; or mend this first",
        )


def _builds(codebuild: Any) -> TrialState:
    try:
        pages = codebuild.get_paginator("list_builds_for_project").paginate(projectName=CLOSER, sortOrder="DESCENDING")
        newest = next(iter(pages))["ids"][:100]  # no more at once
    except ClientError as error:
        if says_missing(error):
            return TrialState.NO_PROJECT
        raise
    builds = codebuild.batch_get_builds(ids=newest)["builds"] if newest else []
    states = {build["buildStatus"] for build in builds}
    if "SUCCEEDED" in states:
        return TrialState.SUCCEEDED
    if "IN_PROGRESS" in states:
        return TrialState.RUNS
    return TrialState.FAILED if states else TrialState.NONE


def _what_to_ask(region: str, words: str) -> str:
    return (
        f"CodeBuild runs no builds in this account and region yet, so no closer ends campaigns: {words}. Look at the "
        f"quota {QUOTA} of codebuild in {region}, builds at a time on Linux/Small: where it is 0, ask Service Quotas "
        'for 1; where it is more, open a case "Account and billing" with AWS Support, which every plan has, and ask it '
        f"to lift the hold on CodeBuild in {region}. Until then stay at the driver: if it dies, schedules set the GPU "
        "nodes to zero and tell people, and the rest bills until `bivouac down`"
    )
