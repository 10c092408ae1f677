"""One API server: connection from a kubeconfig, discovery, and a provider's few requests."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import yaml
from lightkube.config.client_adapter import ConnectionParams, user_auth, verify_cluster
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.config.models import UserExec
from lightkube.core.exceptions import ConfigError

from infra.rehearsal.plugins.package import OperationFailed

_NO_SCHEMA = "unable to load schema information from the API server"
FIELD_MANAGER = "pulumi-kubernetes"
Object = dict[str, Any]


class Unreachable(OperationFailed):
    """The API server does not answer or rejects our credentials; the real plugin calls this an unreachable cluster."""


class RequestRejected(OperationFailed):
    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


class UnknownKind(OperationFailed):
    """The API server does not serve this kind, or not yet."""


@dataclass(frozen=True)
class Address:
    api_version: str
    kind: str
    namespace: str
    """Empty for cluster-scoped kinds, and for the default namespace."""
    name: str

    @property
    def id(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class ApiServer:
    """Requests to one API server. They raise Unreachable, UnknownKind or RequestRejected."""

    def __init__(self, config: SingleConfig, namespace: str = "") -> None:
        self.namespace = namespace or config.namespace
        self.server = config.cluster.server
        user = config.user
        if user is None:
            raise OperationFailed(f"the kubeconfig's context {config.context_name} names no user; cure: give it one")
        auth = ExecCredentials(user.exec) if user.exec else user_auth(user)
        verify = verify_cluster(config.cluster, user, config.abs_file, trust_env=False)
        timeout = ConnectionParams(timeout=httpx2.Timeout(30, connect=5)).timeout
        self._http = httpx2.Client(
            base_url=config.cluster.server, verify=verify, auth=auth, timeout=timeout, trust_env=False
        )
        self._kinds: dict[str, dict[str, tuple[str, bool]]] = {}
        self._lock = threading.Lock()

    def greet(self) -> None:
        """Check that the server answers and accepts our credentials."""
        self._ask("GET", "/version")

    def get(self, address: Address) -> Object | None:
        try:
            return self._ask("GET", self._path(address))
        except RequestRejected as error:
            if error.status == 404:
                return None
            raise

    def apply(self, address: Address, body: Object, dry_run: bool = False, force: bool = False) -> Object:
        """Apply server-side; unknown fields are errors."""
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict", "force": str(force).lower()}
        query |= {"dryRun": "All"} if dry_run else {}
        return self._ask("PATCH", self._path(address), query, body, "application/apply-patch+yaml")

    def create(self, address: Address, body: Object) -> Object:
        return self._ask("POST", self._path(address, collection=True), body=body)

    def delete(self, address: Address, propagation: str = "Background") -> None:
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        try:
            self._ask("DELETE", self._path(address), body=options)
        except RequestRejected as error:
            if error.status != 404:
                raise

    def list(self, api_version: str, kind: str, namespace: str, labels: Mapping[str, str]) -> list[Object]:
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        path = self._path(Address(api_version, kind, namespace, ""), collection=True)
        return list(self._ask("GET", path, {"labelSelector": selector})["items"])

    def is_namespaced(self, api_version: str, kind: str) -> bool:
        return self._discover(api_version, kind)[1]

    def _path(self, address: Address, collection: bool = False) -> str:
        plural, has_namespace = self._discover(address.api_version, address.kind)
        root = _root(address.api_version)
        space = f"/namespaces/{address.namespace or self.namespace}" if has_namespace else ""
        return f"{root}{space}/{plural}" + ("" if collection else f"/{address.name}")

    def _discover(self, api_version: str, kind: str) -> tuple[str, bool]:
        with self._lock:
            if kind not in self._kinds.get(api_version, {}):
                try:
                    resources = self._ask("GET", _root(api_version))["resources"]
                except RequestRejected as error:
                    if error.status != 404:
                        raise
                    resources = []
                self._kinds[api_version] = {
                    item["kind"]: (item["name"], item["namespaced"]) for item in resources if "/" not in item["name"]
                }
            if kind not in self._kinds[api_version]:
                raise UnknownKind(
                    f"the API server knows no {kind} in {api_version}; cure: install its definition first (depends_on)"
                )
            return self._kinds[api_version][kind]

    def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        content_type: str = "application/json",
    ) -> Object:
        headers = {"Content-Type": content_type} if body is not None else {}
        try:
            answer = self._http.request(method, path, params=dict(query or {}), json=body, headers=headers)
        except httpx2.TransportError as error:
            raise Unreachable(f"configured Kubernetes cluster is unreachable: {self.server}: {error!r}") from error
        if answer.status_code == 401:
            reason = "the server has asked for the client to provide credentials"
            raise Unreachable(f"configured Kubernetes cluster is unreachable: {_NO_SCHEMA}: {reason}")
        if answer.is_success:
            return dict(answer.json())
        try:
            status = answer.json()
        except ValueError:
            status = {}
        message = status.get("message") or answer.text[:500]
        raise RequestRejected(answer.status_code, status.get("reason", ""), f"{method} {path}: {message}")


def _root(api_version: str) -> str:
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


def kubeconfig(text: str, context: str | None) -> SingleConfig:
    """Read a kubeconfig from its content or a path; if empty, from $KUBECONFIG or ~/.kube/config."""
    source = text or os.environ.get("KUBECONFIG", "") or str(Path.home() / ".kube" / "config")
    try:
        if "\n" in source or source.lstrip().startswith("{"):
            config = KubeConfig.from_dict(yaml.safe_load(source))
        else:
            config = KubeConfig.from_file(Path(source).expanduser())
        context_entry = config.get(context_name=context)
    except (ConfigError, OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise OperationFailed(f"the kubeconfig cannot be read: {error}") from error
    if context_entry is None:
        raise OperationFailed(
            "the kubeconfig has no current context; cure: set current-context, or the provider's `context`"
        )
    return context_entry


_EARLY = timedelta(minutes=1)
"""A token is renewed this long before it expires."""
_PATIENCE_S = 60


class ExecCredentials(httpx2.Auth):
    """Tokens from a kubeconfig's exec plugin (client.authentication.k8s.io/v1): lightkube has only beta versions."""

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
