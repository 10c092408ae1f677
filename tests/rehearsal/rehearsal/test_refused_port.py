"""A port that the network refuses, as a drill has it: no other port is, and none is afterwards."""

from __future__ import annotations

import errno
import socket

import pytest

from infra.rehearsal.site.network import make_bridge, refuse_port

pytestmark = pytest.mark.inside("net")
OWN, OTHER, PORT = "10.77.0.1", "10.77.0.9", 8471


def outcome(address: str, port: int = PORT) -> str:
    """Return what the kernel says at once of a connection: nobody is at the other address to answer it."""
    with socket.socket() as client:
        client.setblocking(False)
        return errno.errorcode[client.connect_ex((address, port))]


def test_one_port_of_others_is_refused_and_then_no_longer() -> None:
    make_bridge("camp0", [f"{OWN}/16"])
    assert outcome(OTHER) == "EINPROGRESS"
    for _ in range(2):
        refuse_port(PORT, True)
        assert outcome(OTHER) == "EACCES"
    assert outcome(OTHER, PORT + 1) == "EINPROGRESS" and outcome(OWN) != "EACCES"
    for _ in range(2):
        refuse_port(PORT, False)
        assert outcome(OTHER) == "EINPROGRESS"
