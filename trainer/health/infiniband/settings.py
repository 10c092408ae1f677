"""NCCL's settings for InfiniBand and RoCE, derived from the node's ports, and a check of those that somebody set.

The names are NVIDIA's: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from trainer.contract import Probe
from trainer.health.infiniband.findings import finding
from trainer.health.infiniband.ports import ETHERNET, INFINIBAND, ROCE_V2, Port


@dataclass(frozen=True)
class PortChoice:
    """The ports that belong to the gang's fabric, whatever their state."""

    ports: tuple[Port, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Port -> why it is not one of them."""

    @property
    def usable(self) -> tuple[Port, ...]:
        return tuple(port for port in self.ports if port.active)


def choose(ports: Sequence[Port], default_interface: str = "", expression: str = "") -> PortChoice:
    """Choose the ports for the gang's traffic: not those of management, of storage, or of another kind of network.

    A port that is down stays in: it belongs there and is missing. `expression`: somebody's NCCL_IB_HCA, who knows which
    ports are of the gang's network.
    """
    left_out: dict[str, str] = {}
    remaining_ports = list(ports)

    def leave_out(reasons: Mapping[str, str]) -> None:
        nonlocal remaining_ports
        left_out.update(reasons)
        remaining_ports = [port for port in remaining_ports if port.name not in reasons]

    leave_out({port.name: f"its link layer {port.layer!r} is unknown" for port in remaining_ports
               if port.layer not in (INFINIBAND, ETHERNET)})  # fmt: skip
    management = [
        port.name for port in remaining_ports if port.layer == ETHERNET and port.interface == default_interface != ""
    ]
    if len(management) < len(remaining_ports):
        leave_out(dict.fromkeys(management, f"{default_interface} carries the default route"))
    if expression:
        leave_out({port.name: f"NCCL_IB_HCA={expression}" for port in remaining_ports if not selects(expression, port)})
    if any(port.layer == INFINIBAND for port in remaining_ports):
        leave_out({port.name: "it is Ethernet beside InfiniBand" for port in remaining_ports if port.layer == ETHERNET})
    # A slow port of the same model as a fast one is a fault, which another probe names.
    fastest = max((port.rate_gbit_s for port in remaining_ports if port.active), default=0.0)
    models = {port.model for port in remaining_ports if port.active and port.rate_gbit_s == fastest}
    # A model of which no port is active may be the fabric's own, all of it down.
    other_models = {port.model for port in remaining_ports if port.active} - models
    leave_out({port.name: f"it is a {port.model or 'slower adapter'} beside {', '.join(sorted(models))}"
               for port in remaining_ports if port.model in other_models})  # fmt: skip
    return PortChoice(tuple(remaining_ports), left_out)


def derive(
    choice: PortChoice, service_level: int | None = None, traffic_class: int | None = None, sharp: bool = False
) -> dict[str, str]:
    """Return NCCL's variables for the chosen ports that are active; none if there is none.

    `service_level` is InfiniBand's for training, `traffic_class` RoCE's: the operator of the fabric knows them. `sharp`
    lets the switches add up; the image then needs the plugin nccl-rdma-sharp-plugins. The index of RoCE's address stays
    unset: NCCL chooses it since 2.21, and NVIDIA advises against it (docs/userguide/source/troubleshooting/
    networking_troubleshooting.rst at 5067397).
    """
    if not choice.usable:
        return {}
    variables = {"NCCL_IB_HCA": "=" + ",".join(port.name for port in choice.usable)}
    if choice.usable[0].layer == ETHERNET and traffic_class is not None:
        variables["NCCL_IB_TC"] = str(traffic_class)
    if choice.usable[0].layer == INFINIBAND and service_level is not None:
        variables["NCCL_IB_SL"] = str(service_level)
    if sharp:
        variables["NCCL_COLLNET_ENABLE"] = "1"
    return variables


def settings_probe(choice: PortChoice, environment: Mapping[str, str]) -> Probe:
    """Refuse what keeps NCCL from using every active port of the fabric."""
    names = ", ".join(port.name for port in choice.usable)
    cure = "remove the variable: python -m trainer.health.infiniband node prints those that fit"
    bad = _faults(choice.usable, environment)
    return finding("infiniband_settings", bad, f"NCCL may use {names}", f"NCCL uses {names}", cure)


def _faults(ports: Sequence[Port], environment: Mapping[str, str]) -> Iterator[str]:
    if environment.get("NCCL_IB_DISABLE", "0") not in ("", "0"):
        yield f"NCCL_IB_DISABLE={environment['NCCL_IB_DISABLE']} leaves only sockets"
    if environment.get("NCCL_NET", "").lower() == "socket":
        yield f"NCCL_NET={environment['NCCL_NET']} takes sockets"
    chosen_ports = environment.get("NCCL_IB_HCA", "")
    unused_ports = [port.name for port in ports if not selects(chosen_ports, port)]
    if unused_ports:
        yield f"NCCL_IB_HCA={chosen_ports} leaves out {', '.join(unused_ports)}"
    index = environment.get("NCCL_IB_GID_INDEX", "-1")
    for port in ports:
        routable = {str(number) for number, kind in port.gids.items() if kind == ROCE_V2}
        if port.layer == ETHERNET and port.gids and not routable:
            yield f"{port.name} has no RoCE v2 address: give {port.interface or 'its interface'} an IP address"
        elif port.layer == ETHERNET and port.gids and index not in ("", "-1", *routable):
            yield f"NCCL_IB_GID_INDEX={index} is no RoCE v2 address of {port.name}, which are {', '.join(routable)}"


def selects(expression: str, port: Port) -> bool:
    """Return True if NCCL_IB_HCA takes this port: a list of prefixes of names, each with a port if one is meant; `^`
    excludes, `=` compares whole names (NVIDIA/nccl, src/misc/utils.cc, at 5067397)."""
    excludes = expression.startswith("^")
    names = expression.removeprefix("^")
    exact = names.startswith("=")
    items = [item.split(":") for item in names.removeprefix("=").split(",") if item.strip(":")]
    if not items:
        return True
    matches = any(
        (port.adapter == name if exact else port.adapter.startswith(name))
        and (not port_numbers or port_numbers[0] in ("", str(port.number)))
        for name, *port_numbers in items
    )
    return matches != excludes
