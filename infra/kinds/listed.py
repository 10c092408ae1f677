"""Builders of definitions: listings whose items tell all, tags that are asked for one by one, removals of one call."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from botocore.exceptions import ClientError

from infra.aws.account import Account, every, says_missing
from infra.kinds.kind import Ask, ResourceKind, Step, unpriced
from infra.kinds.thing import Thing, thing

Listing = Callable[[Account], Iterator[Thing]]
TagsOf = Callable[[Account, Thing], Mapping[str, str]]
Remove = Callable[[Account, Thing], None]


def listed(
    name: str,
    step: Step,
    service: str,
    operation: str,
    result: str,
    id_key: str,
    name_key: str = "",
    *,
    remove: Remove | str,
    arn: str | re.Pattern[str],
    client: str = "",
    where: Mapping[str, Any] | None = None,
    ended: tuple[str, ...] = (),
    tags: TagsOf | None = None,
    **more: Any,
) -> ResourceKind:
    """A kind whose listing tells id, name, tags and state of each; `more` are further fields of the definition.

    `remove`: a function, or the operation that takes the id. `ended`: states in which AWS still lists what is no more;
    elsewhere a failed thing is there, and holds its subnet. `arn`: what comes after region and account, or a pattern.
    `tags`: asks for them where the listing does not tell them.
    """
    by, priced = client or service, more.get("price", unpriced) is not unpriced

    def listing(account: Account) -> Iterator[Thing]:
        for item in every(account.client(by), operation, result, **(where or {})):
            if state_of(item) not in ended:
                one = thing(item, str(item[id_key]), str(item.get(name_key) or ""))
                yield replace(one, traits=item) if priced else one

    return ResourceKind(
        name,
        service,
        arn_of(service, arn) if isinstance(arn, str) else arn,
        list=listing if tags is None else with_tags(listing, tags),
        step=step,
        remove=call(by, remove, id_key) if isinstance(remove, str) else remove,
        **more,
    )


def arn_of(service: str, rest: str) -> re.Pattern[str]:
    """What an ARN of the service holds; `rest` comes after region and account."""
    return re.compile(rf":{service}:[^:]*:\d*:{rest}")


def state_of(item: Mapping[str, Any]) -> str:
    """The state that an item of a listing tells, in lower case; empty without one."""
    state = item.get("State") or item.get("Status") or ""
    if isinstance(state, Mapping):
        state = state.get("Name") or state.get("Code") or ""
    return str(state).lower()


def with_tags(listing: Listing, tags: TagsOf) -> Listing:
    """A listing that tells no tags: they are asked for, one by one. What went away meanwhile is left out; what may not
    be read is judged by all else."""

    def with_them(account: Account) -> Iterator[Thing]:
        for one in listing(account):
            try:
                yield replace(one, tags=tags(account, one))
            except ClientError as error:
                if code_of(error) == "NoSuchTagSet":
                    yield one
                elif not says_missing(error):
                    yield replace(one, unread=code_of(error))

    return with_them


def code_of(error: ClientError) -> str:
    return str(error.response["Error"]["Code"])


def call(service: str, operation: str, parameter: str, **more: Any) -> Remove:
    """One call that takes the thing's id; a list of it where the parameter is a plural, as `InstanceIds`."""
    plural = parameter.endswith(("Ids", "Names"))

    def remove(account: Account, one: Thing) -> None:
        getattr(account.client(service), operation)(**{parameter: [one.id] if plural else one.id}, **more)

    return remove


def is_gone(error: ClientError) -> bool:
    """Whether a removal was refused because there is no such thing; each service says so in words of its own."""
    code = error.response.get("Error", {}).get("Code", "")
    return says_missing(error) or "Unknown" in code or (code == "ValidationError" and "not found" in str(error).lower())


def one_by_one(there: Callable[[Account, str], bool]) -> Ask:
    """One question for each ARN."""

    def ask(account: Account, arns: Any) -> set[str]:
        found = set()
        for arn in arns:
            try:
                if there(account, arn):
                    found.add(arn)
            except ClientError as error:
                if not says_missing(error):
                    raise
        return found

    return ask


def place_in(arn: str) -> str:
    """`nodegroup/<cluster>/<name>/...`: what comes after region and account."""
    return arn.split(":", 5)[-1]
