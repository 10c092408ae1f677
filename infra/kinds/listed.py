"""Builders of definitions: complete listings, tags that need one request each, removals by one call."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from botocore.exceptions import ClientError

from infra.aws.account import Account, every, says_missing
from infra.kinds.kind import Ask, ResourceKind, Step, no_price
from infra.kinds.thing import Thing, thing

Listing = Callable[[Account], Iterator[Thing]]
TagsOf = Callable[[Account, Thing], Mapping[str, str]]
Remove = Callable[[Account, Thing], None]


def listed_kind(
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
    request: Mapping[str, Any] | None = None,
    ended_states: tuple[str, ...] = (),
    tags: TagsOf | None = None,
    **fields: Any,
) -> ResourceKind:
    """Return a kind whose listing has id, name, tags and state; `fields` are further ones of the definition.

    `remove`: a function, or the operation that takes the id. `ended_states`: deleted resources that AWS still lists;
    other failed resources count as existing, since they hold their subnet. `arn`: the part after region and account, or
    a pattern. `tags`: reads them if the listing lacks them.
    """
    client_name, has_price = client or service, fields.get("price", no_price) is not no_price

    def listing(account: Account) -> Iterator[Thing]:
        for item in every(account.client(client_name), operation, result, **(request or {})):
            if state_of(item) not in ended_states:
                entry = thing(item, str(item[id_key]), str(item.get(name_key) or ""))
                yield replace(entry, traits=item) if has_price else entry

    return ResourceKind(
        name,
        service,
        arn_of(service, arn) if isinstance(arn, str) else arn,
        list=listing if tags is None else with_tags(listing, tags),
        step=step,
        remove=call(client_name, remove, id_key) if isinstance(remove, str) else remove,
        **fields,
    )


def arn_of(service: str, pattern: str) -> re.Pattern[str]:
    """Return a pattern for ARNs of a service; `pattern` follows region and account."""
    return re.compile(rf":{service}:[^:]*:\d*:{pattern}")


def state_of(item: Mapping[str, Any]) -> str:
    """Return the state of a listed item in lower case; empty if it has none."""
    state = item.get("State") or item.get("Status") or ""
    if isinstance(state, Mapping):
        state = state.get("Name") or state.get("Code") or ""
    return str(state).lower()


def with_tags(listing: Listing, tags: TagsOf) -> Listing:
    """Return the listing with tags, read one by one. Resources deleted meanwhile are omitted; one whose tags may not be
    read is judged by its other properties."""

    def with_them(account: Account) -> Iterator[Thing]:
        for entry in listing(account):
            try:
                yield replace(entry, tags=tags(account, entry))
            except ClientError as error:
                if code_of(error) == "NoSuchTagSet":
                    yield entry
                elif not says_missing(error):
                    yield replace(entry, unread=code_of(error))

    return with_them


def code_of(error: ClientError) -> str:
    return str(error.response["Error"]["Code"])


def call(service: str, operation: str, parameter: str, **arguments: Any) -> Remove:
    """Return a removal by one call with the id, as a list if the parameter is a plural such as `InstanceIds`."""
    plural = parameter.endswith(("Ids", "Names"))

    def remove(account: Account, entry: Thing) -> None:
        getattr(account.client(service), operation)(**{parameter: [entry.id] if plural else entry.id}, **arguments)

    return remove


def is_gone(error: ClientError) -> bool:
    """Return True if a removal failed because the resource does not exist; the codes differ by service."""
    code = error.response.get("Error", {}).get("Code", "")
    return says_missing(error) or "Unknown" in code or (code == "ValidationError" and "not found" in str(error).lower())


def one_by_one(exists: Callable[[Account, str], bool]) -> Ask:
    """Return a look-up with one request per ARN."""

    def ask(account: Account, arns: Any) -> set[str]:
        existing = set()
        for arn in arns:
            try:
                if exists(account, arn):
                    existing.add(arn)
            except ClientError as error:
                if not says_missing(error):
                    raise
        return existing

    return ask


def place_in(arn: str) -> str:
    """Return the part after region and account: `nodegroup/<cluster>/<name>/...`."""
    return arn.split(":", 5)[-1]
