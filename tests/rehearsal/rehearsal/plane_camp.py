"""What inside_control_plane.py stands on: a control plane on a bridge, and the token webhook that EKS would be."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from lightkube import Client
from pyroute2 import IPRoute

from infra.folders import tools_dir
from infra.rehearsal.kubernetes.control_plane import ControlPlane, ControlPlaneConfig
from tests.serving import serve

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


@pytest.fixture(scope="module")
def config() -> Iterator[ControlPlaneConfig]:
    with IPRoute() as links:
        links.link("add", ifname="camp0", kind="bridge")
        bridge = links.link_lookup(ifname="camp0")[0]
        for address in (WEBHOOK, ADDRESS):
            links.addr("add", index=bridge, address=address, prefixlen=16)
        links.link("set", index=bridge, state="up")
        links.link("set", index=links.link_lookup(ifname="lo")[0], state="up")
    serve(server := ThreadingHTTPServer((WEBHOOK, 5000), TokenReviews))
    url = f"http://{WEBHOOK}:5000/_site/token-review"
    yield ControlPlaneConfig("bivouac-test", "1.36", ADDRESS, Path(os.environ["CONTROL_PLANE_WORK"]), url, tools_dir())
    server.shutdown()


@pytest.fixture(scope="module")
def plane(config: ControlPlaneConfig) -> Iterator[ControlPlane]:
    started = time.monotonic()
    running = ControlPlane.start(config)
    print(f"control plane ready in {time.monotonic() - started:.1f} s")
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
