"""Check that no role has a new campaign's names. IAM is global: a name is taken in all regions."""

from __future__ import annotations

from botocore.exceptions import ClientError

from infra.aws.account import Account
from infra.errors import UserError
from infra.spec.names import CAMPAIGN_TAG, REGION_TAG, Names


def refuse_namesake(account: Account, campaign: str) -> None:
    """Raise `UserError` if a role exists that a new campaign would create. Read-only.

    Call it before anything is recorded or created: a campaign that fails at its roles has paid for its images, and its
    teardown could meet another campaign's resources.
    """
    iam = account.client("iam")
    for name in Names(campaign).roles:
        try:
            tags = {tag["Key"]: tag["Value"] for tag in iam.get_role(RoleName=name)["Role"].get("Tags", ())}
        except ClientError as error:
            if error.response["Error"]["Code"] != "NoSuchEntity":
                raise
            continue
        raise _name_conflict(campaign, account.region, name, tags)


def _name_conflict(campaign: str, region: str, role: str, tags: dict[str, str]) -> UserError:
    message = f"the name {campaign} is taken in this account: IAM roles hold for all regions, and one has it"
    if CAMPAIGN_TAG not in tags:
        return UserError(
            message,
            seen=f"role {role}, without a campaign's tag",
            cure="give the campaign another name, or remove the role if nobody uses it",
        )
    home = tags.get(REGION_TAG)
    if home == region:
        cure = f"`bivouac sweep --orphans --region {region}` shows whether it is in use"
    elif home:
        cure = f"first end that campaign: `bivouac down {campaign} --region {home}`"
    else:
        cure = f"first end that campaign in its region: `bivouac down {campaign} --region REGION`"
    place = home or "an unknown region"
    return UserError(
        message, seen=f"role {role} of campaign {tags[CAMPAIGN_TAG]} in {place}", cure=f"another name; or {cure}"
    )
