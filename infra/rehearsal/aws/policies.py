"""IAM's policy evaluation: Action, Resource and Condition of identity policies, and the Principal of trust policies.

moto's own evaluator asks for permission on the resource "*" only and turns an unmet Condition into a denial, so that
a policy that names a resource or a condition can never allow anything. This one follows the logic of
https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic.html for one account.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

Document = Mapping[str, Any]
Context = Mapping[str, list[str]]
"""Condition keys in lower case -> values; an absent key is absent on AWS too."""


@dataclass(frozen=True)
class Question:
    """May this be done? `resource` is None where this emulation cannot name what the call is about."""

    action: str
    resource: str | None
    context: Context = field(default_factory=dict)


@lru_cache(maxsize=512)
def parse(document: str) -> Document:
    return json.loads(document)  # type: ignore[no-any-return]


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


@lru_cache(maxsize=4096)
def _pattern(text: str, ignore_case: bool) -> re.Pattern[str]:
    expression = re.escape(text).replace(r"\*", ".*").replace(r"\?", ".")
    return re.compile(expression, re.DOTALL | (re.IGNORECASE if ignore_case else 0))


def like(pattern: str, text: str, ignore_case: bool = False) -> bool:
    return _pattern(pattern, ignore_case).fullmatch(text) is not None


def allowed(documents: Iterable[Document], question: Question) -> bool:
    """An explicit deny wins, else any allow."""
    effects = {
        statement["Effect"]
        for document in documents
        for statement in listed(document["Statement"])
        if applies(statement, question)
    }
    return "Deny" not in effects and "Allow" in effects


def trusts(document: Document, principals: Iterable[str], action: str, context: Context) -> bool:
    """Whether a role's trust policy lets one of `principals` (ARNs or service names) take `action`."""
    wanted = set(principals)

    def concerned(statement: Mapping[str, Any]) -> bool:
        named = statement.get("Principal", {})
        names = ["*"] if named == "*" else [name for names in named.values() for name in listed(names)]
        return ("*" in names or bool(wanted & set(names))) and applies(statement, Question(action, None, context))

    effects = {statement["Effect"] for statement in listed(document["Statement"]) if concerned(statement)}
    return "Deny" not in effects and "Allow" in effects


def applies(statement: Mapping[str, Any], question: Question) -> bool:
    return (
        _concerns_action(statement, question.action)
        and _concerns_resource(statement, question)
        and all(
            _holds(operator, key, listed(values), question.context)
            for operator, tests in statement.get("Condition", {}).items()
            for key, values in tests.items()
        )
    )


def _concerns_action(statement: Mapping[str, Any], action: str) -> bool:
    if "NotAction" in statement:
        return not any(like(pattern, action, True) for pattern in listed(statement["NotAction"]))
    return any(like(pattern, action, True) for pattern in listed(statement.get("Action", [])))


def _concerns_resource(statement: Mapping[str, Any], question: Question) -> bool:
    if "Resource" not in statement and "NotResource" not in statement:
        return True
    patterns = listed(statement.get("Resource", statement.get("NotResource")))
    if question.resource is None:
        return _may_concern(statement, patterns, question.action)
    found = any(like(substitute(pattern, question.context), question.resource) for pattern in patterns)
    return found if "Resource" in statement else not found


def _may_concern(statement: Mapping[str, Any], patterns: list[str], action: str) -> bool:
    """The resource is not known: lenient, so that only a statement on everything denies."""
    if "*" in patterns:
        return "Resource" in statement
    service = action.partition(":")[0]
    return statement["Effect"] == "Allow" and any(pattern.split(":")[2:3] in ([service], ["*"]) for pattern in patterns)


def substitute(text: str, context: Context) -> str:
    """Policy variables such as ${aws:PrincipalTag/team}; an unknown one stays and matches nothing."""
    return re.sub(r"\$\{([^}]+)\}", lambda m: (context.get(m[1].lower()) or [m[0]])[0], text)


def _holds(operator: str, key: str, wanted: list[Any], context: Context) -> bool:
    name = operator
    every = name.startswith("ForAllValues:")
    name = name.removeprefix("ForAllValues:").removeprefix("ForAnyValue:")
    optional = name.endswith("IfExists")
    name = name.removesuffix("IfExists")
    seen = context.get(key.lower())
    if name == "Null":
        return (seen is None) == (str(wanted[0]).lower() == "true")
    if not seen:
        return optional or every or name in NEGATED
    texts = [substitute(str(value), context) for value in wanted]
    if name in NEGATED:
        return all(not any(_compare(NEGATED[name], text, value) for text in texts) for value in seen)
    results = [any(_compare(name, text, value) for text in texts) for value in seen]
    return all(results) if every else any(results)


NEGATED = {
    "StringNotEquals": "StringEquals",
    "StringNotEqualsIgnoreCase": "StringEqualsIgnoreCase",
    "StringNotLike": "StringLike",
    "ArnNotEquals": "ArnLike",
    "ArnNotLike": "ArnLike",
    "NumericNotEquals": "NumericEquals",
}


def _compare(operator: str, wanted: str, seen: str) -> bool:
    match operator:
        case "StringEquals":
            return wanted == seen
        case "StringEqualsIgnoreCase" | "Bool":
            return wanted.lower() == seen.lower()
        case "StringLike" | "ArnLike" | "ArnEquals":
            return like(wanted, seen)
        case "NumericEquals":
            return float(wanted) == float(seen)
        case "NumericLessThan":
            return float(seen) < float(wanted)
        case "NumericGreaterThan":
            return float(seen) > float(wanted)
        case "NumericLessThanEquals":
            return float(seen) <= float(wanted)
        case "NumericGreaterThanEquals":
            return float(seen) >= float(wanted)
        case "DateLessThan":
            return seen < wanted
        case "DateGreaterThan":
            return seen > wanted
    raise ValueError(f"the emulated IAM does not know the condition operator {operator!r}: add it in policies.py")
