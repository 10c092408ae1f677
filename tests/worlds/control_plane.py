"""A control plane on a bridge, and the token webhook that EKS would be: fixtures for tests that are inside."""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import os
import ssl
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from lightkube import Client
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Secret
from pyroute2 import IPRoute

from infra.folders import tools_dir
from infra.rehearsal.kubernetes.control_plane import ControlPlane, ControlPlaneConfig
from infra.rehearsal.plugins.kubernetes.releases import STATE_ANNOTATION
from tests.serving import serve
from tests.worlds.inside import CHANNEL

ADDRESS, WEBHOOK = "10.77.0.10", "10.77.0.2"
USERS = {
    "owner": ("arn:aws:iam::123456789012:user/operator", ["eks:cluster-admin"]),
    "node": ("system:node:ip-10-42-1-17.ec2.internal", ["system:nodes"]),
}


class TokenReviews(BaseHTTPRequestHandler):
    """Knows the tokens that are keys of USERS."""

    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        known = USERS.get(review["spec"]["token"].removeprefix("k8s-aws-v1."))
        review["status"] = {"authenticated": known is not None}
        if known:
            review["status"]["user"] = {"username": known[0], "groups": known[1]}
        body = json.dumps(review).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="session")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlaneConfig]:
    assert CHANNEL in os.environ, "a bridge is for a network of the test's own: mark it `inside`"
    with IPRoute() as links:
        links.link("add", ifname="camp0", kind="bridge")
        bridge = links.link_lookup(ifname="camp0")[0]
        for address in (WEBHOOK, ADDRESS):
            links.addr("add", index=bridge, address=address, prefixlen=16)
        links.link("set", index=bridge, state="up")
        links.link("set", index=links.link_lookup(ifname="lo")[0], state="up")
    serve(server := ThreadingHTTPServer((WEBHOOK, 5000), TokenReviews))
    url = f"http://{WEBHOOK}:5000/_site/token-review"
    work = tmp_path_factory.mktemp("control-plane")
    yield ControlPlaneConfig("bivouac-test", "1.36", ADDRESS, work, url, tools_dir())
    server.shutdown()


@pytest.fixture(scope="session")
def plane(config: ControlPlaneConfig) -> Iterator[ControlPlane]:
    running = ControlPlane.start(config)
    yield running
    running.stop()


@pytest.fixture
def client(plane: ControlPlane) -> Client:
    return plane.client()


def ask(plane: ControlPlane, token: str, path: str) -> int:
    context = ssl.create_default_context(cadata=plane.ca_pem)
    connection = http.client.HTTPSConnection(ADDRESS, 6443, timeout=5, context=context)
    connection.request("GET", path, headers={"Authorization": f"Bearer k8s-aws-v1.{token}"})
    return connection.getresponse().status


def release_secret(release: str, chart: str, values: Mapping[str, Any] | None = None) -> Secret:
    document = {"name": release, "chart": {"metadata": {"name": chart, "version": "0.10.1"}}, "config": values or {}}
    data = base64.b64encode(base64.b64encode(gzip.compress(json.dumps(document).encode()))).decode()
    labels = {"owner": "helm", "name": release, "status": "deployed", "version": "1"}
    metadata = ObjectMeta(name=f"sh.helm.release.v1.{release}.v1", namespace="kube-system", labels=labels)
    return Secret(metadata=metadata, type="helm.sh/release.v1", data={"release": data})


def state_of(client: Client, release: str) -> str | None:
    secret = client.get(Secret, f"sh.helm.release.v1.{release}.v1", namespace="kube-system")
    assert secret.metadata
    return (secret.metadata.annotations or {}).get(STATE_ANNOTATION)
