"""Lists everything in the account by all looks of the certificate: one per kind, and the tagging service's.

A look knows neither Pulumi's state nor what we think we made. The tagging service also shows what was deleted, for
minutes or hours: "All the tagged or previously tagged resources", says its documentation of GetResources; boto3 issue
3341 and aws-cli issue 4173 report hours. So a resource with a campaign's or cluster's tag is looked up at its own
service and left out if that no longer has it. Where no service can be asked it stays, with a note.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from botocore.exceptions import BotoCoreError, ClientError

from infra.aws.account import Account
from infra.kinds import CLUSTER_TAG, KINDS, ResourceKind, Thing, kind_named, tags_of
from infra.kinds.listed import place_in
from infra.spec.names import CAMPAIGN_TAG

STALE = "seen by the tagging service alone, which also shows what was deleted, for hours"
_OWN_LOOK = re.compile("|".join(kind.arn.pattern for kind in KINDS if kind.arn and kind.list and not kind.ask))
"""Kinds with their own look, which shows their state."""
_MARKS = (CAMPAIGN_TAG, CLUSTER_TAG, "eks:cluster-name")
"""Only a resource with one of these tags can be judged a campaign's by tag, so only these are looked up."""


def tagged_things(account: Account) -> Iterator[Thing]:
    """Yield resources of any kind that only the tagging service lists. Raises the first refusal of a service after
    yielding all the rest."""
    pages = account.client("resourcegroupstaggingapi").get_paginator("get_resources").paginate()
    listing = {row["ResourceARN"]: tags_of(row["Tags"]) for page in pages for row in page["ResourceTagMappingList"]}
    tags_by_arn = {arn: tags for arn, tags in listing.items() if not _OWN_LOOK.search(arn)}
    marked_arns = [arn for arn, tags in tags_by_arn.items() if any(key.startswith(_MARKS) for key in tags)]
    existing, unknowable, errors = _ask_services(account, marked_arns)
    for arn, tags in tags_by_arn.items():
        if arn not in marked_arns or arn in existing:
            yield Thing(arn, tags=tags)
        elif arn in unknowable:
            yield Thing(arn, tags=tags, doubt=f"{STALE}; {_by_hand(arn)}")
    if errors:
        raise errors[0]


def _ask_services(
    account: Account, arns: Sequence[str]
) -> tuple[set[str], set[str], list[ClientError | BotoCoreError]]:
    """Return those that exist, those that no service can be asked about, and the refusals."""
    existing, unknowable, errors = set[str](), set[str](), list[ClientError | BotoCoreError]()
    by_kind: dict[str, list[str]] = {}
    for arn in arns:
        name = next((kind.name for kind in KINDS if kind.ask and kind.arn and kind.arn.search(arn)), "")
        by_kind.setdefault(name, []).append(arn)
    for name, group in by_kind.items():
        kind = kind_named(name)
        if kind.ask is None:
            unknowable.update(group)
            continue
        # Ask in the service's batches: a refusal hides only one batch.
        for start in range(0, len(group), kind.batch):
            try:
                existing |= kind.ask(account, group[start : start + kind.batch])
            except (ClientError, BotoCoreError) as error:
                errors.append(error)
    return existing, unknowable, errors


def _by_hand(arn: str) -> str:
    return f"look for {place_in(arn)} in the console of {arn.split(':')[2]}, or wait"


ANYTHING = ResourceKind("anything tagged", "tagging", list=tagged_things, attributable=False)
"""Resources that only the tagging service lists; none of them can be removed."""
LOOKS: tuple[ResourceKind, ...] = (*(kind for kind in KINDS if kind.list is not None), ANYTHING)

Survey = dict[str, list[Thing]]
"""Kind -> resources."""


def survey_all(account: Account, kinds: Sequence[ResourceKind] = ()) -> tuple[Survey, dict[str, str]]:
    """Return kind -> everything listed, and kind -> why its listing is not complete; of all kinds unless given."""
    with ThreadPoolExecutor(8, thread_name_prefix="look") as pool:
        answers = list(pool.map(lambda look: _list(account, look), kinds := kinds or LOOKS))
    things_by_kind = {look.name: things for look, (things, _) in zip(kinds, answers, strict=True)}
    blind = {look.name: reason for look, (_, reason) in zip(kinds, answers, strict=True) if reason is not None}
    return things_by_kind, blind


def _list(account: Account, look: ResourceKind) -> tuple[list[Thing], str | None]:
    """Return what was listed and why the listing broke off, if it did."""
    things: list[Thing] = []
    try:
        for thing in look.things(account):
            things.append(thing)
    except (ClientError, BotoCoreError) as error:
        reason = error.response["Error"]["Code"] if isinstance(error, ClientError) else type(error).__name__
        return things, f"{reason}: {error}"[:300]
    return things, None
