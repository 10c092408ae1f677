"""The addresses of a spec on the account's topic."""

from __future__ import annotations

from infra.aws.account import Account, every
from infra.spec.campaign import Spec


def subscribe(account: Account, spec: Spec) -> list[str]:
    """Subscribe the addresses that are not yet; return them. Each gets one mail from AWS with a link to confirm.

    One that never confirmed stays as it is: AWS would write to it again, at each campaign.
    """
    if not spec.notify.email:
        return []
    sns, topic = account.client("sns"), spec.notices_topic
    listed = every(sns, "list_subscriptions_by_topic", "Subscriptions", TopicArn=topic)
    known = {one["Endpoint"] for one in listed if one["Protocol"] == "email"}
    new = [address for address in spec.notify.email if address not in known]
    for address in new:
        sns.subscribe(TopicArn=topic, Protocol="email", Endpoint=address)
    return new
