"""A stand-in for an API server: keeps what is applied and says that it is ready. Can fall silent, drop connections or
answers, or be gone."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from infra.rehearsal.plugins.kubernetes.releases import STATE_ANNOTATION
from tests.serving import serve

KINDS = {
    "v1": "Namespace ServiceAccount* PersistentVolume PersistentVolumeClaim* Secret* ConfigMap* Node Pod*",
    "scheduling.k8s.io/v1": "PriorityClass",
    "rbac.authorization.k8s.io/v1": "Role* RoleBinding* ClusterRole ClusterRoleBinding",
    "admissionregistration.k8s.io/v1": "ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding",
    "jobset.x-k8s.io/v1alpha2": "JobSet*",
    "resource.k8s.io/v1": "ResourceClaimTemplate*",
}
PHASES = {"Namespace": "Active", "PersistentVolume": "Bound", "PersistentVolumeClaim": "Bound"}
PATH = re.compile(
    r"^/(?:api|apis)/(?P<api>v1|[^/]+/[^/]+)(?:/namespaces/(?P<space>[^/]+)(?=/.))?/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?$"
)


def plural_of(kind: str) -> str:
    bare = kind.lower()
    return f"{bare[:-1]}ies" if bare.endswith("y") else bare + ("es" if bare.endswith("s") else "s")


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that gave up on a silent server is no news."""


class FakeKubernetes:
    """Serves on the loopback interface; `nodes` gives the Node objects there are now."""

    def __init__(self, nodes: Callable[[], list[dict[str, Any]]]) -> None:
        self.objects: dict[tuple[str, str, str, str], dict[str, Any]] = {}
        self.nodes = nodes
        self.patches: dict[str, dict[str, Any]] = {}
        """Node -> what was patched into it."""
        self._patched_ids: dict[str, str | None] = {}
        self.created: Callable[[dict[str, Any]], None] = lambda document: None
        """Called with each new object, as a controller would see it."""
        self.tokens: list[str] = []
        """The Authorization header of each request."""
        self.gang_api = ""
        """The version of `scheduling.k8s.io` whose PodGroups it serves; empty: none."""
        self.silent = threading.Event()
        self.dropping = 0
        """So many of the next requests find their connection closed, and do nothing."""
        self.losing = 0
        """So many of the next requests are carried out, and nobody hears of it."""
        self._ended = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                outer.tokens.append(self.headers.get("Authorization") or "")
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length) or b"{}") if length else {}
                while outer.silent.is_set() and not outer._ended.wait(0.05):
                    pass
                if outer.dropping > 0:
                    outer.dropping -= 1
                    self.close_connection = True
                    return
                status, document = outer.handle(self.command, self.path, body)
                if outer.losing > 0:
                    outer.losing -= 1
                    self.close_connection = True
                    return
                text = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

            def log_message(self, *_: Any) -> None: ...

        self.http = _Server(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.http.server_port}"
        serve(self.http)

    def stop(self) -> None:
        self._ended.set()
        self.http.shutdown()
        self.http.server_close()

    def handle(self, verb: str, url: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        where = urlsplit(url)
        for api, kinds in KINDS.items():
            if where.path == (f"/apis/{api}" if "/" in api else f"/api/{api}"):
                return 200, {"resources": [_resource(kind) for kind in kinds.split()]}
        found = PATH.match(where.path)
        if found is None:
            return (200, {}) if where.path == "/readyz" else (404, {"message": f"no {where.path}", "code": 404})
        key = (found["api"], found["plural"], found["space"] or "", found["name"] or "")
        if key[1] == "podgroups" and key[0] != f"scheduling.k8s.io/{self.gang_api}":
            return 404, {"message": "the server could not find the requested resource", "code": 404}
        if verb == "GET" and not key[3]:
            selector = parse_qs(where.query).get("labelSelector", [""])[0]
            return 200, {"items": list(self._listed(key, selector)), "metadata": {}}
        return self._one(verb, key, body, "dryRun" in where.query)

    def _one(
        self, verb: str, key: tuple[str, str, str, str], body: dict[str, Any], dry: bool
    ) -> tuple[int, dict[str, Any]]:
        if verb == "PATCH" and key[1] == "nodes":
            known = self.patches.setdefault(key[3], {})
            for part, inner in (("metadata", "labels"), ("spec", None)):
                change = body.get(part, {})
                if inner:
                    change = {inner: {**known.get(part, {}).get(inner, {}), **change.get(inner, {})}}
                known[part] = {**known.get(part, {}), **change}
            ids = {node["metadata"]["name"]: node.get("spec", {}).get("providerID") for node in self.nodes()}
            self._patched_ids[key[3]] = ids.get(key[3])
            return 200, {"metadata": {"name": key[3]}}
        if verb in ("POST", "PATCH", "PUT"):
            key = (*key[:3], key[3] or body["metadata"]["name"])
            known = self.objects.get(key, {})
            if verb == "POST" and known:
                return 409, {"message": f"{key[3]} already exists", "reason": "AlreadyExists", "code": 409}
            document = _finished({**known, **body, "metadata": {**known.get("metadata", {}), **body["metadata"]}})
            if not dry:
                self.objects[key] = document
                self.created(document)
            return 200, document
        if key not in self.objects:
            return 404, {"message": f"{key[1]} {key[3]} not found", "reason": "NotFound", "code": 404}
        return 200, self.objects.pop(key) if verb == "DELETE" else self.objects[key]

    def _listed(self, key: tuple[str, str, str, str], selector: str) -> Iterator[dict[str, Any]]:
        wanted = dict(pair.split("=", 1) for pair in selector.split(",") if "=" in pair)
        own = [one for at, one in self.objects.items() if at[:2] == key[:2] and key[2] in ("", at[2])]
        for one in [*own, *(self._patched(node) for node in (self.nodes() if key[1] == "nodes" else []))]:
            labels = one["metadata"].get("labels") or {}
            if wanted.items() <= labels.items():
                yield one

    def _patched(self, node: dict[str, Any]) -> dict[str, Any]:
        change = self.patches.get(node["metadata"]["name"], {})
        # A node of the same name on another instance is another node: it comes without its predecessor's labels.
        if self._patched_ids.get(node["metadata"]["name"]) != node.get("spec", {}).get("providerID"):
            change = {}
        labels = {**node["metadata"]["labels"], **change.get("metadata", {}).get("labels", {})}
        spec = {**node.get("spec", {}), **change.get("spec", {})}
        return {**node, "metadata": {**node["metadata"], "labels": labels}, "spec": spec}


def _resource(kind: str) -> dict[str, Any]:
    name = kind.rstrip("*")
    return {"kind": name, "name": plural_of(name), "namespaced": kind.endswith("*")}


def _finished(document: dict[str, Any]) -> dict[str, Any]:
    """As controllers would have left it."""
    if phase := PHASES.get(document.get("kind", "")):
        document["status"] = {"phase": phase}
    metadata = document["metadata"]
    if (metadata.get("labels") or {}).get("owner") == "helm":
        metadata["annotations"] = {**(metadata.get("annotations") or {}), STATE_ANNOTATION: "recorded"}
    return document
