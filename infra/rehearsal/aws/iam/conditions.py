"""Conditions of IAM policies: every documented operator, the handling of missing keys, policy variables.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_condition_operators.html
https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_condition-single-vs-multi-valued-context-keys.html
https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_variables.html
"""

from __future__ import annotations

import base64
import ipaddress
import operator
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

Context = Mapping[str, list[str]]
"""Condition keys in lower case -> values; absent keys are absent on AWS too."""
EVERY, ANY, OPTIONAL = "ForAllValues:", "ForAnyValue:", "IfExists"
_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_LITERAL = {"*": "*", "?": "?", "$": "$"}
_NOTHING = re.compile(r"(?!)")


def is_met(
    operator: str, patterns: list[Any], values: list[str] | None, context: Context, denies: bool, variables: bool = True
) -> bool:
    """Test one condition against `values`, the key's values in the request (None or empty without the key).

    `denies` marks a Deny statement: only there a test holds that AWS leaves undefined.
    """
    name = operator.removeprefix(EVERY).removeprefix(ANY)
    optional, name = name.endswith(OPTIONAL), name.removesuffix(OPTIONAL)
    if name == "Null":
        return any((not values) == (str(value).lower() == "true") for value in patterns)
    positive = NEGATED.get(name)
    compare = COMPARES.get(positive or name)
    if compare is None:
        raise ValueError(f"the emulated IAM does not know the condition operator {operator!r}: add it in conditions.py")
    if not values:
        if operator.startswith(ANY):
            return optional
        return optional or operator.startswith(EVERY) or positive is not None
    variable_context = context if variables and (positive or name) in TAKE_VARIABLES else None

    def meets(value: str) -> bool:
        return any(compare(str(pattern), value, variable_context) for pattern in patterns) is (positive is None)

    if operator.startswith(EVERY):
        return all(map(meets, values))
    if operator.startswith(ANY):
        return any(map(meets, values))
    # IAM does not define a key with several values and no set operator.
    return meets(values[0]) if len(values) == 1 else denies


@lru_cache(maxsize=4096)
def _pattern(text: str, ignore_case: bool) -> re.Pattern[str]:
    return re.compile(_expression(text), re.DOTALL | (re.IGNORECASE if ignore_case else 0))


def _expression(text: str) -> str:
    return re.escape(text).replace(r"\*", ".*").replace(r"\?", ".")


def like(pattern: str, text: str, ignore_case: bool = False) -> bool:
    return _pattern(pattern, ignore_case).fullmatch(text) is not None


def pattern_of(text: str, context: Context | None, wild: bool = True) -> re.Pattern[str]:
    """Return a pattern for `text` with its variables filled in; wildcards in their values are literal. A variable
    without a value, or with several, matches nothing; `context` None means no variables."""
    plain: Callable[[str], str] = _expression if wild else re.escape
    if context is None or "${" not in text:
        return _pattern(text, False) if wild else re.compile(re.escape(text), re.DOTALL)
    expression, end = "", 0
    for match in _VARIABLE.finditer(text):
        value = _value(match[1], context)
        if value is None:
            return _NOTHING
        expression += plain(text[end : match.start()]) + re.escape(value)
        end = match.end()
    return re.compile(expression + plain(text[end:]), re.DOTALL)


def _value(variable: str, context: Context) -> str | None:
    """Resolve `aws:username`, `aws:PrincipalTag/team, 'none'` or one of the literals `*`, `?` and `$`."""
    if variable in _LITERAL:
        return _LITERAL[variable]
    key, comma, default = variable.partition(",")
    values = context.get(key.strip().lower()) or []
    if not values and comma:
        return default.strip().removeprefix("'").removesuffix("'")
    return values[0] if len(values) == 1 else None


def _equal(pattern: str, value: str, context: Context | None) -> bool:
    return pattern_of(pattern, context, wild=False).fullmatch(value) is not None


def _alike(pattern: str, value: str, context: Context | None) -> bool:
    return pattern_of(pattern, context).fullmatch(value) is not None


def is_of(pattern: str, arn: str, context: Context | None) -> bool:
    """Compare ARNs part by part, as IAM does: wildcards cross a colon only in the last part; missing parts match."""
    if pattern == "*":
        return True
    pattern_parts, arn_parts = _parts(pattern), arn.split(":", 5)
    pattern_parts += ["*"] * (6 - len(pattern_parts))
    return len(arn_parts) == 6 and all(
        pattern_of(pattern_part, context).fullmatch(arn_part) is not None
        for pattern_part, arn_part in zip(pattern_parts, arn_parts, strict=True)
    )


def _parts(pattern: str) -> list[str]:
    """Split at colons, except those in policy variables such as ${aws:username}."""
    parts, depth = [""], 0
    for position, sign in enumerate(pattern):
        depth += (sign == "{" and pattern[position - 1 : position] == "$") - (sign == "}" and depth > 0)
        if sign == ":" and not depth and len(parts) < 6:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def _arn(pattern: str, value: str, context: Context | None) -> bool:
    """Compare ARNs: wildcards count in both ArnEquals and ArnLike."""
    return is_of(pattern, value, context)


def _in_order(
    compare: Callable[[Any, Any], bool], read: Callable[[str], Any]
) -> Callable[[str, str, Context | None], bool]:
    def judge(limit: str, value: str, context: Context | None) -> bool:
        try:
            return compare(read(value), read(limit))
        except ValueError:
            return False

    return judge


def _moment(text: str) -> datetime:
    """Parse ISO 8601 or seconds since 1970."""
    if re.fullmatch(r"\d+(\.\d+)?", text) and len(text) > 4:
        return datetime.fromtimestamp(float(text), UTC)
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _address(network: str, value: str, context: Context | None) -> bool:
    try:
        return ipaddress.ip_address(value) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def _same_bytes(digest: str, value: str, context: Context | None) -> bool:
    return base64.b64decode(digest) == base64.b64decode(value)


_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "Equals": operator.eq, "LessThan": operator.lt, "LessThanEquals": operator.le,
    "GreaterThan": operator.gt, "GreaterThanEquals": operator.ge,
}  # fmt: skip
COMPARES: Mapping[str, Callable[[str, str, Context | None], bool]] = {
    "StringEquals": _equal,
    "StringEqualsIgnoreCase": lambda wanted, seen, context: (
        re.compile(pattern_of(wanted, context, wild=False).pattern, re.DOTALL | re.IGNORECASE).fullmatch(seen)
        is not None
    ),
    "StringLike": _alike,
    "ArnEquals": _arn,
    "ArnLike": _arn,
    "Bool": lambda wanted, seen, context: wanted.lower() == seen.lower(),
    **{
        f"{kind}{name}": _in_order(compare, read)
        for kind, read in (("Numeric", float), ("Date", _moment))
        for name, compare in _COMPARISONS.items()
    },
    "BinaryEquals": _same_bytes,
    "IpAddress": _address,
}
NEGATED = {
    "StringNotEquals": "StringEquals",
    "StringNotEqualsIgnoreCase": "StringEqualsIgnoreCase",
    "StringNotLike": "StringLike",
    "ArnNotEquals": "ArnEquals",
    "ArnNotLike": "ArnLike",
    "NumericNotEquals": "NumericEquals",
    "DateNotEquals": "DateEquals",
    "NotIpAddress": "IpAddress",
}
TAKE_VARIABLES = {"StringEquals", "StringEqualsIgnoreCase", "StringLike", "ArnEquals", "ArnLike", "Bool"}
