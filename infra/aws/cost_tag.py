"""State of the campaign's tag in AWS's bills: until it is active, the budget counts nothing and never acts."""

from __future__ import annotations

from enum import StrEnum

from botocore.exceptions import BotoCoreError, ClientError

from infra.aws.account import Account
from infra.spec.names import CAMPAIGN_TAG
from trainer.contract.frozen import Frozen

SERVICE = "ce"
"""Cost Explorer: one endpoint, in us-east-1, for all regions; botocore handles this."""
_LINKED = "Linked account"
"""AccessDeniedException: Failed to list Cost Allocation Tags: Linked account doesn't have access to cost allocation
tags. (https://github.com/hashicorp/terraform-provider-aws/issues/37636)"""
_COMMAND = (
    f"aws ce update-cost-allocation-tags-status --cost-allocation-tags-status TagKey={CAMPAIGN_TAG},Status=Active"
)


class Counting(StrEnum):
    """Treatment of the tag by the account's bills."""

    ACTIVE = "active"
    ACTIVATED = "activate"
    """Activated by us a moment ago."""
    INACTIVE = "inactive"
    UNLISTED = "unlisted"
    """AWS lists a key up to a day after the first resource has it, and cannot activate it before."""
    PAYERS = "payers"
    """The account is a member of an organization: only the paying account may read or activate."""
    UNKNOWN = "unknown"


_MEANS = {
    Counting.ACTIVE: ("the AWS budget counts this campaign: its tag is active in the account's bills", ""),
    Counting.ACTIVATED: (
        "the AWS budget counts this campaign from now on: its tag in the account's bills has just been activated",
        "it takes AWS up to a day; what was spent before is not counted",
    ),
    Counting.INACTIVE: (
        "the AWS budget counts NOTHING: no alarm, no freeze; its tag is inactive in the account's bills",
        f"`bivouac run` activates it if permitted; by hand: {_COMMAND}",
    ),
    Counting.UNLISTED: (
        "the AWS budget counts NOTHING yet: no alarm, no freeze; AWS's bills do not know its tag",
        f"they list it up to a day after the first resource carries it; activate it then: {_COMMAND}",
    ),
    Counting.PAYERS: (
        "the AWS budget may count NOTHING: only the organization's paying account sees and activates its tag",
        f"have the paying account run once, for all its accounts: {_COMMAND}",
    ),
    Counting.UNKNOWN: (
        "it is unknown whether the AWS budget counts anything: the state of its tag could not be read",
        "allow ce:ListCostAllocationTags and ce:UpdateCostAllocationTagsStatus, or look in the Billing console",
    ),
}


class CostTag(Frozen):
    """State of the campaign's tag as a cost allocation tag."""

    tag: str = CAMPAIGN_TAG
    counting: Counting
    error: str = ""
    """AWS's message, if it refused."""

    @property
    def counts(self) -> bool:
        return self.counting in (Counting.ACTIVE, Counting.ACTIVATED)

    def sentence(self) -> str:
        """Return the meaning for the budget, and the cure, for people."""
        means, cure = _MEANS[self.counting]
        detail = f" ({self.error})" if self.error and self.counting is not Counting.PAYERS else ""
        return f"{means}{detail}" + (f"; {cure}" if cure else "")


def cost_tag(account: Account) -> CostTag:
    """Read the tag's state. It never raises AWS's errors: the budget is a backstop, no reason to stop a run."""
    try:
        tags = account.client(SERVICE).list_cost_allocation_tags(TagKeys=[CAMPAIGN_TAG])["CostAllocationTags"]
    except (ClientError, BotoCoreError) as error:
        return _refusal(error)
    status = next((tag["Status"] for tag in tags if tag["TagKey"] == CAMPAIGN_TAG), None)
    if status is None:
        return CostTag(counting=Counting.UNLISTED)
    return CostTag(counting=Counting.ACTIVE if status == "Active" else Counting.INACTIVE)


def activate(account: Account) -> CostTag:
    """Return the tag's state after activating an inactive tag, if the account may."""
    tag = cost_tag(account)
    if tag.counting is not Counting.INACTIVE:
        return tag
    request = [{"TagKey": CAMPAIGN_TAG, "Status": "Active"}]
    try:
        errors = account.client(SERVICE).update_cost_allocation_tags_status(CostAllocationTagsStatus=request)["Errors"]
    except (ClientError, BotoCoreError) as error:
        refusal = _refusal(error)
        return refusal if refusal.counting is Counting.PAYERS else CostTag(counting=tag.counting, error=refusal.error)
    if errors:
        return CostTag(
            counting=tag.counting,
            error="; ".join(f"{tag_error['Code']}: {tag_error['Message']}" for tag_error in errors),
        )
    return CostTag(counting=Counting.ACTIVATED)


def _refusal(error: ClientError | BotoCoreError) -> CostTag:
    is_linked = isinstance(error, ClientError) and _LINKED in error.response["Error"].get("Message", "")
    return CostTag(counting=Counting.PAYERS if is_linked else Counting.UNKNOWN, error=str(error))
