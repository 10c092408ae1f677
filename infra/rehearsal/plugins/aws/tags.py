"""The tags of resources that exist: one retagging for all services, which differ in the names of its parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from infra.rehearsal.plugins.aws.call import Call, Tagger


def tag_list(tags: dict[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in sorted(tags.items())]


def tag_map(tags: list[dict[str, str]]) -> dict[str, str]:
    return {tag["Key"]: tag.get("Value", "") for tag in tags}


def by_id(call: Call) -> str:
    return call.id


def by_arn(call: Call) -> str:
    return str(call.state["arn"])


def retagging(
    named: str,
    of: Callable[[Call], str],
    noun: str = "resource",
    keys: str = "TagKeys",
    tags: str = "Tags",
    form: Callable[[dict[str, str]], Any] = tag_list,
) -> Tagger:
    """Return the function that retags by `tag_<noun>`. `named` is the parameter that names the resource; `keys` and
    `tags` are those of what goes and what comes."""

    def retag(call: Call, fresh: dict[str, str], stale: list[str]) -> None:
        client, one = call.client(), {named: of(call)}
        if stale:
            getattr(client, f"untag_{noun}")(**one, **{keys: stale})
        if fresh:
            getattr(client, f"tag_{noun}")(**one, **{tags: form(fresh)})

    return retag
