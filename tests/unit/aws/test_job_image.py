"""A workload's image in a registry that speaks the OCI distribution protocol: tags, indexes, tokens, logins, refusals.

The answers have the form of https://github.com/opencontainers/distribution-spec/blob/main/spec.md and, for the token,
of https://distribution.github.io/distribution/spec/auth/token/.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from infra.aws.account import Account
from infra.aws.job_image import Login, find_job_image
from infra.errors import PermanentError, TemporaryError, UserError
from tests.serving import serve

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
TOKEN, MEMBERS_TOKEN = "anonymous-token", "members-token"
ADA = Login("$ada", "correct horse: ü")


def sum_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class Registry:
    """One repository, `team/job`; `locked` asks for a token first, `private` gives none. `member`: who alone may read
    it, by a token, or `by_basic` with the login itself."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.member, self.by_basic, self.realm = "", False, ""
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
        url, shown = urlsplit(request.path), request.headers.get("Authorization")
        self.asked.append(url.path)
        wanted = f"Bearer {MEMBERS_TOKEN if self.member else TOKEN}"
        if url.path == "/token":
            scope = parse_qs(url.query)
            assert scope == {"service": ["registry"], "scope": ["repository:team/job:pull"]}
            # As Docker Hub: a stranger gets a token that opens nothing private, a wrong password none at all.
            refused = self.private or (self.member and shown is not None and shown != f"Basic {self.member}")
            token = MEMBERS_TOKEN if self.member and shown == f"Basic {self.member}" else TOKEN
            self._say(request, 401 if refused else 200, json.dumps({} if refused else {"token": token}).encode())
        elif self.by_basic and shown != f"Basic {self.member}":
            self._say(request, 401, b"", {"WWW-Authenticate": 'Basic realm="team"'})
        elif self.locked and not self.by_basic and shown != wanted:
            at = self.realm or f"http://{self.host}/token"
            realm = f'Bearer realm="{at}",service="registry",scope="repository:team/job:pull"'
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


def closed_to_all_but(registry: Registry, login: Login) -> None:
    registry.locked, registry.member = True, base64.b64encode(f"{login.user}:{login.password}".encode()).decode()


def found(registry: Registry, which: str = ":v1", login: Login | None = None) -> str:
    return find_job_image(Account("us-east-1"), f"{registry.host}/team/job{which}", login)


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


@pytest.mark.parametrize("by_basic", [False, True])
def test_a_login_opens_a_private_registry_by_a_token_or_by_itself(registry: Registry, by_basic: bool) -> None:
    closed_to_all_but(registry, ADA)
    registry.by_basic = by_basic
    digest = registry.push("v1")
    assert found(registry, login=ADA) == f"{registry.host}/team/job@{digest}"
    assert ("/token" in registry.asked) is not by_basic
    with pytest.raises(UserError, match=r"does not let an anonymous client.*401.*workload\.pull_secret"):
        found(registry)


@pytest.mark.parametrize("by_basic", [False, True])
def test_a_login_that_the_registry_refuses_is_said_without_its_password(registry: Registry, by_basic: bool) -> None:
    closed_to_all_but(registry, ADA)
    registry.by_basic = by_basic
    registry.push("v1")
    wrong = Login(ADA.user, "swordfish")
    with pytest.raises(UserError, match=r"refuses the login.*team/job:v1: 401") as refused:
        found(registry, login=wrong)
    assert "swordfish" not in f"{refused.value} {wrong!r}" and "JGFkYTpzd29yZGZpc2g" not in str(refused.value)


def test_a_login_is_not_sent_to_a_registry_that_asks_for_none(registry: Registry) -> None:
    digest, heard = registry.push("v1"), list[str | None]()
    answer = registry.answer
    registry.answer = lambda request: heard.append(request.headers.get("Authorization")) or answer(request)  # type: ignore[method-assign]
    assert found(registry, login=ADA).endswith(digest) and heard == [None, None]


def test_a_password_goes_to_no_token_service_without_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a registry of this machine is without TLS itself."""
    urls: list[str] = []

    def get(url: str, **how: Any) -> httpx2.Response:
        urls.append(url)
        realm = 'Bearer realm="http://tokens.example.com/token",service="x"'
        return httpx2.Response(401, headers={"www-authenticate": realm}, request=httpx2.Request("GET", url))

    monkeypatch.setattr(httpx2, "get", get)
    with pytest.raises(UserError, match=r"password without TLS.*tokens\.example\.com"):
        find_job_image(Account("us-east-1"), "registry.example.com/team/job:v1", ADA)
    assert urls == ["https://registry.example.com/v2/team/job/manifests/v1"]


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
