"""`python -m trainer.health`: a preflight pod. It exits with 0 when the node is fit, else 70; the report is its
termination message."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from trainer.contract import LOCAL_CHECKPOINTS, SHARED_CHECKPOINTS, ExitCode, Expectation, HealthReport, Probe, Verdict
from trainer.contract.exits import fitting, write_termination
from trainer.errors import ConfigError, TrainerError
from trainer.health import collective, fabrics, nvlinks
from trainer.health.collective import Collective
from trainer.health.diagnostic import diagnose
from trainer.health.gpus import identities
from trainer.health.infiniband.affinity import affinity_probes
from trainer.health.infiniband.gang import campaign_probes
from trainer.health.infiniband.links import errors_probe, read_errors
from trainer.health.infiniband.node import choice_of, infiniband_probes, nccl_environment
from trainer.health.infiniband.ports import INFINIBAND
from trainer.health.infiniband.settings import PortChoice
from trainer.health.looking import Look, blind, look
from trainer.health.parsers.fabric import parse_nccl
from trainer.health.probes import node_probes
from trainer.place import place_of

_SHORTEST = 24


def serialize(report: HealthReport) -> str:
    """Return the report as JSON within the limit: shorten passed probes first, failed ones last.

    The pod's log has the whole report.
    """
    return fitting(candidate.model_dump_json(exclude_defaults=True) for candidate in _shorter(report))


def _shorter(report: HealthReport) -> Iterator[HealthReport]:
    yield report
    for length in (200, 80, 40, _SHORTEST):
        probes = tuple(_short(probe, length) if probe.verdict is Verdict.PASS else probe for probe in report.probes)
        report = report.model_copy(update={"probes": probes})
        yield report
    for length in (400, 200, 120, 80, 40, _SHORTEST):
        report = report.model_copy(update={"probes": tuple(_short(probe, length) for probe in report.probes)})
        yield report
    failures = [probe for probe in report.probes if probe.verdict is not Verdict.PASS]
    for count in range(len(failures), 0, -1):
        yield report.model_copy(update={"probes": tuple(failures[:count])})


def _short(probe: Probe, length: int) -> Probe:
    ok = probe.verdict is Verdict.PASS
    cut = {"seen": probe.seen[:length], "wanted": probe.wanted[:length], "cure": "" if ok else probe.cure[:length]}
    return probe.model_copy(update=cut)


def main() -> int:
    options = _parse()
    try:
        place = place_of(os.environ)
        expectation = _load(options.expectation)
    except TrainerError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    probes = list(node_probes(expectation, options.local, options.shared, look))
    # EFA's devices are adapters of the same kernel subsystem; a CPU profile has no collective over RDMA.
    has_fabric = bool(expectation.accelerators) and not expectation.efa_devices
    fabric_ports = choice_of(look) if has_fabric else PortChoice(())
    probes += infiniband_probes(fabric_ports, look, ports=expectation.adapters, rdma=expectation.rdma)
    probes += affinity_probes(fabric_ports, look)
    os.environ.update({**nccl_environment(fabric_ports), **os.environ})  # what somebody has set stands
    errors = read_errors(fabric_ports.usable, look)
    has_links = expectation.gpus is not None and expectation.gpus.nvlinks > 0
    counters = nvlinks.read_errors(look) if has_links else None
    with tempfile.TemporaryDirectory(prefix="bivouac-health-") as work:
        result = collective.run(place, expectation, options.expectation, options.join_timeout_s, Path(work))
    if counters is not None:
        probes.append(nvlinks.errors_probe(counters, nvlinks.read_errors(look), expectation.limits.nvlink_errors_per_s))
    if fabric_ports.usable:
        probes.append(errors_probe(errors, read_errors(fabric_ports.usable, look)))
    probes += result.probes
    if result.error is not None:
        probes.append(Probe(name="fabric", ok=False, seen=result.error[:400], wanted="an all-reduce over all nodes"))
    probes += nccl_probes(expectation, result, place.node_count, fabric_ports)
    if place.node_rank == 0 and place.node_count > 1 and has_fabric:
        probes += fabric_probes(expectation, result, fabric_ports, look)
    if expectation.dcgm_level is not None and expectation.gpus is not None:
        # Last: it occupies the GPUs, from level 2 on for minutes.
        probes.append(diagnose(expectation.dcgm_level, look, expectation.gpus.pcie))
    bandwidth = None if result.bus_bandwidth_gb_s is None else round(result.bus_bandwidth_gb_s, 4)
    hardware = () if expectation.gpus is None else identities(look)
    report = HealthReport(node=place.node_name, probes=tuple(probes), bus_bandwidth_gb_s=bandwidth, hardware=hardware)
    print(report.model_dump_json(), flush=True)
    write_termination(serialize(report))
    return int(ExitCode.DONE if report.fit else ExitCode.INTERNAL)


def fabric_probes(expectation: Expectation, result: Collective, ports: PortChoice, look: Look) -> Iterator[Probe]:
    """Yield what one node sees of InfiniBand between all of them.

    Where no port of the gang is InfiniBand's that is nothing, or that nobody can see the one leaf that the spec wants.
    """
    if any(port.layer == INFINIBAND for port in ports.ports):
        yield from campaign_probes(look, result.hosts, expectation.one_leaf, expectation.adapters)
    elif expectation.one_leaf:
        reason = "no port of the first pod is InfiniBand's"
        yield blind("infiniband_fabric", reason, "one leaf", "do not ask for one_leaf")


def nccl_probes(expectation: Expectation, result: Collective, nodes: int, fabric: PortChoice) -> Iterator[Probe]:
    """Yield the probes that need NCCL's log of the collective."""
    log = result.log
    names_network = log is not None and bool(log.providers or log.networks)
    # A collective that failed before NCCL chose a network does not judge the network.
    if nodes > 1 and (names_network or result.error is None):
        if expectation.efa_devices:
            yield fabrics.nccl_probe(log or parse_nccl(""), expectation.efa_devices, expectation.gpudirect)
        elif fabric.usable:
            ports = [port.name for port in fabric.usable]
            yield fabrics.infiniband_nccl_probe(log or parse_nccl(""), ports, expectation.gpudirect)
    yield from fabrics.carried_probes(log)


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
    sys.exit(main())
