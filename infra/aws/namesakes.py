"""Roles that have a new campaign's names already. IAM knows no regions: whoever has a name has it in all of them."""

from __future__ import annotations

from botocore.exceptions import ClientError

from infra.aws.account import Account
from infra.errors import UserError
from infra.spec.names import CAMPAIGN_TAG, REGION_TAG, Names


def refuse_namesake(account: Account, campaign: str) -> None:
    """Raises `UserError` where a role that a new campaign would make is there. Reads only.

    To be asked before anything is recorded or made: a campaign that fails at its roles has paid for its images, and
    its teardown then stands beside what belongs to another.
    """
    iam = account.client("iam")
    for name in Names(campaign).roles:
        try:
            tags = {one["Key"]: one["Value"] for one in iam.get_role(RoleName=name)["Role"].get("Tags", ())}
        except ClientError as error:
            if error.response["Error"]["Code"] != "NoSuchEntity":
                raise
            continue
        raise _taken(campaign, account.region, name, tags)


def _taken(campaign: str, region: str, role: str, tags: dict[str, str]) -> UserError:
    what = f"the name {campaign} is taken in this account: IAM roles hold for all regions, and one is there"
    if CAMPAIGN_TAG not in tags:
        return UserError(
            what,
            seen=f"role {role}, which no tag gives to a campaign",
            cure="give the campaign another name, or remove the role if nobody uses it",
        )
    home = tags.get(REGION_TAG)
    if home == region:
        cure = f"`bivouac sweep --orphans --region {region}` shows whether anybody looks after it"
    elif home:
        cure = f"first end that one: `bivouac down {campaign} --region {home}`"
    else:
        cure = f"first end that one where it runs: `bivouac down {campaign} --region REGION`"
    place = home or "a region that no tag tells"
    return UserError(
        what, seen=f"role {role} of campaign {tags[CAMPAIGN_TAG]} in {place}", cure=f"another name; or {cure}"
    )
