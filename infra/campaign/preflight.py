"""Preflight: brings the GPU nodes up, checks each of them and the fabric, and replaces unfit ones before training."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from lightkube import Client

from infra.campaign import basics, launch_budget, pilot
from infra.campaign.capacity import (
    deadline_passed,
    finish_replacements,
    give_up,
    is_late,
    refuse_when_late,
    replace,
    see_the_cluster,
    wait_for_nodes,
)
from infra.campaign.closing import give_launch_budget
from infra.campaign.launch import withdraw
from infra.campaign.proving import CONFIG, EXPECTATION, prove
from infra.campaign.repairs.known_faults import FaultMemory, is_refused, remember_image, remember_node
from infra.campaign.verdicts import SHARED_TIER, GangCheck, fault_text, judge, probe_text
from infra.cluster import attempts, pull_secret
from infra.cluster.gang import CAMPAIGN_LABEL
from infra.cluster.kubernetes import OF_WORLD
from infra.cluster.nodes import GpuNodes
from infra.cluster.standing.borrowed import GangNodes
from infra.errors import PermanentError
from infra.plan import catalogue
from infra.plan.catalogue.expectations import gpu_expectation, least_versions
from infra.plan.catalogue.reading import image_versions
from infra.plan.catalogue.thresholds import number
from infra.record.events import Stage
from infra.record.payloads.attempts import NodeVerdict
from infra.record.payloads.outputs import PreflightOutput, ProvisionOutput
from infra.session.block_clock import await_active
from infra.session.context import Context
from infra.spec.campaign import Spec
from infra.spec.names import data_source, shared_tier
from trainer.contract import AT_LEAST, LOCAL_CHECKPOINTS, Expectation, Probe

_SHOWN = 4
"""Number of pods without a report that an error lists."""
_FABRIC_CURE = (
    "look at what lies between the nodes: their security group (it must name itself, both ways, for EFA), one "
    "placement group, EFA plugin; a floor of bus bandwidth that this type does not reach is in "
    "infra/plan/catalogue/expectations.yaml or the spec's preflight.bus_bandwidth_gb_s"
)
_SHARED_TIER_CURE = (
    "look at the file system in FSx's console: its state, its throughput, who else uses it; the floor is half of what "
    "FSx promises for storage.shared, divided by the nodes"
)


_WITHIN_S = 120.0
"""For EC2 to start an instance, or to refuse one. All nodes bill meanwhile."""


def order_spares(context: Context, nodes: GangNodes, count: int) -> int:
    """Ask for `count` instances above the gang's number before others are given up, and return how many EC2 starts
    within two minutes; the group keeps these alone. Raises what AWS answers where the group cannot be set back."""
    wanted_count, start, spare_count = context.spec.nodes.count, datetime.now(UTC), 0
    try:
        earlier_instances = {launch.instance for launch in nodes.launched()}
        nodes.set_desired(wanted_count + count)
        for _ in context.turns(_WITHIN_S):
            fresh = [launch for launch in nodes.launched() if launch.bills and launch.instance not in earlier_instances]
            spare_count = min(len(fresh), count)
            if spare_count == count or nodes.refusals(start):
                break
    except OF_WORLD as error:
        context.progress.note(f"whether EC2 has another instance could not be seen: {error}"[:300])
    finally:  # a signal too leaves no instance in the group that nobody has seen
        nodes.set_desired(wanted_count + spare_count)
    return spare_count


def run(context: Context) -> PreflightOutput:
    """Return the verdicts of the fit gang. Raises `PermanentError` when nodes stay unfit or do not come."""
    spec = context.spec
    client = context.cluster_client()
    nodes = GpuNodes(context.account, client, context.names, context.guard)
    expectation = expectation_of(spec, context.account.client("s3").meta.endpoint_url, image_versions())
    if spec.storage.shared is None:
        expectation = in_s3(spec, expectation, context.identity, ProvisionOutput.of(context.outputs).data_digest)
    if is_late(context):
        raise deadline_passed(context, context.deadline.isoformat())
    labels = {CAMPAIGN_LABEL: spec.campaign}
    try:
        if Stage.LAUNCH not in context.state().finished_stages:
            withdraw(context, client)  # a failed launch in a silent cluster may have left both
        if nodes.desired() == 0:
            basics.prove(context, client)
        await_active(context)
        attempts.create_config(client, CONFIG, labels, {
            EXPECTATION: expectation.model_dump_json(indent=1),
            pilot.EXPECTATION: pilot.for_one_node(spec, expectation).model_dump_json(indent=1),
        })  # fmt: skip
        pull_secret.give(client, context.account, spec)
        give_launch_budget(context)
        launch_budget.postpone(context)
        if pilot.is_due(context, nodes, expectation):
            pilot.prove(context, client, nodes, expectation)
        nodes.set_desired(spec.nodes.count)
        return rounds(context, client, nodes, expectation)
    except OF_WORLD as error:
        # Nodes bill, also those from an earlier try, and nobody can look at them.
        title = "AWS or the cluster does not answer, or refuses"
        raise give_up(context, nodes, title, [str(error)], [see_the_cluster(context)]) from error


def rounds(context: Context, client: Client, nodes: GangNodes, expectation: Expectation) -> PreflightOutput:
    """Check the gang and replace unfit nodes until all are fit. Returns their verdicts; raises `PermanentError` after
    `preflight.rounds`, and for a fault of no single node."""
    spec = context.spec
    finish_replacements(context, nodes)
    result, fabric_failures, lone_failures = GangCheck((), (), ()), 0, list[Probe]()
    memory = FaultMemory(context)
    for turn in range(1, spec.preflight.rounds + 1):
        fit = wait_for_nodes(context, nodes)
        proof = prove(context, client, nodes.left_out)
        refuse_when_late(context, nodes)
        result = judge(proof.reports, fit, proof.unplaced)
        is_last = turn == spec.preflight.rounds or bool(result.stuck or result.common)
        result = memory.judge(result, is_last, lambda count: order_spares(context, nodes, count))
        for verdict in result.verdicts:
            context.store.append(NodeVerdict(**verdict))
        for probe in result.blind:
            context.progress.note(f"could not look: {probe_text(probe)}")
        if result.stuck or (result.alone and lone_failures):
            raise _start_failure(context, nodes, result.stuck or [*lone_failures, *filter(None, [result.alone])])
        lone_failures += filter(None, [result.alone])
        if result.common or _missing_diagnostics(result, expectation):
            raise _common_fault(context, nodes, result, expectation)
        if not result.unfit and len(result.verdicts) == spec.nodes.count and result.fabric:
            bandwidth = min((r.bus_bandwidth_gb_s or 0.0) for r in proof.reports.values())
            context.progress.note(f"{len(result.verdicts)} nodes fit; all-reduce {bandwidth:.3f} GB/s bus bandwidth")
            return PreflightOutput(
                verdicts=result.verdicts,
                profile=expectation.profile,
                bus_bandwidth_gb_s=bandwidth,
                floor_gb_s=expectation.bus_bandwidth_gb_s,
                not_seen=tuple(map(probe_text, result.blind)),
            )
        for verdict in result.unfit:
            remember_node(context, verdict, fit, result.common)
            context.progress.note(
                f"{verdict['node']} is unfit: {fault_text(verdict, expectation.profile)}; it is replaced"
            )
            replace(context, nodes, verdict["node"], verdict["instance"], has_spare=is_refused(verdict))
        nodes.set_desired(spec.nodes.count)
        if len(result.verdicts) < spec.nodes.count:
            words = f": {probe_text(proof.unplaced[0])}" if proof.unplaced else ""
            context.progress.note(
                f"{spec.nodes.count - len(result.verdicts)} nodes did not run the health check{words}"
            )
        elif not result.unfit:
            fabric_failures += 1
            context.progress.note("every node is fit alone, but the gang is not: checked once more, no node replaced")
            if fabric_failures > 1:
                raise _fabric_failure(context, nodes, result, expectation)
    title = f"the gang was not fit after {spec.preflight.rounds} rounds"
    cure = "see the verdicts; raise preflight.rounds only if the nodes differ each time"
    raise give_up(context, nodes, title, _fault_lines(result.unfit, expectation), [cure])


def _fault_lines(verdicts: Iterable[Mapping[str, Any]], expectation: Expectation) -> list[str]:
    return [f"{verdict['node']}: {fault_text(verdict, expectation.profile)}" for verdict in verdicts]


def _missing_diagnostics(result: GangCheck, expectation: Expectation) -> list[Probe]:
    """Return the probes of a diagnostic that the spec asks for and that did not run.

    None while a node is unfit or a pod did not end: then the nodes may not have met, and the next round looks anew.
    """
    if result.unfit or result.alone:
        return []
    names = {f"dcgm_{expectation.dcgm_level}", *(["infiniband_fabric"] if expectation.one_leaf else [])}
    return [probe for probe in result.blind if probe.name in names]


def _common_fault(context: Context, nodes: GangNodes, result: GangCheck, expectation: Expectation) -> PermanentError:
    """Return the error for a fault of image, launch template, spec or catalogue, which a new node would show too."""
    at_fault = (*result.common, *_missing_diagnostics(result, expectation))
    if result.common:
        remember_image(context, map(probe_text, result.common))
    title = "every node shows the same fault, so none was replaced" if result.common else "a diagnostic did not run"
    mend = f"mend image, launch template or spec (profile {expectation.profile})"
    cures = [*(probe.cure for probe in at_fault if probe.cure), mend]
    return give_up(context, nodes, title, map(probe_text, at_fault), cures)


def _start_failure(context: Context, nodes: GangNodes, probes: Sequence[Probe]) -> PermanentError:
    """Return the error for a fault in what the nodes share: image, rights, mounts, network or the cluster."""
    lines = [f"{probe.name}: {probe.seen}, wanted {probe.wanted}" for probe in probes[:_SHOWN]]
    lines += [f"and {len(probes) - _SHOWN} more"] if len(probes) > _SHOWN else []
    title = f"the health check gave no report on {len(probes)} of {context.spec.nodes.count} nodes"
    slow = "a slow first pull needs a longer recovery.startup_timeout"
    cures = [*(probe.cure for probe in probes if probe.cure), slow]
    return give_up(context, nodes, f"{title}; no single node is at fault, so none was replaced", lines, cures)


def _fabric_failure(context: Context, nodes: GangNodes, result: GangCheck, expectation: Expectation) -> PermanentError:
    """Return the error for a fault between the nodes or in what they share; no node is replaced."""
    title, cure = "the fabric failed twice, though every node is fit alone", _FABRIC_CURE
    if result.failed_shared_names == {SHARED_TIER}:
        title, cure = "the shared file system was too slow twice, though every node is fit alone", _SHARED_TIER_CURE
    cures = [row["cure"] for row in _between_nodes(result)] or [cure]
    return give_up(context, nodes, title, _fault_lines(result.verdicts, expectation), cures)


def _between_nodes(result: GangCheck) -> list[Mapping[str, Any]]:
    """Return the failures of what lies between the nodes, with the cures of those who looked."""
    probes = [row for verdict in result.verdicts for row in verdict["probes"]]
    return [row for row in probes if not row["ok"] and row["looked"] and row["blamed_nodes"] == [] and row["cure"]]


_THROUGHPUT_MIB = 4096
_TIB_GIB = 1024
_BAKED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("driver", ("nvidia_driver", "version")),
    ("efa", ("efa", "kernel_module")),
)
"""Component of the node image -> its path in images/versions.yaml. NCCL and its plugin are absent: the ranks load them
from the trainer's container."""


def expectation_of(spec: Spec, time_source: str | None, versions: Mapping[str, Any]) -> Expectation:
    """Return the expectation; a written profile (`this-machine`) changes only in time source and DCGM level."""
    name = spec.profile
    base = catalogue.expectation(name)
    changes: dict[str, Any] = {"time_source": time_source, "dcgm_level": spec.preflight.dcgm_level}
    if spec.preflight.bus_bandwidth_gb_s is not None:
        changes["bus_bandwidth_gb_s"] = spec.preflight.bus_bandwidth_gb_s
    elif spec.preflight.bus_bandwidth_share is not None:
        usual_gb_s = base.bus_bandwidth_gb_s / number("floor_share")
        changes["bus_bandwidth_gb_s"] = usual_gb_s * spec.preflight.bus_bandwidth_share
    if name in {hardware.name for hardware in catalogue.instance_types()}:
        hardware = catalogue.instance_type(name)
        changes |= {
            "gpus": gpu_expectation(hardware),
            "efa_devices": hardware.efa_interfaces,
            "throughput_mib": _THROUGHPUT_MIB,
            "shared_mb_s": shared_floor_mb_s(spec),
            "versions": node_versions(spec, versions),
        }
    return base.model_copy(update=changes)


def in_s3(spec: Spec, expectation: Expectation, identity: str, data_digest: str) -> Expectation:
    """Return the expectation of nodes that find S3 where others mount the shared file system."""
    place = (spec.account, spec.region)
    return expectation.model_copy(
        update={
            "mounts": (LOCAL_CHECKPOINTS,),
            "shared_disk_gib": 0.0,
            "shared_tier": shared_tier(*place, spec.campaign, identity),
            "data_source": data_source(*place, data_digest),
        }
    )


def shared_floor_mb_s(spec: Spec) -> float:
    """Return the floor for one node while all nodes write or read, in MB/s; 0 without a shared file system."""
    shared = spec.storage.shared
    if shared is None:
        return 0.0
    # SCRATCH_2 has one speed, even where the field still holds the default of PERSISTENT_2.
    tier = shared.throughput_mbs_per_tib if shared.deployment == "PERSISTENT_2" else None
    per_tib = tier or number("scratch_mb_s_per_tib")
    total = shared.capacity_gib / _TIB_GIB * per_tib
    client = number("client_efa_mb_s" if shared.efa else "client_mb_s")
    return min(total / spec.nodes.count, client) * number("shared_share")


def node_versions(spec: Spec, document: Mapping[str, Any]) -> dict[str, str]:
    """Return what the nodes' image must hold: the baked versions of a bake, a floor of an AMI that is not ours."""
    if spec.image.nodes == "bake":
        return baked_versions(document)
    return {component: f"{AT_LEAST}{version}" for component, version in least_versions().items()}


def baked_versions(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions by component; a component that the document does not name is left out."""
    rows = document.get("versions", document)
    versions = {}
    for component, path in _BAKED:
        value: Any = rows
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None and (version := re.search(r"\d+(\.\d+)+", str(value))):
            versions[component] = version.group()
    return versions
