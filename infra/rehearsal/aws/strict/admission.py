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
class Asked:
    service: str
    operation: str
    model: ServiceModel
    params: dict[str, Any]


class Admission:
    def __init__(self, world: World) -> None:
        self.world = world
        self.pages = pages.Pages(lambda: world.strictness)
        self.lag, self.limits = Lag(world), Limits(world)

    def admit(self, asked: Asked) -> None:
        """Refuse texts that AWS does not take, IDs that it does not know yet, and requests beyond a quota."""
        principal = caller.get()
        if principal is not None and not principal.is_agent:
            texts.refuse_unfit(asked.service, asked.model.operation_model(asked.operation), asked.params)
        if not self._concerned():
            return
        if (how := self._paging(asked)) is not None:
            self.pages.refuse_unknown(how, asked.model.operation_model(asked.operation), asked.params)
        self.lag.refuse_unknown(asked.service, asked.operation, asked.params)
        with self.world.lock:
            self.limits.refuse_over(asked.service, asked.operation, asked.params)
            self.lag.before(asked.service, asked.operation, asked.params)

    @staticmethod
    def _paging(asked: Asked) -> pages.Paging | None:
        return pages.paging(asked.model.service_name, asked.model.operation_model(asked.operation))

    def around(self, asked: Asked, serve: Serve) -> Serve:
        if not self._concerned():
            return serve
        if asked.service == "s3":
            limit = pages.S3_LIMITS.get(asked.operation)
            return functools.partial(self._short, asked, limit, serve) if limit else serve
        how = self._paging(asked)
        if how is not None and not pages.named(asked.params):
            return functools.partial(self._paged, asked, how, serve)
        if self.lag.reads(asked.service, asked.operation) or self.lag.makes(asked.service, asked.operation):
            return functools.partial(self._looked_at, asked, serve)
        return serve

    def _concerned(self) -> bool:
        principal = caller.get()
        return self.world.strictness.on and principal is not None and not principal.is_agent

    def _short(
        self, asked: Asked, limit: str, serve: Serve, service: str, environ: Environ, start: Callable[..., Any]
    ) -> Iterable[bytes]:
        wanted = min(int(asked.params.get(limit) or pages.S3_PAGE), pages.S3_PAGE)
        _restate(environ, asked, {limit: wanted})
        return serve(service, environ, start)

    def _looked_at(
        self, asked: Asked, serve: Serve, service: str, environ: Environ, start: Callable[..., Any]
    ) -> Iterable[bytes]:
        answer = HeldAnswer.of(serve, service, environ)
        if answer.ok:
            if self.lag.makes(asked.service, asked.operation):
                self.lag.note(asked.service, asked.operation, asked.params, answer.body)
            elif self.lag.hides():
                read = document.read(answer.body, asked.model.operation_model(asked.operation))
                self.lag.hide(asked.service, asked.operation, asked.params, read)
                answer = answer.with_body(read.write())
        start(answer.status, answer.headers)
        return [answer.body]

    def _paged(
        self,
        asked: Asked,
        how: pages.Paging,
        serve: Serve,
        service: str,
        environ: Environ,
        start: Callable[..., Any],
    ) -> Iterable[bytes]:
        operation = asked.model.operation_model(asked.operation)
        body = self.pages.next(how, operation, asked.params)
        if body is not None:
            mime = "text/xml" if body[:1] == b"<" else "application/json"
            start("200 OK", [("Content-Type", mime), ("Content-Length", str(len(body)))])
            return [body]
        answer = self._whole(asked, how, serve, service, environ)
        if answer.ok:
            read = document.read(answer.body, operation)
            if self.lag.reads(asked.service, asked.operation) and self.lag.hides():
                self.lag.hide(asked.service, asked.operation, asked.params, read)
            answer = answer.with_body(self.pages.first(how, operation, asked.params, read))
        start(answer.status, answer.headers)
        return [answer.body]

    def _whole(self, asked: Asked, how: pages.Paging, serve: Serve, service: str, environ: Environ) -> HeldAnswer:
        """Combine all of moto's pages in one answer."""
        operation = asked.model.operation_model(asked.operation)
        _restate(environ, asked, dict.fromkeys(how.asked))
        answer = HeldAnswer.of(serve, service, environ)
        if not answer.ok:
            return answer
        read = document.read(answer.body, operation)
        token = read.value(how.next_token)
        lists = {name: read.items(name) for name in how.lists}
        for _ in range(_GATHERED):
            if not token:
                break
            _restate(environ, asked, {how.token: token})
            more = document.read(HeldAnswer.of(serve, service, environ).body, operation)
            lists = {name: [*several, *more.items(name)] for name, several in lists.items()}
            token = more.value(how.next_token)
        else:
            return answer
        if read.value(how.next_token):
            for name, several in lists.items():
                read.fill(name, several)
            read.put(how.next_token, "")
            answer = answer.with_body(read.write())
        return answer


def _restate(environ: Environ, asked: Asked, changes: dict[str, Any]) -> None:
    operation = asked.model.operation_model(asked.operation)
    document.restate(environ, operation, changes)
    rewind(environ)
