"""A cluster that does not know its caller yet, to the Kubernetes plugin and to what is made of its words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from infra.engine.failures import Cause, EngineFailed, ResourceFailure
from infra.rehearsal.plugins.kubernetes.cluster import Unreachable
from infra.rehearsal.plugins.kubernetes.package import KubernetesPackage
from infra.rehearsal.plugins.package import Request
from tests.serving import serve

SPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "campaign"}}
WANTED = Request(urn="", type="kubernetes:core/v1:Namespace", name="campaign", inputs=SPACE)
URN = "urn:pulumi:campaign-x::bivouac::bivouac:infra:Workloads$kubernetes:core/v1:Namespace::campaign"


class Door(HTTPServer):
    """An API server that knows its caller only once `open` is true."""

    open = False
    asked: list[str]


class Answer(BaseHTTPRequestHandler):
    server: Door

    def do_GET(self) -> None:
        kinds = [{"name": "namespaces", "kind": "Namespace", "namespaced": False}]
        self._tell({**SPACE, "status": {"phase": "Active"}} if "campaign" in self.path else {"resources": kinds})

    def do_PATCH(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._tell({**SPACE, "status": {"phase": "Active"}})

    def _tell(self, document: object) -> None:
        self.server.asked.append(self.path)
        body = json.dumps(document).encode()
        self.send_response(200 if self.server.open else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def door() -> Iterator[Door]:
    server = Door(("127.0.0.1", 0), Answer)
    server.asked = []
    serve(server)
    yield server
    server.shutdown()
    server.server_close()


def kubeconfig(door: Door) -> str:
    return json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "a",
        "clusters": [{"name": "a", "cluster": {"server": f"http://127.0.0.1:{door.server_port}"}}],
        "users": [{"name": "a", "user": {"token": "t"}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
    })  # fmt: skip


def test_a_cluster_that_does_not_know_us_at_first_is_unreachable_for_the_whole_run(door: Door) -> None:
    package = KubernetesPackage()
    package.configure({"kubeconfig": kubeconfig(door), "upsertExistingObjects": True})
    door.open = True
    with pytest.raises(Unreachable) as refused:
        package.create(WANTED)
    assert door.asked == ["/version"], "the plugin asks once"
    failed = EngineFailed("pulumi up", "campaign-x", (ResourceFailure(URN, str(refused.value)),), "")
    assert failed.causes == {Cause.STRANGER}
    assert "wait a minute" in str(failed.cure) and "run the same command again" in str(failed.cure)

    package = KubernetesPackage()
    package.configure({"kubeconfig": kubeconfig(door), "upsertExistingObjects": True})
    assert package.create(WANTED)[0] == "campaign", "the next run finds the door open"
