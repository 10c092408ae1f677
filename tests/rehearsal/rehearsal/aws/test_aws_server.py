"""The emulated AWS as a server: a connection lasts, whatever was answered or refused on it, and requests are answered
whole while it removes what has ended."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from infra.rehearsal.aws.world import World
from tests.rehearsal.aws_account import Account

READY = "/_site/ready"
REMOVED_MEANWHILE_S = 0.5
"""The reader pauses this long in the middle of the dictionary, or until the removal has happened."""


class Paused(dict[str, Any]):
    """A dictionary whose reader stops after the first value until `removed` is set, or for half a second."""

    def __init__(self, content: dict[str, Any]) -> None:
        super().__init__(content)
        self.reached, self.removed = threading.Event(), threading.Event()

    def values(self) -> Iterator[Any]:  # type: ignore[override]
        for value in super().values():
            yield value
            self.reached.set()
            self.removed.wait(REMOVED_MEANWHILE_S)


def test_a_listing_is_answered_while_the_scheduler_removes_what_it_lists(world: World, aws: Account) -> None:
    ec2 = world.backend("ec2")
    volumes = [aws.ec2.create_volume(AvailabilityZone="us-east-1a", Size=1)["VolumeId"] for _ in range(2)]
    ec2.volumes = paused = Paused(ec2.volumes)

    def remove() -> None:
        paused.reached.wait()
        with world.lock:  # as all work of the scheduler does
            paused.pop(volumes[0])
        paused.removed.set()

    remover = threading.Thread(target=remove)
    remover.start()
    try:
        volume_ids = {volume["VolumeId"] for volume in aws.ec2.describe_volumes()["Volumes"]}
    finally:
        remover.join()
        ec2.volumes = dict(paused)
    assert set(volumes) <= volume_ids
    assert {volume["VolumeId"] for volume in aws.ec2.describe_volumes()["Volumes"]} == volume_ids - {volumes[0]}


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
