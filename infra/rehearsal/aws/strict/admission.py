"""The form of a request's texts, and pages, delays and quotas of a strict site, between the gateway and the services.

None of them applies to the emulator's own principal, which acts for AWS services.
"""

from __future__ import annotations

import functools
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from moto.core.model import OperationModel, ServiceModel

from infra.rehearsal.aws.answers import Environ, HeldAnswer, RequestRefused, Serve, rewind
from infra.rehearsal.aws.iam.access import caller
from infra.rehearsal.aws.strict import document, pages
from infra.rehearsal.aws.strict.lag import Lag
from infra.rehearsal.aws.strict.limits import Limits
from infra.rehearsal.aws.world import World

_GATHERED = 100
"""Limit of moto's own pages to combine."""


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


@dataclass(frozen=True)
class ServiceCall:
    service: str
    operation: str
    model: ServiceModel
    params: dict[str, Any]


class Admission:
    def __init__(self, world: World) -> None:
        self.world = world
        self.pages = pages.Pages(lambda: world.strictness)
        self.lag, self.limits = Lag(world), Limits(world)

    def admit(self, call: ServiceCall) -> None:
        """Refuse texts that AWS does not take, IDs that it does not know yet, and requests beyond a quota."""
        principal = caller.get()
        if principal is not None and not principal.is_agent:
            refuse_unfit(call.service, call.model.operation_model(call.operation), call.params)
        if not self._applies():
            return
        if (paging := self._paging(call)) is not None:
            self.pages.refuse_unknown(paging, call.model.operation_model(call.operation), call.params)
        self.lag.refuse_unknown(call.service, call.operation, call.params)
        with self.world.lock:
            self.limits.refuse_over(call.service, call.operation, call.params)
            self.lag.note_before(call.service, call.operation, call.params)

    @staticmethod
    def _paging(call: ServiceCall) -> pages.Paging | None:
        return pages.paging(call.model.service_name, call.model.operation_model(call.operation))

    def wrap_service(self, call: ServiceCall, serve: Serve) -> Serve:
        if not self._applies():
            return serve
        if call.service == "s3":
            limit = pages.S3_LIMITS.get(call.operation)
            return functools.partial(self._short, call, limit, serve) if limit else serve
        paging = self._paging(call)
        if paging is not None and not pages.names_resources(call.params):
            return functools.partial(self._serve_page, call, paging, serve)
        if self.lag.reads(call.service, call.operation) or self.lag.creates(call.service, call.operation):
            return functools.partial(self._looked_at, call, serve)
        return serve

    def _applies(self) -> bool:
        principal = caller.get()
        return self.world.strictness.on and principal is not None and not principal.is_agent

    def _short(
        self, call: ServiceCall, limit: str, serve: Serve, service: str, environ: Environ, start: Callable[..., Any]
    ) -> Iterable[bytes]:
        size = min(int(call.params.get(limit) or pages.S3_PAGE), pages.S3_PAGE)
        _restate(environ, call, {limit: size})
        return serve(service, environ, start)

    def _looked_at(
        self, call: ServiceCall, serve: Serve, service: str, environ: Environ, start: Callable[..., Any]
    ) -> Iterable[bytes]:
        answer = HeldAnswer.collect(serve, service, environ)
        if answer.ok:
            if self.lag.creates(call.service, call.operation):
                self.lag.note(call.service, call.operation, call.params, answer.body)
            elif self.lag.hides():
                read = document.read(answer.body, call.model.operation_model(call.operation))
                self.lag.hide(call.service, call.operation, call.params, read)
                answer = answer.with_body(read.write())
        start(answer.status, answer.headers)
        return [answer.body]

    def _serve_page(
        self,
        call: ServiceCall,
        paging: pages.Paging,
        serve: Serve,
        service: str,
        environ: Environ,
        start: Callable[..., Any],
    ) -> Iterable[bytes]:
        operation = call.model.operation_model(call.operation)
        body = self.pages.next(paging, operation, call.params)
        if body is not None:
            mime = "text/xml" if body[:1] == b"<" else "application/json"
            start("200 OK", [("Content-Type", mime), ("Content-Length", str(len(body)))])
            return [body]
        answer = self._collect(call, paging, serve, service, environ)
        if answer.ok:
            read = document.read(answer.body, operation)
            if self.lag.reads(call.service, call.operation) and self.lag.hides():
                self.lag.hide(call.service, call.operation, call.params, read)
            answer = answer.with_body(self.pages.first_page(paging, operation, call.params, read))
        start(answer.status, answer.headers)
        return [answer.body]

    def _collect(
        self, call: ServiceCall, paging: pages.Paging, serve: Serve, service: str, environ: Environ
    ) -> HeldAnswer:
        """Combine all of moto's pages in one answer."""
        operation = call.model.operation_model(call.operation)
        _restate(environ, call, dict.fromkeys(paging.request_members))
        answer = HeldAnswer.collect(serve, service, environ)
        if not answer.ok:
            return answer
        read = document.read(answer.body, operation)
        token = read.value(paging.next_token)
        lists = {name: read.items(name) for name in paging.lists}
        for _ in range(_GATHERED):
            if not token:
                break
            _restate(environ, call, {paging.token: token})
            document_part = document.read(HeldAnswer.collect(serve, service, environ).body, operation)
            lists = {name: [*values, *document_part.items(name)] for name, values in lists.items()}
            token = document_part.value(paging.next_token)
        else:
            return answer
        if read.value(paging.next_token):
            for name, values in lists.items():
                read.fill(name, values)
            read.put(paging.next_token, "")
            answer = answer.with_body(read.write())
        return answer


def _restate(environ: Environ, call: ServiceCall, changes: dict[str, Any]) -> None:
    operation = call.model.operation_model(call.operation)
    document.restate(environ, operation, changes)
    rewind(environ)
