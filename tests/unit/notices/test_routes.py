"""Each service as apprise speaks to it: servers on loopback under the services' names, with an authority of their own.

What is sent is compared with what the services document, not with apprise.
"""

from __future__ import annotations

import email
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from infra.notices.notice import Notice, NotSent
from infra.notices.ways import send
from infra.rehearsal.kubernetes.pki import Authority
from tests.serving import serve

NOTICE = Notice("bivouac train: alert Held (page)", "the loss is <NaN> & more\nNext: look at it", is_urgent=True)
SLACK, PAGER = "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7zz", "pagerduty://" + "k" * 32 + "@" + "a" * 20
TEAMS = "workflows://prod-161.westeurope.logic.azure.com:443/643e69f83c8944438d68119179a10a64/hush-hush"
HOSTS = ["hooks.slack.com", "events.pagerduty.com", "prod-161.westeurope.logic.azure.com", "hooks.example.org"]


class Request(NamedTuple):
    host: str
    path: str
    body: Any


class Service(ThreadingHTTPServer):
    """Answers `status` over TLS; keeps what it got."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.status, self.requests = 200, list[Request]()
        authority = Authority(folder, "services")
        pair = authority.server("services", HOSTS)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.trust = authority.files.certificate


class Answer(BaseHTTPRequestHandler):
    server: Service

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(Request(self.headers["Host"].partition(":")[0], self.path, body))
        answer = b"ok"
        self.send_response(self.server.status)
        self.send_header("Location", "https://hooks.example.org/elsewhere")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """All names lead to it; none leads to the internet."""
    server = Service(tmp_path)
    serve(server)
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(server.trust))
    place = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", server.server_port))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **options: [place])
    yield server
    server.shutdown()
    server.server_close()


def test_slack_gets_it_at_its_webhook(service: Service) -> None:
    """https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks"""
    assert send(SLACK, NOTICE) == "Slack took it"
    (request,) = service.requests
    assert request.host == "hooks.slack.com"
    assert request.path == "/services/T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7zz"
    text = json.dumps(request.body)
    assert NOTICE.subject in text and "&lt;NaN&gt; &amp; more" in text


def test_pagerduty_gets_a_critical_event(service: Service) -> None:
    """https://developer.pagerduty.com/docs/send-alert-event"""
    assert send(PAGER, NOTICE) == "Pager Duty took it"
    (request,) = service.requests
    assert (request.host, request.path) == ("events.pagerduty.com", "/v2/enqueue")
    assert (request.body["routing_key"], request.body["event_action"]) == ("k" * 32, "trigger")
    assert request.body["payload"]["severity"] == "critical" and "the loss is <NaN> & more" in json.dumps(request.body)
    send(PAGER, Notice("a test", "nothing"))
    assert service.requests[1].body["payload"]["severity"] == "info"


def test_teams_gets_a_card_by_its_workflow(service: Service) -> None:
    """https://learn.microsoft.com/power-automate/teams/teams-app-create"""
    send(TEAMS, NOTICE)
    (request,) = service.requests
    assert request.host == "prod-161.westeurope.logic.azure.com" and "643e69f83c8944438d68119179a10a64" in request.path
    assert request.body["type"] == "message"
    card = request.body["attachments"][0]
    assert card["contentType"] == "application/vnd.microsoft.card.adaptive" and NOTICE.subject in json.dumps(card)


def test_a_webhook_of_ones_own_gets_json(service: Service) -> None:
    send("jsons://hooks.example.org/bivouac", NOTICE)
    (request,) = service.requests
    assert request.path.rstrip("/") == "/bivouac"
    assert (request.body["title"], request.body["message"]) == (NOTICE.subject, NOTICE.text)


@pytest.mark.parametrize("status", [302, 400, 403, 404, 429, 500])
@pytest.mark.parametrize("address", [SLACK, PAGER, "jsons://hooks.example.org/hush-hush"])
def test_a_refusal_is_told_by_its_status_and_not_by_its_address(service: Service, address: str, status: int) -> None:
    service.status = status
    with pytest.raises(NotSent, match=f"answers with status {status}$") as refused:
        send(address, NOTICE)
    assert "hush" not in str(refused.value) and "k" * 8 not in str(refused.value)
    assert len(service.requests) == 1, "no redirect is followed, and the outbox alone tries again"


def test_a_certificate_that_nobody_knows_gets_nothing(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REQUESTS_CA_BUNDLE")
    with pytest.raises(NotSent, match="Slack cannot be reached"):
        send(SLACK, NOTICE)
    assert not service.requests


@pytest.mark.parametrize("address", ["", "https://hooks.example.org/hush-hush", "nosuch://hush-hush", "slack://hush"])
def test_an_address_that_is_none_is_told_without_it(address: str) -> None:
    with pytest.raises(NotSent, match="none that apprise knows") as refused:
        send(address, NOTICE)
    assert "hush" not in str(refused.value) and refused.value.__context__ is None


@pytest.mark.parametrize("address", ["json://hooks.example.org/hush", "mailto://me:hush@example.org"])
def test_an_address_without_encryption_is_refused(service: Service, address: str) -> None:
    with pytest.raises(NotSent, match="without encryption"):
        send(address, NOTICE)
    assert not service.requests


class MailServer(threading.Thread):
    """Takes one mail as RFC 5321 says."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.commands, self.mail = list[str](), b""

    def run(self) -> None:
        connection, _ = self._listener.accept()
        with connection, connection.makefile("rwb") as stream, self._listener:
            self._say(stream, "220 mail")
            while line := stream.readline().strip():
                self.commands.append(line.decode())
                word = line[:4].upper()
                if word == b"DATA":
                    self._say(stream, "354 go on")
                    while (text := stream.readline()) != b".\r\n":
                        self.mail += text
                self._say(stream, "221 bye" if word == b"QUIT" else "250 ok")
                if word == b"QUIT":
                    return

    @staticmethod
    def _say(stream: Any, words: str) -> None:
        stream.write(f"{words}\r\n".encode())
        stream.flush()


def test_a_mail_has_subject_and_text() -> None:
    server = MailServer()
    server.start()
    send(f"mailto://127.0.0.1:{server.port}?from=bivouac@example.org&to=ada@example.org&format=text", NOTICE)
    server.join()
    mail = email.message_from_bytes(server.mail)
    assert mail["Subject"] == NOTICE.subject and "ada@example.org" in mail["To"]
    part = next(part for part in mail.walk() if part.get_content_type() == "text/plain")
    assert "the loss is <NaN> & more" in bytes(part.get_payload(decode=True)).decode()
    assert any(command.upper().startswith("RCPT TO:<ADA@EXAMPLE.ORG>") for command in server.commands)
