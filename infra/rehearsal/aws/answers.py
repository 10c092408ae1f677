"""Complete answers of a service, and errors with their own HTTP status."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from infra.rehearsal.aws.operations import AwsError

Environ = dict[str, Any]
Serve = Callable[[str, Environ, Callable[..., Any]], Iterable[bytes]]
"""(service, environ, start_response) -> body."""


class RequestRefused(AwsError):
    """An error with another HTTP status than the 403 of a missing right."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(code, message)
        self.status = status


@dataclass(frozen=True)
class HeldAnswer:
    """A service's complete answer, held back for inspection."""

    status: str
    headers: list[tuple[str, str]]
    body: bytes

    @classmethod
    def collect(cls, serve: Serve, service: str, environ: Environ) -> HeldAnswer:
        calls: list[Any] = []
        body = b"".join(serve(service, environ, lambda status, headers, *_: calls.extend((status, headers))))
        status, headers = calls
        return cls(status, headers, body)

    @property
    def ok(self) -> bool:
        return self.status.startswith("2")

    def with_body(self, body: bytes) -> HeldAnswer:
        other_headers = [(name, value) for name, value in self.headers if name.lower() != "content-length"]
        return HeldAnswer(self.status, [*other_headers, ("Content-Length", str(len(body)))], body)


def rewind(environ: Environ) -> None:
    if (body := environ.get("bivouac.body")) is not None:
        environ["wsgi.input"] = io.BytesIO(body)
        environ["CONTENT_LENGTH"] = str(len(body))
        environ.pop("HTTP_TRANSFER_ENCODING", None)
