"""Links between namespaces: one flat layer 2, where every address in 10/8 is on link and nothing is routed."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from datetime import timedelta

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from infra.errors import PermanentError, TemporaryError

CAMPUS = "10.0.0.0/8"
MTU = 9001
"""Jumbo frames, as between instances of one VPC."""

CLONE_NEWNET = 0x40000000
_REFUSED = 100
"""Priority of rules that refuse: behind the one for the namespace's own addresses."""


def make_bridge(name: str, addresses: Iterable[str] = (), on_link: Iterable[str] = (CAMPUS,)) -> None:
    """Bring up a bridge in the caller's namespace, with `addresses` ("10.77.0.1/16") and networks on link."""
    with IPRoute() as route:
        index = _index(route, name)
        if index is None:
            # A bridge without a MAC address takes its ports' lowest, which changes as they come and go. Neighbours
            # that cached the former one are then cut off for seconds.
            route.link("add", ifname=name, kind="bridge", address="02:" + os.urandom(5).hex(":"))
            index = _index(route, name)
        route.link("set", index=index, state="up", mtu=MTU)
        _address(route, index, addresses, on_link, {})


def join(
    pid: int,
    bridge: str,
    ifname: str,
    address: str | None,
    on_link: Iterable[str] = (CAMPUS,),
    via: Mapping[str, str] | None = None,
) -> str:
    """Connect the network namespace of process `pid` to `bridge` by a veth called `ifname` in that namespace.

    Without `address` the far end is left bare, for a machine that puts it under its own bridge.
    `via` maps a destination to its gateway. Return the near end's name, for `set_link`.
    """
    near_end = f"v{pid}"
    with IPRoute() as route:
        master = _index(route, bridge)
        if master is None:
            raise PermanentError("no such bridge in this network namespace", seen=bridge, cure="make_bridge first")
        peer = {"ifname": ifname, "net_ns_pid": pid, "mtu": MTU}
        try:
            route.link("add", ifname=near_end, kind="veth", mtu=MTU, peer=peer)
        except NetlinkError as error:
            if error.code != errno.EEXIST:
                raise
            # The kernel removes a dead namespace's links late; its PID may already be reused.
            route.link("del", ifname=near_end)
            route.link("add", ifname=near_end, kind="veth", mtu=MTU, peer=peer)
        route.link("set", index=_index(route, near_end), master=master, state="up")
    with _run_inside(pid) as route:
        route.link("set", index=_index(route, "lo"), state="up")
        if address is not None:
            index = _index(route, ifname)
            route.link("set", index=index, state="up")
            _address(route, index, (address,), on_link, via or {})
    return near_end


def enslave(ifname: str, bridge: str) -> None:
    with IPRoute() as route:
        route.link("set", index=_index(route, ifname), master=_index(route, bridge), state="up")


def add_addresses(ifname: str, addresses: Iterable[str]) -> None:
    with IPRoute() as route:
        index = _index(route, ifname)
        route.link("set", index=index, state="up")
        _address(route, index, addresses, (), {})


def set_link(ifname: str, is_up: bool) -> None:
    """Cut or mend one link of this namespace."""
    with IPRoute() as route:
        route.link("set", index=_index(route, ifname), state="up" if is_up else "down")


def refuse_port(port: int, is_refused: bool) -> None:
    """Refuse what goes from this namespace to a TCP port of any other address, as a policy of the network does; or no
    longer. Raises `OSError` where the kernel has no such rules."""
    ports = f"{port}:{port}"
    try:
        with IPRoute() as route:
            is_standing = any(rule.get_attr("FRA_DPORT_RANGE") == ports for rule in route.get_rules())
            if is_standing != is_refused:
                fields = {"ip_proto": socket.IPPROTO_TCP, "dport_range": ports, "priority": _REFUSED}
                route.rule("add" if is_refused else "del", action="prohibit", **fields)
    except NetlinkError as error:
        raise OSError(error.code, f"a rule for port {port}: {error}") from error


def wait_for_link(ifname: str, limit: timedelta) -> None:
    deadline = time.monotonic() + limit.total_seconds()
    with IPRoute() as route:
        while _index(route, ifname) is None:
            if time.monotonic() > deadline:
                raise TemporaryError(
                    "the link never came", seen=ifname, cure="join() this namespace", delay=timedelta(seconds=5)
                )
            time.sleep(0.01)


def _index(route: IPRoute, ifname: str) -> int | None:
    indexes = route.link_lookup(ifname=ifname)
    return indexes[0] if indexes else None


def _address(
    route: IPRoute, index: int | None, addresses: Iterable[str], on_link: Iterable[str], via: Mapping[str, str]
) -> None:
    for address in addresses:
        ip, _, prefix = address.partition("/")
        route.addr("replace", index=index, address=ip, prefixlen=int(prefix or 32))
    for network in on_link:
        route.route("replace", dst=network, oif=index, scope="link")
    for destination, gateway in via.items():
        route.route("replace", dst=destination, gateway=gateway, oif=index)


def _run_inside(pid: int) -> IPRoute:
    """Return a netlink socket of another namespace: it belongs to the namespace of the thread that made it."""
    results: list[int | OSError] = []

    def make() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        try:
            namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            try:
                if libc.setns(namespace, CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), f"setns into the network of process {pid}")
                results.append(socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, socket.NETLINK_ROUTE).detach())
            finally:
                os.close(namespace)
        except OSError as error:
            results.append(error)

    mover = threading.Thread(target=make)
    mover.start()
    mover.join()
    if isinstance(results[0], OSError):
        raise results[0]
    return IPRoute(fileno=results[0])
