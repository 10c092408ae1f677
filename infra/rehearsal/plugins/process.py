"""The process of a provider plugin: a gRPC server that prints its port for the engine to stdout."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
from pulumi.runtime.proto import provider_pb2_grpc

from infra.rehearsal.plugins.package import Package
from infra.rehearsal.plugins.servicer import Servicer

_UNLIMITED = [("grpc.max_receive_message_length", 400 << 20), ("grpc.max_send_message_length", 400 << 20)]
_THREADS = 64
"""Operations mostly wait for AWS; the engine runs up to 16 per core at a time."""
_LOOK_S = 1.0
"""Seconds between two checks that the engine is alive."""


def serve(package: Package) -> None:
    """Serve until the engine stops the process or ends itself: a killed engine sends no signal."""
    engine = os.getppid()
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    server = grpc.server(ThreadPoolExecutor(_THREADS), options=_UNLIMITED)
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(Servicer(package), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    stop_event = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop_event.set())
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    while not stop_event.wait(_LOOK_S) and os.getppid() == engine:
        pass
    package.cancel()
    server.stop(grace=2).wait()
