"""Tokens from a kubeconfig's exec plugin (client.authentication.k8s.io/v1): lightkube supports only beta versions."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Generator
from datetime import UTC, datetime, timedelta

import httpx2
from lightkube.config.models import UserExec

from infra.rehearsal.plugins.package import OperationFailed

_EARLY = timedelta(minutes=1)
"""A token is renewed this long before it expires."""
_PATIENCE_S = 60


class ExecCredentials(httpx2.Auth):
    def __init__(self, plugin: UserExec) -> None:
        self._plugin = plugin
        self._lock = threading.Lock()
        self._token = ""
        self._expires: datetime | None = None

    def sync_auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        request.headers["Authorization"] = f"Bearer {self._current()}"
        response = yield request
        if response.status_code == 401:
            self._expires = datetime.now(UTC)
            request.headers["Authorization"] = f"Bearer {self._current()}"
            yield request

    def _current(self) -> str:
        with self._lock:
            stale = self._expires is not None and datetime.now(UTC) > self._expires - _EARLY
            if not self._token or stale:
                self._renew()
            return self._token

    def _renew(self) -> None:
        plugin = self._plugin
        environment = {**os.environ, **{item.name: item.value for item in plugin.env or []}}
        environment["KUBERNETES_EXEC_INFO"] = json.dumps(
            {"apiVersion": plugin.apiVersion, "kind": "ExecCredential", "spec": {"interactive": False}}
        )
        command = [plugin.command, *(plugin.args or [])]
        try:
            answer = subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise OperationFailed(f"kubeconfig's exec plugin {command[0]}: {error}") from error
        if answer.returncode != 0:
            text = answer.stderr.strip()[-2000:]
            raise OperationFailed(
                f"kubeconfig's exec plugin {' '.join(command)} ended with {answer.returncode}: {text}"
            )
        status = json.loads(answer.stdout)["status"]
        expires = status.get("expirationTimestamp")
        self._token, self._expires = status["token"], datetime.fromisoformat(expires) if expires else None
