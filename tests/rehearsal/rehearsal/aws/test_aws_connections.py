"""A connection to the emulated AWS lasts: what is answered or refused on it does not harm the next request."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from infra.rehearsal.aws.world import World

READY = "/_site/ready"


@pytest.fixture
def connection(world: World) -> Iterator[http.client.HTTPConnection]:
    made = http.client.HTTPConnection(urlsplit(world.endpoint_url).netloc)
    made.connect()
    yield made
    made.close()


def asked(connection: http.client.HTTPConnection, method: str, path: str, **more: Any) -> tuple[int, bytes]:
    connection.request(method, path, **more)
    answer = connection.getresponse()
    return answer.status, answer.read()


def is_ready(connection: http.client.HTTPConnection) -> bool:
    return asked(connection, "GET", READY)[0] == 200


@pytest.mark.parametrize(
    "request_of",
    [
        {"method": "GET", "path": READY},
        {"method": "GET", "path": "/bucket"},
        {"method": "HEAD", "path": "/bucket"},
        {"method": "PUT", "path": "/bucket/key", "body": b"x" * 300_000},
        {"method": "PUT", "path": "/bucket/key", "body": iter([b"y" * 70_000] * 3), "encode_chunked": True,
         "headers": {"Transfer-Encoding": "chunked"}},
    ],
    ids=["site", "unsigned", "head", "body", "chunks"],
)  # fmt: skip
def test_the_next_request_is_answered_on_the_same_connection(
    connection: http.client.HTTPConnection, request_of: dict[str, Any]
) -> None:
    socket = connection.sock
    status, body = asked(connection, **request_of)
    assert status == (200 if request_of["path"] == READY else 403)
    assert bool(body) is (request_of["method"] != "HEAD")
    assert is_ready(connection) and connection.sock is socket


def test_a_client_that_closes_is_told_that_the_server_does_too(connection: http.client.HTTPConnection) -> None:
    connection.request("GET", READY, headers={"Connection": "close"})
    answer = connection.getresponse()
    assert answer.headers["Connection"] == "close" and answer.read()
    assert connection.sock is None
