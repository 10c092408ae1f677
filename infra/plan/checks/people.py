"""Rules about people: who enters the cluster, who is told, and how."""

from __future__ import annotations

from collections.abc import Iterator

from infra.plan.checks.finding import Case, Draft, error, warning
from infra.spec.campaign import Egress
from infra.spec.names import TOPICS, WEBHOOK_SECRETS


def one_role_per_principal(case: Case) -> Iterator[Draft]:
    """EKS has one access entry for each principal."""
    principals = set[str]()
    for number, grant in enumerate(case.spec.access):
        if grant.principal in principals:
            cure = "leave one line for each principal"
            yield error(f"access.{number}.principal", "stands here twice", seen=grant.principal, cure=cure)
        principals.add(grant.principal)


def access_entry_principal(case: Case) -> Iterator[Draft]:
    """Principals are of the campaign's account, and no service's own roles.

    https://docs.aws.amazon.com/eks/latest/userguide/creating-access-entries.html
    """
    for number, grant in enumerate(case.spec.access):
        field = f"access.{number}.principal"
        if grant.principal.split(":")[4] != case.spec.account:
            cure = f"name a role of {case.spec.account} which the other account's people may take"
            yield error(field, "is of another account than the campaign", seen=grant.principal, cure=cure)
        elif ":role/aws-service-role/" in grant.principal:
            yield error(field, "is a service's own role", seen=grant.principal, cure="name a role that people take")


def notice_topic(case: Case) -> Iterator[Draft]:
    """Roles may publish on topics `bivouac*` of the campaign's own account and region."""
    topic, spec = case.spec.notify.topic, case.spec
    if topic is not None and topic.split(":")[3:5] != [spec.region, spec.account]:
        cure = f"name a topic of {spec.account} in {spec.region}; it can pass notices on by a subscription"
        yield error("notify.topic", "is of another account or region", seen=topic, cure=cure)
    elif topic is not None and not topic.rpartition(":")[2].startswith(TOPICS):
        cure = f"make a topic {TOPICS}_..., with the same subscriptions: the permissions boundary leaves out all others"
        yield error("notify.topic", "takes no notices of a steward", seen=topic, cure=cure)


def notice_webhook(case: Case) -> Iterator[Draft]:
    """The steward has a way to the webhook and the routes, and their addresses lie in the campaign's own account."""
    spec = case.spec
    for field, source in spec.notify.addresses.items():
        if source.owner not in (None, (spec.region, spec.account)):
            cure = f"store it in {spec.account}, {spec.region}"
            yield error(field, "lies in another account or region", seen=source.place, cure=cure)
        elif not source.begins(WEBHOOK_SECRETS):
            cure = (
                f"store it as {WEBHOOK_SECRETS} or {WEBHOOK_SECRETS}...: the boundary of rights leaves out all others"
            )
            yield error(field, "may not be read by a steward", seen=source.place, cure=cure)
        if spec.network.egress is Egress.ENDPOINTS:
            cure = "let the topic call it, or use a NAT gateway"
            detail = "network.egress: endpoints"
            yield warning(field, "the steward has no way to the internet", seen=detail, cure=cure)
