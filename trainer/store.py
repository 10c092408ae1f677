"""The key-value store by which the nodes of an attempt find each other."""

from __future__ import annotations

import socket
from datetime import timedelta

from torch.distributed import TCPStore

from trainer.errors import TrainerError
from trainer.supervisor.place import Place


def open_store(place: Place, endpoint: tuple[str, int], timeout: timedelta) -> TCPStore:
    """Open the gang's store, which node 0 serves on its own address only. Return when all nodes have joined."""
    host, port = endpoint
    descriptor = None
    if place.node_rank == 0:
        descriptor = socket.create_server((place.pod_ip, port), backlog=1024).detach()
    try:
        return TCPStore(host, port, place.node_count, place.node_rank == 0, timeout, master_listen_fd=descriptor)
    except Exception as error:
        raise TrainerError(
            "not all nodes joined",
            f"{host}:{port} within {timeout.total_seconds():.0f} s: {error}",
            "look at the pods of this attempt that did not start",
        ) from error
