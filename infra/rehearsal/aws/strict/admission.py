"""The form of a request's texts, and pages, delays and quotas of a strict site, between the gateway and the services.

None of them applies to the emulator's own principal, which acts for AWS services.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from moto.core.model import ServiceModel

from infra.rehearsal.aws.answers import Environ, HeldAnswer, Serve, rewind
from infra.rehearsal.aws.iam.access import caller
from infra.rehearsal.aws.strict import document, pages, texts
from infra.rehearsal.aws.strict.lag import Lag
from infra.rehearsal.aws.strict.limits import Limits
from infra.rehearsal.aws.world import World

_GATHERED = 100
"""Limit of moto's own pages to combine."""


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
            texts.refuse_unfit(call.service, call.model.operation_model(call.operation), call.params)
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
