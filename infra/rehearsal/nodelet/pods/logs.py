"""The kubelet's port, through which `kubectl logs` and `kubectl exec` reach a container by way of the API server."""

from __future__ import annotations

import ipaddress
import logging
import os
import ssl
import threading
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import parse_qs, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from infra.rehearsal.nodelet.metadata import LocalServer
from infra.rehearsal.nodelet.node import KUBELET_PORT
from infra.rehearsal.nodelet.pods.execution import serve_execution
from infra.rehearsal.nodelet.pods.sandbox import Container

log = logging.getLogger(__name__)

Find = Callable[[str, str, str, bool], Path | None]
"""(namespace, pod, container, previous) -> its output, or None if this node does not know it."""
Running = Callable[[str, str, str], bool]
Program = Callable[[str, str, str], Container | None]
"""(namespace, pod, container) -> its running program."""
CHUNK = 65536
FOLLOW_S = 0.2
BY_TIME = ("timestamps", "sinceTime", "sinceSeconds")


def self_signed(address: str, hostname: str) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """Make a self-signed serving certificate, as a kubelet without a signer does."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hostname)])
    now = datetime.now(UTC)
    names = [x509.IPAddress(ipaddress.ip_address(address)), x509.DNSName(hostname)]
    certificate_builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=365))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    return key, certificate_builder


def certificate(address: str, hostname: str, folder: Path) -> Path:
    """Write key and certificate to one file."""
    key, certificate_pem = self_signed(address, hostname)
    plain = serialization.NoEncryption()
    path = folder / "kubelet.pem"
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
        + certificate_pem.public_bytes(serialization.Encoding.PEM)
    )
    return path


class Server(LocalServer):
    def __init__(self, address: str, handler: type[BaseHTTPRequestHandler], tls: ssl.SSLContext) -> None:
        super().__init__((address, KUBELET_PORT), handler)
        self._tls = tls

    def finish_request(self, request: Any, client_address: Any) -> None:
        # The handshake runs on the connection's own thread, so that a silent client does not block the others.
        request.settimeout(10)
        try:
            connection = self._tls.wrap_socket(request, server_side=True)
        except OSError:
            return
        connection.settimeout(None)
        try:
            super().finish_request(connection, client_address)
        except OSError as error:
            log.debug("a reader left: %s", error)
        finally:
            connection.close()


def serve_kubelet(
    address: str, hostname: str, folder: Path, authority_pem: str, find: Find, running: Running, program: Program
) -> None:
    """Serve clients with a certificate of the cluster's authority, which only the API server has."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate(address, hostname, folder))
    tls.load_verify_locations(cadata=authority_pem)
    tls.verify_mode = ssl.CERT_REQUIRED

    logs: dict[Path, Stamped] = {}

    class KubeletHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            parts, query = url.path.strip("/").split("/"), {k: v[0] for k, v in parse_qs(url.query).items()}
            if url.path == "/healthz":
                return self._text(HTTPStatus.OK, "ok")
            if len(parts) == 4 and parts[0] == "exec":
                container = program(parts[1], parts[2], parts[3])
                return serve_execution(self, parse_qs(url.query), container, parts[3], self._text)
            if len(parts) != 4 or parts[0] != "containerLogs":
                return self._text(HTTPStatus.NOT_FOUND, "a nodelet serves /containerLogs, /exec and /healthz")
            previous = query.get("previous") == "true"
            path = find(parts[1], parts[2], parts[3], previous)
            if path is None or not path.exists():
                return self._text(HTTPStatus.NOT_FOUND, f'container "{parts[3]}" in pod "{parts[2]}" has no log')
            follow = query.get("follow") == "true" and not previous
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/plain")
            self.end_headers()
            limit = int(query["limitBytes"]) if "limitBytes" in query else None
            is_running = (lambda: running(parts[1], parts[2], parts[3])) if follow else lambda: False
            if any(query.get(name) not in (None, "", "false") for name in BY_TIME):
                return self._send_by_time(logs.setdefault(path, Stamped(path)), query, limit, is_running)
            with path.open("rb") as file:
                _seek_tail(file, query.get("tailLines"))
                self._send(file, limit, is_running)

        def _send(self, file: BinaryIO, left: int | None, is_running: Callable[[], bool]) -> None:
            while True:
                going_on = is_running()
                while chunk := file.read(CHUNK if left is None else min(CHUNK, left)):
                    self.wfile.write(chunk)
                    left = None if left is None else left - len(chunk)
                self.wfile.flush()
                if not going_on:
                    return
                time.sleep(FOLLOW_S)

        def _send_by_time(
            self, log: Stamped, query: dict[str, str], left: int | None, is_running: Callable[[], bool]
        ) -> None:
            going_on = is_running()
            end = log.look(all_of_it=not going_on)
            start = max(log.first_line_since(_since_query(query)), end - int(query.get("tailLines", end)))
            while True:
                for line in log.lines(start, end, query.get("timestamps") == "true"):
                    self.wfile.write(line[:left])
                    left = None if left is None else left - len(line[:left])
                self.wfile.flush()
                if not going_on:
                    return
                time.sleep(FOLLOW_S)
                going_on = is_running()
                start, end = end, log.look(all_of_it=not going_on)

        def _text(self, status: HTTPStatus, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            return

    server = Server(address, KubeletHandler, tls)
    threading.Thread(target=server.serve_forever, name="kubelet port", daemon=True).start()


def _since_query(query: dict[str, str]) -> int:
    """Return the earliest time wanted, in ns since the epoch."""
    if query.get("sinceTime"):
        return nanoseconds(query["sinceTime"])
    return time.time_ns() - int(query["sinceSeconds"]) * 10**9 if query.get("sinceSeconds") else 0


def _seek_tail(file: BinaryIO, lines: str | None) -> None:
    if lines is None:
        return
    end = position = file.seek(0, 2)
    # A last line without its newline counts as one, so one more newline is searched for.
    limit, count = int(lines), 0
    if limit == 0:
        return
    while position > 0:
        step = min(CHUNK, position)
        position -= step
        file.seek(position)
        block = file.read(step)
        for offset in range(len(block) - 1, -1, -1):
            if block[offset] == 0x0A and position + offset != end - 1:
                count += 1
                if count == limit:
                    file.seek(position + offset + 1)
                    return
    file.seek(0)


_S = 10**9


class Stamped:
    """One log file, with a timestamp for each line. A container writes its file directly, so a line gets the time of
    the file at its reading. It keeps its first timestamp, and no two lines share one, so readers may resume by it. Safe
    for several readers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._times, self._ends = array("q"), array("q")
        """Per whole line: ns since the epoch, and the offset of its end."""
        self._lock = threading.Lock()

    def look(self, all_of_it: bool) -> int:
        """Read on and return the number of lines; `all_of_it` counts a last line without its newline."""
        with self._lock, self.path.open("rb") as file:
            offset = file.seek(self._ends[-1] if self._ends else 0)
            for line in file:
                if not line.endswith(b"\n") and not all_of_it:
                    break
                offset += len(line)
                written_ns = os.fstat(file.fileno()).st_mtime_ns
                self._times.append(max(written_ns, self._times[-1] + 1 if self._times else 0))
                self._ends.append(offset)
            return len(self._ends)

    def first_line_since(self, moment_ns: int) -> int:
        """Return the number of the first line that is not older than `moment_ns`, in ns since the epoch."""
        with self._lock:
            return bisect_left(self._times, moment_ns)

    def lines(self, start: int, end: int, with_times: bool) -> Iterator[bytes]:
        """Yield lines that `look` has read, in a kubelet's format."""
        with self.path.open("rb") as file:
            file.seek(self._ends[start - 1] if start else 0)
            for number in range(start, end):
                line = file.readline()
                yield _rfc3339(self._times[number]) + b" " + line if with_times else line


def nanoseconds(rfc3339: str) -> int:
    """Convert a time in the API server's format. Raises `ValueError`."""
    moment = datetime.fromisoformat(rfc3339.replace("Z", "+00:00"))
    return int(moment.timestamp()) * _S


def _rfc3339(moment_ns: int) -> bytes:
    return f"{datetime.fromtimestamp(moment_ns // _S, UTC):%Y-%m-%dT%H:%M:%S}.{moment_ns % _S:09d}Z".encode()
