"""`python -m trainer.health.infiniband`: a person's look at a node, or at the fabric between nodes.

It exits with 0 when nothing is wrong, with 70 when something is, and with 69 when it could not look at all.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.contract import ExitCode, Probe, Verdict
from trainer.health import looking
from trainer.health.infiniband.affinity import affinity_probes
from trainer.health.infiniband.gang import gang_probes
from trainer.health.infiniband.node import choice_of, infiniband_probes
from trainer.health.infiniband.ports import SYSFS
from trainer.health.infiniband.settings import derive
from trainer.health.looking import Look

_BLIND = 69
"""Unavailable, after sysexits."""


def main(arguments: Sequence[str] | None = None, look: Look = looking.look, sysfs: Path = SYSFS) -> int:
    """Run one of the two commands. `look` and `sysfs` are where a test puts a simulated fabric."""
    options = _parse(arguments)
    if options.command == "node":
        return _show_node(options, look, sysfs)
    return _show(list(gang_probes(look, options.nodes.split(","), options.one_leaf, options.adapters)))


def _show_node(options: argparse.Namespace, look: Look, sysfs: Path) -> int:
    choice = choice_of(look, sysfs)
    if not choice.ports and not choice.left_out:
        print(f"no InfiniBand and no RoCE: {sysfs} has no such adapter")
        return int(ExitCode.DONE)
    for port, reason in choice.left_out.items():
        print(f"not of the gang's network: {port}: {reason}")
    code = _show([*infiniband_probes(choice, look, ports=options.ports), *affinity_probes(choice, look, sysfs)])
    for name, value in derive(choice, options.service_level, options.traffic_class, options.sharp).items():
        print(f"{name}={value}")
    return code


def _show(probes: Sequence[Probe]) -> int:
    for probe in probes:
        print(f"{probe.verdict}: {probe.name}: {probe.seen}")
        if probe.verdict is not Verdict.PASS:
            print(f"    wanted: {probe.wanted}" + (f"\n    cure: {probe.cure}" if probe.cure else ""))
    if any(probe.verdict is Verdict.FAIL for probe in probes):
        return int(ExitCode.INTERNAL)
    all_blind = bool(probes) and all(probe.verdict is Verdict.BLIND for probe in probes)
    return _BLIND if all_blind else int(ExitCode.DONE)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m trainer.health.infiniband", description="Look at InfiniBand.")
    commands = parser.add_subparsers(dest="command", required=True)
    node = commands.add_parser("node", help="this node's ports, and NCCL's settings for them")
    node.add_argument("--ports", type=int, default=0, help="active ports that the node must have")
    node.add_argument("--service-level", type=int, help="InfiniBand's service level for training")
    node.add_argument("--traffic-class", type=int, help="RoCE's traffic class for training")
    node.add_argument("--sharp", action="store_true", help="let the switches add up")
    gang = commands.add_parser("gang", help="the fabric between nodes")
    gang.add_argument("--one-leaf", action="store_true", help="all nodes must be below one leaf")
    gang.add_argument("--adapters", type=int, default=0, help="adapters that each node must have on the fabric")
    gang.add_argument("--nodes", required=True, help="names of the hosts, separated by commas")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
