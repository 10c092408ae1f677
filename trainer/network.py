"""Names, addresses and interfaces of a pod."""

from __future__ import annotations

import ipaddress
import socket
import time

import psutil

from trainer.errors import ConfigError, TrainerError

_RETRY_S = 0.5


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """Split `host:port`. Raises `ConfigError` for anything else."""
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError("the rendezvous is not host:port", endpoint, "set it to pod 0's name and a port")
    return host, int(port)


def wait_for_name(host: str, deadline_s: float) -> str:
    """Return a name's IPv4 address. Pod 0's name appears some seconds after the pods."""
    deadline = time.monotonic() + deadline_s
    while True:
        try:
            return str(socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
        except OSError as error:
            if time.monotonic() > deadline:
                raise TrainerError(
                    "the name of pod 0 did not appear",
                    f"{host} after {deadline_s:.0f} s: {error}",
                    "look at the headless service and at pod 0",
                ) from error
        time.sleep(_RETRY_S)


def interface_of(address: str) -> str:
    """Return the interface that has an address (or, for loopback, its network)."""
    target = ipaddress.ip_address(address)
    neighbour = None
    for name, entries in psutil.net_if_addrs().items():
        for entry in entries:
            if entry.family != socket.AF_INET:
                continue
            if entry.address == address:
                return name
            if entry.netmask and target in ipaddress.ip_network(f"{entry.address}/{entry.netmask}", strict=False):
                neighbour = neighbour or name
    if neighbour is None:
        raise ConfigError("no interface has the pod's address", address, "set the pod IP by the downward API")
    return neighbour
