"""A webhook of Slack's form over TLS on loopback; its address stands in no error."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from infra.notices.notice import Notice, NotSent
from infra.notices.ways import post
from infra.rehearsal.kubernetes.pki import Authority
from tests.serving import serve

PATH = "/services/T0/B0/hush-hush"
NOTICE = Notice("bivouac train: held", "the loss is <NaN> & more")


class Hook(HTTPServer):
    """Answers `status`; keeps what it got."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.status, self.got = 200, list[tuple[str, Any]]()
        authority = Authority(folder, "hook")
        pair = authority.server("hook", ["127.0.0.1"])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.trust = ssl.create_default_context(cafile=str(authority.files.certificate))

    @property
    def address(self) -> str:
        return f"https://127.0.0.1:{self.server_port}{PATH}"


class Answer(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, json.loads(body)))
        self.send_response(self.server.status)
        self.send_header("Location", self.server.address)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")


@pytest.fixture
def hook(tmp_path: Path) -> Iterator[Hook]:
    http = Hook(tmp_path)
    serve(http)
    yield http
    http.shutdown()
    http.server_close()


def test_a_notice_arrives_as_slacks_text_with_its_three_characters_escaped(hook: Hook) -> None:
    post(hook.address, NOTICE, hook.trust)
    assert hook.got == [(PATH, {"text": "*bivouac train: held*\nthe loss is &lt;NaN&gt; &amp; more"})]


@pytest.mark.parametrize("status", [302, 404, 410, 500])
def test_an_answer_that_is_no_success_is_told_by_its_status_and_no_redirect_is_followed(
    hook: Hook, status: int
) -> None:
    hook.status = status
    with pytest.raises(NotSent, match=f"^the webhook answers with status {status}$"):
        post(hook.address, NOTICE, hook.trust)
    assert len(hook.got) == 1


def test_a_certificate_that_nobody_knows_gets_nothing(hook: Hook) -> None:
    with pytest.raises(NotSent, match=r"^the webhook cannot be reached: SSLCertVerificationError$"):
        post(hook.address, NOTICE)
    assert not hook.got


@pytest.mark.parametrize(
    "address",
    [
        f"http://127.0.0.1:1{PATH}",
        f"https://127.0.0.1:1{PATH}",  # nobody listens there
        f"https://{PATH}",
        f"https://127.0.0.1:port{PATH}",
        f"https://two words{PATH}",
        f"file://{PATH}",
        PATH,
    ],
)
def test_no_error_holds_the_address(address: str) -> None:
    with pytest.raises(NotSent) as refused:
        post(address, NOTICE)
    assert "hush" not in str(refused.value) and refused.value.__cause__ is None


def test_a_webhook_that_took_a_notice_says_with_which_status(hook: Hook) -> None:
    hook.status = 204
    assert post(hook.address, NOTICE, hook.trust) == "the webhook answers with status 204"
