"""A small Kubernetes API client: JSON over kept connections, and watches that reconnect."""

from __future__ import annotations

import base64
import http.client
import json
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol
from urllib.parse import quote, urlencode, urlsplit

from infra.errors import PermanentError, TemporaryError

log = logging.getLogger(__name__)

Object = dict[str, Any]
JSON, MERGE, STRATEGIC = "application/json", "application/merge-patch+json", "application/strategic-merge-patch+json"
ANSWER_WITHIN_S = 10.0
RETRY = timedelta(seconds=1)
SLOWEST_RETRY_S = 10.0
WATCH_LIFE_S = 300
UNAUTHORIZED, CONFLICT, NOT_FOUND = 401, 409, 404


def timestamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class ApiRefused(PermanentError):
    """The API server answered with a 4xx; `status` is the HTTP status."""

    def __init__(self, request: str, status: int, message: str) -> None:
        super().__init__(request, seen=f"{status} {message}")
        self.status, self.message = status, message


class Tokens(Protocol):
    def token(self) -> str: ...
    def forget(self) -> None: ...


class Api:
    """API calls raise ApiRefused for a 4xx answer, TemporaryError if the server is busy or silent."""

    def __init__(self, endpoint: str, authority_pem: str, tokens: Tokens) -> None:
        parts = urlsplit(endpoint)
        self.host, self.port = str(parts.hostname), parts.port or 443
        self._tokens = tokens
        self._tls = ssl.create_default_context(cadata=authority_pem)
        self._idle: list[http.client.HTTPSConnection] = []

    def get(self, path: str, **query: str) -> Object:
        return self.call("GET", path, query=query)

    def post(self, path: str, body: Object) -> Object:
        return self.call("POST", path, body)

    def put(self, path: str, body: Object) -> Object:
        return self.call("PUT", path, body)

    def patch(self, path: str, body: Object, kind: str = STRATEGIC) -> Object:
        return self.call("PATCH", path, body, kind=kind)

    def delete(self, path: str, body: Object | None = None) -> Object:
        return self.call("DELETE", path, body)

    def call(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        query: dict[str, str] | None = None,
        kind: str = JSON,
    ) -> Object:
        if query:
            path = f"{path}?{urlencode(query)}"
        request = f"{method} {path}"
        for attempt in (1, 2, 3):
            idle = self._reuse()
            connection = idle or self._connect(ANSWER_WITHIN_S)
            try:
                answer = self._send(connection, method, path, body, kind)
                content = answer.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if idle is not None and attempt < 3 and not isinstance(error, TimeoutError):
                    self._idle.clear()
                    continue  # the server closed idle connections
                raise TemporaryError(
                    "the API server does not answer", seen=f"{request}: {error}", delay=RETRY
                ) from error
            self._idle.append(connection)
            if answer.status == UNAUTHORIZED and attempt == 1:
                self._tokens.forget()
                continue
            return _result(request, answer.status, content)
        raise AssertionError("unreachable")

    def _reuse(self) -> http.client.HTTPSConnection | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _connect(self, timeout_s: float) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(self.host, self.port, timeout=timeout_s, context=self._tls)

    def _send(
        self, connection: http.client.HTTPSConnection, method: str, path: str, body: Object | None, kind: str
    ) -> http.client.HTTPResponse:
        headers = {"Authorization": f"Bearer {self._tokens.token()}", "Accept": JSON, "Content-Type": kind}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        return connection.getresponse()

    def events(self, path: str, version: str, query: dict[str, str]) -> Iterator[Object]:
        """Yield one watch's events from `version` on, until the server ends it. Raises what `call` raises."""
        life = {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_LIFE_S)}
        query = {**query, **life, "resourceVersion": version}
        connection = self._connect(ANSWER_WITHIN_S)
        try:
            answer = self._send(connection, "GET", f"{path}?{urlencode(query)}", None, JSON)
            if answer.status != http.client.OK:
                if answer.status == UNAUTHORIZED:
                    self._tokens.forget()
                _result(f"watch {path}", answer.status, answer.read())
            _notice_a_dead_peer(connection.sock)
            while line := answer.readline():
                yield json.loads(line)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise TemporaryError("a watch broke", seen=f"{path}: {error}", delay=RETRY) from error
        finally:
            connection.close()


def _notice_a_dead_peer(sock: socket.socket) -> None:
    """Enable keepalive: an idle watch on a cut network gives up after about 20 s instead of never."""
    sock.settimeout(WATCH_LIFE_S + ANSWER_WITHIN_S)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _result(request: str, status: int, content: bytes) -> Object:
    if status < 300:
        return dict(json.loads(content)) if content else {}
    try:
        message = json.loads(content).get("message", "")
    except ValueError:
        message = content[:200].decode(errors="replace")
    if status >= 500 or status == http.client.TOO_MANY_REQUESTS:
        raise TemporaryError("the API server is busy", seen=f"{request}: {status} {message}", delay=RETRY)
    raise ApiRefused(request, status, message)


class Watch:
    """A watch for the process's life; `on_list` gets everything after each new list, `on_event` each (type, object)."""

    def __init__(
        self,
        api: Api,
        path: str,
        on_list: Callable[[list[Object]], None],
        on_event: Callable[[str, Object], None],
        **query: str,
    ) -> None:
        self._api, self._path, self._query = api, path, query
        self._on_list, self._on_event = on_list, on_event

    def start(self) -> None:
        threading.Thread(target=self._run, name=f"watch {self._path}", daemon=True).start()

    def _run(self) -> None:
        pause, patience, complaint = threading.Event(), RETRY.total_seconds(), ""
        while True:
            try:
                listing = self._api.get(self._path, **self._query)
                self._on_list(listing.get("items") or [])
                patience, complaint = RETRY.total_seconds(), ""
                self._follow(listing["metadata"]["resourceVersion"])
            except (ApiRefused, TemporaryError) as error:
                if str(error) != complaint:
                    log.warning("%s", error)
                complaint = str(error)
                pause.wait(patience)
                patience = min(patience * 2, SLOWEST_RETRY_S)

    def _follow(self, version: str) -> None:
        """Pass on events until a new list is needed."""
        while True:
            for event in self._api.events(self._path, version, self._query):
                kind, item = event["type"], event["object"]
                if kind == "ERROR":
                    return
                version = item["metadata"]["resourceVersion"]
                if kind != "BOOKMARK":
                    self._on_event(kind, item)


def namespaced_path(plural: str, namespace: str, name: str = "", group: str = "") -> str:
    root = f"/apis/{group}" if group else "/api/v1"
    return f"{root}/namespaces/{quote(namespace)}/{plural}" + (f"/{quote(name)}" if name else "")


def decode_values(data: dict[str, str] | None) -> dict[str, bytes]:
    """Decode a Secret's data or a ConfigMap's binaryData."""
    return {key: base64.b64decode(value) for key, value in (data or {}).items()}
