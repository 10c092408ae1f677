"""For all tests of one process, whichever comes first."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator
from typing import Any

import boto3
import hypothesis
import pytest

import infra  # noqa: F401  before anything imports pulumi: it sets what grpc must know of forks
from tests.worlds.inside import pytest_collection_modifyitems
from tests.worlds.rewriting import pytest_configure
from tests.worlds.shared_models import share_models

__all__ = ["pytest_collection_modifyitems", "pytest_configure"]

# A machine that stalls is no bug, and the same commit sees the same examples wherever it is tested.
hypothesis.settings.register_profile("bivouac", deadline=None, derandomize=True)
hypothesis.settings.load_profile("bivouac")

share_models()

# A process that a test forks collects no garbage of earlier tests: gRPC's and torch's ends need threads of the parent.
os.register_at_fork(after_in_child=gc.freeze)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Collect no garbage while tests are collected, which leaves little, and then look through what a test made only:
    with all of Pulumi's and torch's modules the collector took a third of the processor time of `tests/graph` (60.6 and
    40.3 s)."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(100_000, 50, 100)
        gc.enable()


@pytest.fixture(scope="session")
def moto_server() -> Iterator[str]:
    """The address of moto's server, one for all tests of a process: moto keeps one world for all of its servers."""
    from moto import backends
    from moto.server import ThreadedMotoServer

    modules = list(backends.list_of_moto_modules())  # each request would list moto's folder anew
    backends.list_of_moto_modules = lambda: modules
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="session")
def moto_s3(moto_server: str) -> Any:
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}
    return boto3.client("s3", endpoint_url=moto_server, **keys)
