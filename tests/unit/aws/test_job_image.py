"""A workload's image in a registry that speaks the OCI distribution protocol: tags, indexes, tokens, refusals.

The answers have the form of https://github.com/opencontainers/distribution-spec/blob/main/spec.md and, for the token,
of https://distribution.github.io/distribution/spec/auth/token/.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from infra.aws.account import Account
from infra.aws.job_image import find_job_image
from infra.errors import PermanentError, TemporaryError, UserError
from tests.serving import serve

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
TOKEN = "anonymous-token"


def sum_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class Registry:
    """One repository, `team/job`; `locked` asks for a token first, `private` gives none."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.locked, self.private, self.status = False, False, 0
        self.asked: list[str] = []
        self.moved: dict[str, str] = {}
        registry = self

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry.answer(self)

            def log_message(self, *_: Any) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self.host = f"127.0.0.1:{self.http.server_port}"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        url = urlsplit(request.path)
        self.asked.append(url.path)
        if url.path == "/token":
            wanted = parse_qs(url.query)
            assert wanted == {"service": ["registry"], "scope": ["repository:team/job:pull"]}
            self._say(request, 401 if self.private else 200, json.dumps({"token": TOKEN}).encode())
        elif self.locked and request.headers.get("Authorization") != f"Bearer {TOKEN}":
            realm = f'Bearer realm="http://{self.host}/token",service="registry",scope="repository:team/job:pull"'
            self._say(request, 401, b"", {"WWW-Authenticate": realm})
        elif self.status:
            self._say(request, self.status, b"")
        else:
            name = url.path.removeprefix("/v2/team/job/")
            if name in self.moved:
                return self._say(request, 307, b"", {"Location": self.moved[name]})
            found = self.content.get(name)
            self._say(request, 404 if found is None else 200, found or b"{}")

    @staticmethod
    def _say(request: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        request.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(body)

    def push(self, tag: str, architecture: str = "amd64") -> str:
        config = json.dumps({"os": "linux", "architecture": architecture}).encode()
        document = {"mediaType": MANIFEST, "config": {"digest": sum_of(config)}, "layers": []}
        body = json.dumps(document).encode()
        self.content |= {f"blobs/{sum_of(config)}": config}
        self.content |= dict.fromkeys((f"manifests/{tag}", f"manifests/{sum_of(body)}"), body)
        return sum_of(body)

    def push_index(self, tag: str, digests: dict[str, str]) -> None:
        rows = [
            {"mediaType": MANIFEST, "digest": digest, "platform": {"os": "linux", "architecture": architecture}}
            for architecture, digest in digests.items()
        ]
        self.content[f"manifests/{tag}"] = json.dumps({"mediaType": INDEX, "manifests": rows}).encode()


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    made = Registry()
    serve(made.http)
    yield made
    made.http.shutdown()
    made.http.server_close()


def found(registry: Registry, which: str = ":v1") -> str:
    return find_job_image(Account("us-east-1"), f"{registry.host}/team/job{which}")


@pytest.mark.parametrize("locked", [False, True])
def test_a_tag_becomes_the_digest_of_what_the_registry_has_under_it(registry: Registry, locked: bool) -> None:
    registry.locked = locked
    digest = registry.push("v1")
    assert found(registry) == found(registry, f"@{digest}") == f"{registry.host}/team/job@{digest}"
    assert ("/token" in registry.asked) is locked


def test_of_an_index_it_is_the_image_for_our_nodes(registry: Registry) -> None:
    of = {one: registry.push(f"v1-{one}", one) for one in ("arm64", "amd64")}
    registry.push_index("v1", of)
    assert found(registry) == f"{registry.host}/team/job@{of['amd64']}"
    registry.push_index("v2", {"arm64": of["arm64"]})
    with pytest.raises(UserError, match=r"no build for linux/amd64.*linux/arm64"):
        found(registry, ":v2")


def test_an_image_for_other_machines_is_refused(registry: Registry) -> None:
    registry.push("v1", "arm64")
    with pytest.raises(UserError, match=r"another platform.*linux/arm64.*--platform linux/amd64"):
        found(registry)


def test_a_missing_a_private_and_a_busy_registry_are_told_apart(registry: Registry) -> None:
    with pytest.raises(UserError, match=r"no such image.*team/job:v1"):
        found(registry)
    registry.locked = registry.private = True
    with pytest.raises(UserError, match=r"does not let an anonymous client.*401.*pull-through"):
        found(registry)
    registry.locked, registry.status = False, 503
    with pytest.raises(TemporaryError, match=r"does not answer now.*503"):
        found(registry)
    registry.http.shutdown()
    registry.http.server_close()
    with pytest.raises(TemporaryError, match=r"cannot be reached"):
        found(registry)


def test_a_manifest_of_another_digest_than_asked_for_is_refused(registry: Registry) -> None:
    digest = registry.push("v1")
    registry.content[f"manifests/{digest}"] += b" "
    with pytest.raises(PermanentError, match=r"another document"):
        found(registry, f"@{digest}")


def test_a_configuration_of_another_digest_than_the_manifest_says_is_refused(registry: Registry) -> None:
    registry.push("v1")
    (blob,) = [key for key in registry.content if key.startswith("blobs/")]
    registry.content[blob] = registry.content[blob].replace(b"amd64", b"arm64")
    with pytest.raises(PermanentError, match=r"another document"):
        found(registry)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"<html>", "no JSON object"),
        (b"[1]", "no JSON object"),
        (b'{"schemaVersion": 1, "fsLayers": []}', "no configuration of an image; seen: .*schema 1"),
    ],
)
def test_what_is_no_manifest_of_an_image_is_said(registry: Registry, body: bytes, why: str) -> None:
    registry.content["manifests/v1"] = body
    with pytest.raises((PermanentError, UserError), match=why):
        found(registry)


def test_the_token_does_not_follow_to_the_storage_that_a_registry_sends_to(registry: Registry) -> None:
    registry.locked = True
    registry.push("v1")
    (blob,) = [key for key in registry.content if key.startswith("blobs/")]
    heard: list[str | None] = []

    class Storage(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(self.headers.get("Authorization"))
            Registry._say(self, 200, registry.content[blob])

        def log_message(self, *_: Any) -> None: ...

    storage = ThreadingHTTPServer(("127.0.0.1", 0), Storage)
    serve(storage)
    registry.moved[blob] = f"http://127.0.0.1:{storage.server_port}/there"
    try:
        assert found(registry).startswith(f"{registry.host}/team/job@sha256:") and heard == [None]
    finally:
        storage.shutdown()
        storage.server_close()
