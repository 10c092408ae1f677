"""IAM's policy evaluation: Action, Resource, Condition and Principal of policies, as IAM documents them.

moto's own evaluator checks only the resource "*" and turns an unmet Condition into a denial, so that a policy with a
resource or a condition can never allow anything. This one follows the logic of
https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic.html for one account. If the
emulation cannot know AWS's result, an Allow does not hold and a Deny does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from infra.rehearsal.aws.iam.conditions import Context, is_met, is_of, like

Document = Mapping[str, Any]
Effect = Literal["Allow", "Deny"]
VARIABLES_SINCE = "2012-10-17"
"""Documents of an older version, or of none, have no policy variables."""


@dataclass(frozen=True)
class Question:
    """A request to evaluate. `resource` is None if the emulation does not know the call's resource."""

    action: str
    resource: str | None
    context: Context = field(default_factory=dict)


@lru_cache(maxsize=512)
def parse(document: str) -> Document:
    return json.loads(document)  # type: ignore[no-any-return]


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def verdict(documents: Iterable[Document], question: Question) -> Effect | None:
    """Return Deny if any statement denies, else Allow if any allows, else None."""
    effects = {
        statement["Effect"]
        for document in documents
        for statement in listed(document["Statement"])
        if applies(statement, question, document.get("Version") == VARIABLES_SINCE)
    }
    return _strongest(effects)


def allowed(documents: Iterable[Document], question: Question) -> bool:
    return verdict(documents, question) == "Allow"


def trusts(document: Document, principals: Iterable[str], action: str, context: Context) -> bool:
    """Return True if a resource's policy (a role's trust, a topic's) lets one of `principals` (ARNs, services) act."""
    return said_to(document, principals, Question(action, "*", context), entire=True) == "Allow"


def said_to(document: Document, principals: Iterable[str], question: Question, entire: bool = False) -> Effect | None:
    """Return a resource policy's verdict for any of `principals`; `entire` ignores the resources it names."""
    names = set(principals)
    variables = document.get("Version") == VARIABLES_SINCE
    effects = {
        statement["Effect"]
        for statement in listed(document["Statement"])
        if concerns_principal(statement, names)
        and applies({**statement, "Resource": "*"} if entire else statement, question, variables)
    }
    return _strongest(effects)


def concerns_principal(statement: Mapping[str, Any], names: set[str]) -> bool:
    """Return True if a statement is about one of `names`. `"AWS": "*"` means an account's principals, no service."""
    if "NotPrincipal" in statement:
        return not _names_one_of(statement["NotPrincipal"], names)
    return _names_one_of(statement.get("Principal", {}), names)


def _names_one_of(principal: Any, principals: set[str]) -> bool:
    if principal == "*":
        return True
    services = {name for name in principals if name.endswith(".amazonaws.com")}
    by_kind = {kind: set(listed(names)) for kind, names in principal.items()}
    people = by_kind.get("AWS", set())
    return bool(services & by_kind.get("Service", set())) or bool(
        (principals - services) & people or ("*" in people and principals - services)
    )


def _strongest(effects: set[str]) -> Effect | None:
    if "Deny" in effects:
        return "Deny"
    return "Allow" if "Allow" in effects else None


def applies(statement: Mapping[str, Any], question: Question, variables: bool = True) -> bool:
    denies = statement["Effect"] == "Deny"
    return (
        _concerns_action(statement, question.action)
        and _concerns_resource(statement, question, variables)
        and all(
            is_met(operator, listed(values), question.context.get(key.lower()), question.context, denies, variables)
            for operator, tests in statement.get("Condition", {}).items()
            for key, values in tests.items()
        )
    )


def _concerns_action(statement: Mapping[str, Any], action: str) -> bool:
    if "NotAction" in statement:
        return not any(like(pattern, action, True) for pattern in listed(statement["NotAction"]))
    return any(like(pattern, action, True) for pattern in listed(statement.get("Action", [])))


def _concerns_resource(statement: Mapping[str, Any], question: Question, variables: bool) -> bool:
    denies = statement["Effect"] == "Deny"
    if "Resource" not in statement and "NotResource" not in statement:
        return denies
    patterns = listed(statement.get("Resource", statement.get("NotResource")))
    if question.resource is None:
        return denies or ("Resource" in statement and "*" in patterns)
    resource_arn, context = question.resource, question.context if variables else None
    matches = any(is_of(pattern, resource_arn, context) for pattern in patterns)
    return matches if "Resource" in statement else not matches
