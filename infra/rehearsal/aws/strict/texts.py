"""Lengths and patterns of a request's texts, by the models in botocore.

They hold on a soft site too: they are AWS's interface, no delay or quota.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import Any

from moto.core.model import OperationModel

from infra.rehearsal.aws.answers import RequestRefused

_GROUP = r"[a-zA-Z0-9 ._\-:/()#,@\[\]+=&;{}!$*]*"
_TAG = r"[\p{L}\p{Z}\p{N}_.:/=+\-@]*"
DOCUMENTED = {
    # botocore's documentation of the members.
    ("ec2", "CreateSecurityGroup.Description"): (_GROUP, 255, "InvalidParameterValue"),
    ("ec2", "CreateSecurityGroup.GroupName"): (_GROUP, 255, "InvalidParameterValue"),
    ("ec2", "CreateImage.Name"): (r"[a-zA-Z0-9()\[\] ./\-'@_]{3,}", 128, "InvalidAMIName.Malformed"),
    ("ec2", "Tags.Key"): (".+", 127, "InvalidParameterValue"),
    ("ec2", "Tags.Value"): ("(?s:.*)", 256, "InvalidParameterValue"),
    ("sns", "Publish.Subject"): (r"[^\x00-\x1f\x7f]+", 99, "InvalidParameter"),
    # The pattern of `S3Tag` in S3 Control's model; a refusal: alphagov/govuk-infrastructure, pull request 1175.
    ("s3", "TagSet.Key"): (_TAG, 128, "InvalidTag"),
    ("s3", "TagSet.Value"): (_TAG, 256, "InvalidTag"),
}
"""Service and member -> pattern, most characters, and error code, where the service's model has no pattern."""

_CODES = {"query": "ValidationError", "ec2": "InvalidParameterValue", "rest-xml": "InvalidArgument"}
"""Protocol -> code of a service whose operations declare none."""


def refuse_unfit(service: str, operation: OperationModel, params: dict[str, Any]) -> None:
    """Raise RequestRefused for the first text that its member does not take, in the words of most services."""
    for path, shape, value in _values(operation.input_shape, params, (operation.name,)):
        limits = shape.metadata
        pattern, maximum, code = limits.get("pattern"), limits.get("max"), _code(operation)
        names = [part for part in path if part != "member" and not part.isdigit()]
        pattern, maximum, code = DOCUMENTED.get((service, ".".join(names[-2:])), (pattern, maximum, code))
        if maximum is not None and len(value) > maximum:
            broken = f"Member must have length less than or equal to {maximum}"
        elif isinstance(value, str) and len(value) < limits.get("min", 0):
            broken = f"Member must have length greater than or equal to {limits['min']}"
        elif isinstance(value, str) and pattern and not _compile(pattern).fullmatch(value):
            broken = f"Member must satisfy regular expression pattern: {pattern}"
        else:
            continue
        place = ".".join(part[:1].lower() + part[1:] for part in path[1:])
        text = "***" if limits.get("sensitive") else value
        message = f"1 validation error detected: Value '{text}' at '{place}' failed to satisfy constraint: {broken}"
        raise RequestRefused(code, message)


def _values(shape: Any, value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yield every text, list and map of a request."""
    kind = shape.type_name if shape else None
    if kind == "structure" and isinstance(value, dict):
        for name, inner in value.items():
            yield from _values(shape.members.get(name), inner, (*path, name))
    elif kind == "list" and isinstance(value, list):
        yield path, shape, value
        for number, inner in enumerate(value, 1):
            yield from _values(shape.member, inner, (*path, str(number), "member"))
    elif kind == "map" and isinstance(value, dict):
        yield path, shape, value
        for key, inner in value.items():
            yield from _values(shape.key, key, path)
            yield from _values(shape.value, inner, path)
    elif kind == "string" and isinstance(value, str):
        yield path, shape, value


def _code(operation: OperationModel) -> str:
    if (protocol := operation.service_model.protocol) in _CODES:
        return _CODES[protocol]
    names = {shape.name for shape in operation.error_shapes}
    candidates = ("InvalidParameterException", "InvalidInputException")
    return next((shape for shape in candidates if shape in names), "ValidationException")


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    """Return a pattern of AWS's, which are Java's; one that Python cannot read takes everything."""
    # Beyond the basic plane Java writes pairs of surrogates.
    plain = pattern.replace(r"\uD800\uDC00-\uDBFF\uDFFF", r"\U00010000-\U0010FFFF")
    try:
        return re.compile(re.sub(r"\\p\{(\w)\w?\}", lambda match: _category(match[1]), plain), re.ASCII)
    except re.error:
        return re.compile("(?s:.*)")


def _category(letter: str) -> str:
    """Return the characters of a Unicode category as ranges of a regular expression's class."""
    runs = re.finditer(f"{letter}+", _categories())
    return "".join(f"\\U{run.start():08x}-\\U{run.end() - 1:08x}" for run in runs)


@cache
def _categories() -> str:
    """Return the category's first letter for every character."""
    return "".join([unicodedata.category(chr(point))[0] for point in range(sys.maxunicode + 1)])
