"""The Kubernetes package: any kind that the API server serves, and Helm releases."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import yaml

from infra.rehearsal.plugins.kubernetes import objects, releases
from infra.rehearsal.plugins.kubernetes.cluster import (
    Address,
    ApiServer,
    Object,
    RequestRejected,
    UnknownKind,
    Unreachable,
    kubeconfig,
)
from infra.rehearsal.plugins.package import (
    InitFailed,
    OperationFailed,
    PropertyChange,
    PropertyFailure,
    Request,
    ResourceGone,
    unknown_properties,
)
from infra.rehearsal.plugins.wire import UNKNOWN, Props, has_unknown

_PATIENCE_S = 600.0
_LONGEST_PAUSE_S = 0.4
_KNOWN = {
    "deleteUnreachable", "upsertExistingObjects", "kubeconfig", "context", "namespace", "enableServerSideApply",
    "version", "pluginDownloadURL", "suppressDeprecationWarnings", "suppressHelmHookWarnings",
}  # fmt: skip


class KubernetesPackage:
    version = "4.34.2"

    def __init__(self) -> None:
        self._settings: Props = {}
        self._made: ApiServer | None = None
        self._unreachable: Unreachable | None = None
        self._lock = threading.Lock()
        self._cancelled = threading.Event()

    def schema(self) -> dict[str, Any]:
        return {"name": "kubernetes", "version": self.version}

    def check_config(self, inputs: Props) -> Sequence[PropertyFailure]:
        return unknown_properties(inputs, _KNOWN, "the kubernetes provider: known are")

    def diff_config(self, old: Props, new: Props) -> Sequence[PropertyChange]:
        """Compare configurations: another cluster replaces all its resources, other credentials for it do not."""
        differences = []
        for name in sorted(set(old) | set(new)):
            if old.get(name) == new.get(name) or name == "version":
                continue
            is_known = name == "kubeconfig" and new.get(name) != UNKNOWN
            is_other_cluster = is_known and _servers(old.get(name)) != _servers(new.get(name))
            differences.append(PropertyChange(name, "update", is_other_cluster))
        return differences

    def configure(self, inputs: Props) -> None:
        """Connect, once per run. As in the real plugin, a cluster that does not answer now counts as unreachable."""
        self._settings, self._made, self._unreachable = inputs, None, None
        if has_unknown(inputs):
            return
        try:
            self._cluster().greet()
        except Unreachable as error:
            self._unreachable = error
        except OperationFailed:
            return  # an unusable kubeconfig fails at its first use

    def check(self, request: Request) -> tuple[Props, Sequence[PropertyFailure]]:
        inputs = {key: value for key, value in request.inputs.items() if value is not None}
        if request.type == releases.TOKEN:
            inputs.setdefault("namespace", self._settings.get("namespace") or "default")
            return inputs, releases.failures(inputs)
        metadata = inputs.get("metadata") or {}
        words = {name: inputs.get(name) for name in ("apiVersion", "kind")}
        words["metadata.name"] = UNKNOWN if metadata == UNKNOWN else metadata.get("name")
        missing = [name for name, value in words.items() if not value]
        return inputs, [
            PropertyFailure(name, f"{request.type} has no {name}: it is no object of the API") for name in missing
        ]

    def diff(self, request: Request) -> tuple[Sequence[PropertyChange], bool]:
        old, new = request.old_inputs or request.state, request.inputs
        if request.type == releases.TOKEN:
            differences = releases.changes(old, new)
            return differences, not {"name", "namespace"} & {change.path for change in differences}
        differences = objects.changes(new["kind"], old, new)
        identity_changes = {"metadata.name", "metadata.namespace", "kind"} & {change.path for change in differences}
        return differences, not identity_changes

    def create(self, request: Request) -> tuple[str, Props]:
        inputs = request.inputs
        if request.preview:
            return "", self._preview(request)
        if request.type == releases.TOKEN:
            releases.install(self._cluster(), inputs)
            return f"{inputs['namespace']}/{inputs['name']}", self._await_release(request)
        address = self._address(inputs)
        upsert = self._switch("upsertExistingObjects")
        if not upsert and self._cluster().get(address) is not None:
            raise OperationFailed(f"resource {address.id} was not successfully created by the Kubernetes API server: "
                          f"{address.kind} already exists; cure: import it, or delete it")  # fmt: skip
        self._apply(request, address)
        return address.id, self._await_object(request, address)

    def read(self, request: Request) -> tuple[str, Props, Props]:
        try:
            if request.type == releases.TOKEN:
                return self._read_release(request)
            values = request.inputs or request.state
            live = self._cluster().get(self._address(values, request.id))
        except Unreachable as error:
            if self._switch("deleteUnreachable"):
                raise ResourceGone(request.urn) from error
            raise
        except UnknownKind as error:
            raise ResourceGone(request.urn) from error
        if live is None:
            raise ResourceGone(request.urn)
        live = objects.as_declared(live)
        inputs = objects.overlay(request.inputs, live) if request.inputs else objects.import_inputs(live)
        return request.id, inputs, _state(live)

    def update(self, request: Request) -> Props:
        if request.preview:
            return self._preview(request)
        if request.type == releases.TOKEN:
            releases.upgrade(self._cluster(), request.inputs)
            return self._await_release(request)
        address = self._address(request.inputs)
        self._apply(request, address)
        return self._await_object(request, address)

    def delete(self, request: Request) -> None:
        try:
            if request.type == releases.TOKEN:
                namespace, _, name = request.id.rpartition("/")
                releases.uninstall(self._cluster(), namespace, name)
                return
            address = self._address(request.inputs or request.state, request.id)
            cluster = self._cluster()
            cluster.delete(address, "Foreground" if address.kind in ("Job", "JobSet") else "Background")
            self._poll(request, lambda: cluster.get(address) is None, f"{address.kind} {address.id} to go")
        except Unreachable:
            # As in the real plugin, the switch does not cover Helm releases.
            if not self._switch("deleteUnreachable") or request.type == releases.TOKEN:
                raise
        except UnknownKind:
            return

    def invoke(self, token: str, arguments: Props) -> Props:
        raise OperationFailed(f"unknown function {token}: the rehearsal's kubernetes provider has none")

    def _switch(self, name: str) -> bool:
        return str(self._settings.get(name)).lower() in ("true", "1")

    def cancel(self) -> None:
        self._cancelled.set()

    def _cluster(self) -> ApiServer:
        if self._unreachable is not None:
            raise self._unreachable
        with self._lock:
            if self._made is None:
                access = kubeconfig(str(self._settings.get("kubeconfig") or ""), self._settings.get("context"))
                self._made = ApiServer(access, str(self._settings.get("namespace") or ""))
            return self._made

    def _address(self, values: Props, resource_id: str = "") -> Address:
        metadata = values.get("metadata") or {}
        namespace, _, name = resource_id.rpartition("/") if resource_id else ("", "", metadata["name"])
        namespace = namespace or metadata.get("namespace") or ""
        api_version, kind = values["apiVersion"], values["kind"]
        if self._cluster().is_namespaced(api_version, kind):
            return Address(api_version, kind, namespace or self._cluster().namespace, name)
        return Address(api_version, kind, "", name)

    def _apply(self, request: Request, address: Address, dry_run: bool = False) -> Object:
        body = {key: value for key, value in request.inputs.items() if not key.startswith("__") and key != "status"}
        return self._cluster().apply(address, objects.as_served(body), dry_run)

    def _preview(self, request: Request) -> Props:
        """Preview by a dry run of the API server, or by the inputs if it cannot answer yet."""
        if request.type == releases.TOKEN:
            return {**request.inputs, "status": UNKNOWN, "resourceNames": UNKNOWN}
        if has_unknown(request.inputs):
            return {**request.state, **request.inputs}
        try:
            return _state(self._apply(request, self._address(request.inputs), dry_run=True))
        except (Unreachable, UnknownKind):
            return dict(request.inputs)
        except RequestRejected as error:
            # The namespace may belong to the same program and not exist yet.
            if error.status != 404:
                raise
            return dict(request.inputs)

    def _await_object(self, request: Request, address: Address) -> Props:
        cluster, present = self._cluster(), Object()

        def ready() -> bool:
            present.update(cluster.get(address) or {})
            return bool(present) and is_ready(present)

        try:
            self._poll(request, ready, f"{address.kind} {address.id} to become ready")
        except OperationFailed as error:
            raise InitFailed(address.id, _state(present), request.inputs, str(error)) from error
        return _state(present)

    def _await_release(self, request: Request) -> Props:
        inputs, cluster = request.inputs, self._cluster()

        def newest() -> Object:
            return releases.revisions(cluster, inputs["namespace"], inputs["name"])[-1]

        if not inputs.get("skipAwait"):
            title = f"release {inputs['namespace']}/{inputs['name']} to take effect"
            limit = float(inputs.get("timeout") or releases.DEFAULT_TIMEOUT_S)
            try:
                self._poll(request, lambda: releases.is_up(newest()), title, limit)
            except OperationFailed as error:
                resource_id = f"{inputs['namespace']}/{inputs['name']}"
                raise InitFailed(resource_id, releases.state(inputs, newest()), inputs, str(error)) from error
        return releases.state(inputs, newest())

    def _read_release(self, request: Request) -> tuple[str, Props, Props]:
        namespace, _, name = request.id.rpartition("/")
        history = releases.revisions(self._cluster(), namespace, name)
        if not history:
            raise ResourceGone(request.urn)
        inputs = releases.observe_inputs(request.inputs, history[-1])
        return request.id, inputs, releases.state(inputs, history[-1])

    def _poll(self, request: Request, probe: Callable[[], bool], title: str, limit_s: float = _PATIENCE_S) -> None:
        deadline, pause = time.monotonic() + (request.timeout_s or limit_s), 0.05
        while not probe():
            if time.monotonic() > deadline:
                raise OperationFailed(f"timed out while waiting for {title}")
            if self._cancelled.wait(pause):
                raise OperationFailed(f"cancelled while waiting for {title}")
            pause = min(pause * 1.6, _LONGEST_PAUSE_S)


def _servers(kubeconfig_text: Any) -> Any:
    """Return the API servers in a kubeconfig, or the text itself if it is a path."""
    try:
        content = yaml.safe_load(str(kubeconfig_text))
        return sorted(item["cluster"]["server"] for item in content["clusters"])
    except (yaml.YAMLError, KeyError, TypeError):
        return kubeconfig_text


def _state(live: Object) -> Props:
    """Return the API server's object without managedFields."""
    metadata = {key: value for key, value in (live.get("metadata") or {}).items() if key != "managedFields"}
    return {**objects.as_declared(live), "metadata": metadata}


def is_ready(live: Object) -> bool:
    probe = _PROBES.get(live["kind"])
    return probe is None or probe(live)


def _claim(live: Object) -> bool:
    """Return True if a claim with a volume is bound; others may wait for their first pod."""
    return not live["spec"].get("volumeName") or _phase(live) == "Bound"


def _rollout(live: Object) -> bool:
    status = live.get("status") or {}
    current = status.get("observedGeneration", 0) >= live["metadata"].get("generation", 0)
    return bool(current and status.get("availableReplicas", 0) >= live["spec"].get("replicas", 1))


def _definition(live: Object) -> bool:
    conditions = (live.get("status") or {}).get("conditions") or []
    return any(item["type"] == "Established" and item["status"] == "True" for item in conditions)


def _phase(live: Object) -> str:
    return str((live.get("status") or {}).get("phase", ""))


_PROBES: dict[str, Callable[[Object], bool]] = {
    "CustomResourceDefinition": _definition,
    "Deployment": _rollout,
    "Namespace": lambda live: _phase(live) == "Active",
    "PersistentVolume": lambda live: _phase(live) in ("Available", "Bound"),
    "PersistentVolumeClaim": _claim,
}
