"""Single parts over the AWS Common Runtime, to and from a server of this process that keeps what it was asked."""

from __future__ import annotations

import io
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, HTTPClientError

from infra.aws.parts import Altered, PartTransfers, as_client_error
from infra.rehearsal.kubernetes.pki import Authority
from tests.serving import serve

BODY = bytes(range(256)) * 400
WHERE = {"Bucket": "b", "Key": "campaigns/tiny/a shard"}
PART = {**WHERE, "UploadId": "u-1", "PartNumber": 7}


class Server(ThreadingHTTPServer):
    """`answer` gets method, headers and body and returns (status, headers, body, how much of it is sent)."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Asked)
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.answer: Callable[..., tuple[int, dict[str, str], bytes, int | None]] = lambda *_: (200, {}, b"", None)


class Asked(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.asked.append((self.command, self.path, headers, body))
        status, told, content, sent = self.server.answer(self.command, headers, body)
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **told}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content[:sent])
        self.close_connection = sent is not None

    do_GET = do_PUT = _serve

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    serve(server)
    yield server
    server.shutdown()
    server.server_close()


def parts_of(port: int, scheme: str = "http") -> PartTransfers:
    config = Config(signature_version="s3v4", s3={"addressing_style": "path"})
    endpoint = f"{scheme}://127.0.0.1:{port}"
    return PartTransfers(boto3.client("s3", "eu-north-1", endpoint_url=endpoint, aws_access_key_id="AKID",
                              aws_secret_access_key="secret", config=config))  # fmt: skip


@pytest.fixture
def parts(server: Server) -> PartTransfers:
    return parts_of(server.server_port)


def an_object(body: bytes, total: int | None = None, sent: int | None = None) -> Callable[..., Any]:
    """Answer ranges of an object as S3 does; `total` is what it says of the whole."""

    def answer(method: str, headers: dict[str, str], _: bytes) -> tuple[int, dict[str, str], bytes, int | None]:
        first, last = map(int, headers["range"].removeprefix("bytes=").split("-"))
        said = {"Content-Range": f"bytes {first}-{last}/{len(body) if total is None else total}"}
        return 206, said, body[first : last + 1], sent

    return answer


def fetched(parts: PartTransfers, start: int, length: int, of: int = len(BODY)) -> bytes:
    into = bytearray(length)
    assert parts.get(WHERE, start, memoryview(into), of).result(30) == length
    return bytes(into)


def test_a_part_is_sent_once_signed_and_its_answer_kept(server: Server, parts: PartTransfers) -> None:
    server.answer = lambda *_: (200, {"ETag": '"tag"', "X-Own": "1"}, b"", None)
    answer = parts.put(PART, {"x-amz-checksum-crc32c": "AAAA"}, io.BytesIO(BODY), len(BODY)).result(30)
    assert answer["etag"] == '"tag"' and answer["x-own"] == "1"
    ((method, path, headers, body),) = server.asked
    asked = parse_qs(urlsplit(path).query)
    assert (method, body, urlsplit(path).path) == ("PUT", BODY, "/b/campaigns/tiny/a%20shard")
    assert asked["uploadId"] == ["u-1"] and asked["partNumber"] == ["7"]
    assert asked["X-Amz-Credential"][0].startswith("AKID/") and asked["X-Amz-Signature"]
    assert int(asked["X-Amz-Expires"][0]) >= 900, "what waits for its turn must not expire"
    assert headers["host"] == f"127.0.0.1:{server.server_port}"
    assert headers["content-length"] == str(len(BODY)) and headers["x-amz-checksum-crc32c"] == "AAAA"


def test_a_part_comes_into_its_place(server: Server, parts: PartTransfers) -> None:
    server.answer = an_object(BODY)
    assert fetched(parts, 0, 1000) == BODY[:1000]
    assert fetched(parts, 1003, 5000) == BODY[1003:6003]
    assert fetched(parts, len(BODY) - 7, 7) == BODY[-7:]
    assert fetched(parts, 0, len(BODY)) == BODY
    ranges = [headers["range"] for _, _, headers, _ in server.asked]
    assert ranges == ["bytes=0-999", "bytes=1003-6002", "bytes=102393-102399", "bytes=0-102399"]
    assert {method for method, *_ in server.asked} == {"GET"}
    assert all(urlsplit(path).path == "/b/campaigns/tiny/a%20shard" for _, path, *_ in server.asked)
    assert int(parse_qs(urlsplit(server.asked[0][1]).query)["X-Amz-Expires"][0]) >= 900


def test_a_version_that_was_read_back_is_the_one_that_is_asked_for(server: Server, parts: PartTransfers) -> None:
    server.answer = an_object(BODY)
    parts.get({**WHERE, "VersionId": "v7"}, 0, memoryview(bytearray(10)), len(BODY)).result(30)
    assert parse_qs(urlsplit(server.asked[0][1]).query)["versionId"] == ["v7"]


@pytest.mark.parametrize("total", [len(BODY) - 1, len(BODY) + 1])
def test_an_object_of_another_size_is_altered(server: Server, parts: PartTransfers, total: int) -> None:
    server.answer = an_object(BODY, total)
    with pytest.raises(Altered, match=f"a shard: {total} bytes, not {len(BODY)}"):
        fetched(parts, 0, 1000)


def test_an_answer_without_a_range_counts_by_its_bytes(server: Server, parts: PartTransfers) -> None:
    server.answer = lambda *_: (200, {}, BODY, None)
    assert fetched(parts, 0, len(BODY)) == BODY
    server.answer = lambda *_: (200, {}, BODY[:-1], None)
    with pytest.raises(HTTPClientError, match=f"{len(BODY) - 1} of {len(BODY)} bytes came"):
        fetched(parts, 0, len(BODY))


def test_more_bytes_than_were_asked_for_are_no_part(server: Server, parts: PartTransfers) -> None:
    """They would run over the next part's place."""
    server.answer = lambda *_: (200, {}, BODY + b"!", None)
    with pytest.raises(HTTPClientError, match="bytes came"):
        fetched(parts, 0, len(BODY))


def test_a_part_that_broke_off_is_fetched_from_its_beginning(server: Server, parts: PartTransfers) -> None:
    whole, broken = an_object(BODY), an_object(BODY, sent=40_000)
    server.answer = lambda *asked: (broken if len(server.asked) == 1 else whole)(*asked)
    assert fetched(parts, 100, 90_000) == BODY[100:90_100]
    assert len(server.asked) == 2


def test_what_s3_is_too_busy_for_is_asked_again(server: Server, parts: PartTransfers) -> None:
    def busy(*_: Any) -> tuple[int, dict[str, str], bytes, int | None]:
        if len(server.asked) == 1:
            return 503, {}, b"<Error><Code>SlowDown</Code><Message>reduce</Message></Error>", None
        return 200, {"ETag": '"tag"'}, b"", None

    server.answer = busy
    answer = parts.put(PART, {}, io.BytesIO(BODY), len(BODY)).result(30)
    assert answer["etag"] == '"tag"' and [body for *_, body in server.asked] == [BODY, BODY]


@pytest.mark.parametrize(
    ("status", "body", "code", "message"),
    [
        (404, b"<Error><Code>NoSuchUpload</Code><Message>it ended</Message></Error>", "NoSuchUpload", "it ended"),
        (412, b"", "412", None),
        (400, b"<Error><Code>BadDigest</Code></Error>", "BadDigest", None),
        (403, b"<Error><Code>AccessDenied</Code><Message></Message></Error>", "AccessDenied", ""),
    ],
)
def test_what_s3_refuses_is_refused_as_boto3_says_it(
    server: Server, parts: PartTransfers, status: int, body: bytes, code: str, message: str | None
) -> None:
    server.answer = lambda *_: (status, {}, body, None)
    asks: list[tuple[str, Callable[[], Any]]] = [
        ("UploadPart", lambda: parts.put(PART, {}, io.BytesIO(BODY), len(BODY))),
        ("GetObject", lambda: parts.get(WHERE, 0, memoryview(bytearray(10)), len(BODY))),
    ]
    for operation, ask in asks:
        with pytest.raises(ClientError) as told:
            ask().result(30)
        assert told.value.response["Error"]["Code"] == code and told.value.operation_name == operation
        assert told.value.response["ResponseMetadata"]["HTTPStatusCode"] == status
        assert message is None or told.value.response["Error"]["Message"] == message


def test_a_server_that_is_not_there_is_an_error_on_the_way() -> None:
    nobody = Server()
    nobody.server_close()
    with pytest.raises(HTTPClientError, match="GetObject"):
        parts_of(nobody.server_port).get(WHERE, 0, memoryview(bytearray(10)), len(BODY)).result(60)


@pytest.mark.parametrize("status", [None, 200, 206, 299])
def test_an_error_after_a_good_status_is_one_of_the_way(status: int | None) -> None:
    error = OSError("the line broke")
    error.status_code = status  # type: ignore[attr-defined]
    assert isinstance(as_client_error(error, "GetObject"), HTTPClientError)
    error.status_code = 300  # type: ignore[attr-defined]
    assert isinstance(as_client_error(error, "GetObject"), ClientError)


def test_many_parts_at_once_share_one_runtime(server: Server, parts: PartTransfers) -> None:
    server.answer = an_object(BODY)
    buffers = [bytearray(1000) for _ in range(40)]
    started: list[Any] = []
    threads = [
        threading.Thread(target=lambda n=n: started.append(parts.get(WHERE, n, memoryview(buffers[n]), len(BODY))))
        for n in range(40)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.result(30) for one in started] == [1000] * 40
    assert all(bytes(buffers[n]) == BODY[n : n + 1000] for n in range(40))
    assert parts._client is parts._client


def test_an_authority_of_the_environment_is_trusted(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path, "ours")
    pair = authority.server("server", ["127.0.0.1"])
    secure = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secure.load_cert_chain(pair.certificate, pair.key)
    server.socket = secure.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.answer = an_object(BODY)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(authority.files.certificate))
    assert fetched(parts_of(server.server_port, "https"), 0, 1000) == BODY[:1000]
