"""`python -m trainer.health`: a preflight pod. Exit 0 when the node is fit, 70 when not; the report is the message."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from pydantic import ValidationError

from trainer.contract import LOCAL_CHECKPOINTS, SHARED_CHECKPOINTS, ExitCode, Expectation, HealthReport, Probe
from trainer.errors import ConfigError, TrainerError
from trainer.health.probes import node_probes
from trainer.network import interface_of, split_endpoint, wait_for_name
from trainer.place import Place, write_termination


def main() -> int:
    options = _parse()
    try:
        place = Place.of(os.environ)
        expectation = _load(options.expectation)
    except TrainerError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    probes = list(node_probes(expectation, options.local, options.shared))
    bandwidth = None
    try:
        bandwidth = _prove_fabric(place, expectation, options.join_timeout_s, probes)
    except (TrainerError, RuntimeError, OSError) as error:
        seen = str(error).splitlines()[0][:400]
        probes.append(Probe(name="fabric", ok=False, seen=seen, wanted="an all-reduce over all nodes"))
    report = HealthReport(node=place.node_name, probes=tuple(probes), bus_bandwidth_gb_s=bandwidth)
    print(report.model_dump_json(), flush=True)
    write_termination(report.model_dump_json())
    return int(ExitCode.DONE if report.fit else ExitCode.INTERNAL)


def _prove_fabric(place: Place, expectation: Expectation, timeout_s: float, probes: list[Probe]) -> float:
    interface = interface_of(place.pod_ip)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
    wait_for_name(split_endpoint(place.rendezvous)[0], timeout_s)
    # Torch after the environment: it reads the interface when a group is made, its threads when it is imported.
    from trainer.health.fabric import prove

    fabric = prove(place, expectation, timeout_s)
    probes.extend(fabric.probes)
    return round(fabric.bus_bandwidth_gb_s, 4)


def _load(path: Path) -> Expectation:
    try:
        return Expectation.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise ConfigError("the expectation cannot be read", f"{path}: {error}", "mount the config map") from error


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m trainer.health", description="Prove that this node is fit.")
    parser.add_argument("--expectation", type=Path, default=Path("/config/expectation.json"))
    parser.add_argument("--local", type=Path, default=Path(LOCAL_CHECKPOINTS))
    parser.add_argument("--shared", type=Path, default=Path(SHARED_CHECKPOINTS))
    parser.add_argument("--join-timeout-s", type=float, default=120.0, help="wait so long for the other nodes")
    return parser.parse_args()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Threads of a fabric that never came together may not end by themselves.
    os._exit(code)
