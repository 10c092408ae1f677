"""Preflight: brings the GPU nodes up, checks each of them and the fabric, and replaces unfit ones before training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightkube import Client

from infra.campaign import basics, launch_budget, pilot
from infra.campaign.capacity import (
    deadline_passed,
    finish_replacements,
    is_late,
    refuse_when_late,
    replace,
    retreat,
    see_the_cluster,
    wait_for_nodes,
)
from infra.campaign.closing import give_launch_budget
from infra.campaign.expecting import expectation_of, in_s3, read_versions
from infra.campaign.launch import withdraw
from infra.campaign.proving import CONFIG, EXPECTATION, prove
from infra.campaign.verdicts import SHARED_TIER, Judgement, judge, told, why
from infra.cluster import attempts, pull_secret
from infra.cluster.gang import CAMPAIGN_LABEL
from infra.cluster.kubernetes import OF_WORLD, from_outside
from infra.cluster.nodes import GpuNodes
from infra.errors import PermanentError
from infra.record.events import Stage
from infra.record.payloads.attempts import NodeVerdict
from infra.session.block_clock import await_active
from infra.session.context import Context
from trainer.contract import Expectation, Probe

_SHOWN = 4
"""Number of pods without a report that an error lists."""


def run(context: Context) -> dict[str, Any]:
    """Return the verdicts of the fit gang. Raises `PermanentError` when nodes stay unfit or do not come."""
    spec = context.spec
    client = from_outside(context.account, context.names.cluster)
    nodes = GpuNodes(context.account, client, context.names, context.guard)
    expectation = expectation_of(spec, context.account.client("s3").meta.endpoint_url, read_versions())
    if spec.storage.shared is None:
        expectation = in_s3(spec, expectation, context.identity, context.outputs[Stage.PROVISION]["data_digest"])
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
            pilot.EXPECTATION: pilot.alone(spec, expectation).model_dump_json(indent=1),
        })  # fmt: skip
        pull_secret.give(client, context.account, spec)
        give_launch_budget(context)
        launch_budget.postpone(context)
        if pilot.is_due(context, nodes, expectation):
            pilot.prove(context, client, nodes, expectation)
        nodes.set_desired(spec.nodes.count)
        return _rounds(context, client, nodes, expectation)
    except OF_WORLD as error:
        # Nodes bill, also those from an earlier try, and nobody can look at them.
        raise PermanentError(
            "AWS or the cluster does not answer, or refuses",
            seen=f"{error}; {retreat(context, nodes)}",
            cure=f"{see_the_cluster(context)}; then `bivouac run` continues, `bivouac down {spec.campaign}` removes "
            "what still bills",
        ) from error


def _rounds(context: Context, client: Client, nodes: GpuNodes, expectation: Expectation) -> dict[str, Any]:
    """Check the gang and replace unfit nodes until all are fit. Returns their verdicts, or raises."""
    spec = context.spec
    finish_replacements(context, nodes)
    seen, fabric_failures, before = Judgement((), (), ()), 0, list[Probe]()
    for _ in range(spec.preflight.rounds):
        fit = wait_for_nodes(context, nodes)
        proof = prove(context, client)
        refuse_when_late(context, nodes)
        seen = judge(proof.reports, fit, proof.unplaced)
        for verdict in seen.verdicts:
            context.store.append(NodeVerdict(**verdict))
        _say_what_was_not_seen(context, seen)
        if seen.stuck or (seen.alone and before):
            raise _not_started(context, nodes, seen.stuck or [*before, *filter(None, [seen.alone])])
        before += filter(None, [seen.alone])
        if seen.common or _blind_where_asked(seen, expectation):
            raise _no_node_is_to_blame(context, nodes, seen, expectation)
        if not seen.unfit and len(seen.verdicts) == spec.nodes.count and seen.fabric:
            bandwidth = min((r.bus_bandwidth_gb_s or 0.0) for r in proof.reports.values())
            context.progress.note(f"{len(seen.verdicts)} nodes fit; all-reduce {bandwidth:.3f} GB/s bus bandwidth")
            return {
                "verdicts": list(seen.verdicts),
                "profile": expectation.profile,
                "bus_bandwidth_gb_s": bandwidth,
                "floor_gb_s": expectation.bus_bandwidth_gb_s,
                "not_seen": [told(probe) for probe in seen.blind],
            }
        for verdict in seen.unfit:
            context.progress.note(f"{verdict['node']} is unfit: {why(verdict, expectation.profile)}; it is replaced")
            replace(context, nodes, verdict["node"], verdict["instance"])
        if len(seen.verdicts) < spec.nodes.count:
            words = f": {told(proof.unplaced[0])}" if proof.unplaced else ""
            context.progress.note(f"{spec.nodes.count - len(seen.verdicts)} nodes did not run the health check{words}")
        elif not seen.unfit:
            fabric_failures += 1
            context.progress.note("every node is fit alone, but the gang is not: checked once more, no node replaced")
            if fabric_failures > 1:
                raise _no_fabric(context, nodes, seen, expectation)
    given = retreat(context, nodes)
    raise PermanentError(
        f"the gang was not fit after {spec.preflight.rounds} rounds",
        seen="; ".join([*(f"{v['node']}: {why(v, expectation.profile)}" for v in seen.unfit), given]),
        cure="see the verdicts; raise preflight.rounds only if the nodes differ each time; `bivouac run` continues, "
        f"`bivouac down {spec.campaign}` removes what still bills",
    )


def _say_what_was_not_seen(context: Context, seen: Judgement) -> None:
    for probe in seen.blind:
        context.progress.note(f"could not look: {told(probe)}")


def _blind_where_asked(seen: Judgement, expectation: Expectation) -> bool:
    """Return whether a diagnostic that the spec asks for did not run."""
    asked = f"dcgm_{expectation.dcgm_level}"
    return expectation.dcgm_level is not None and any(probe.name == asked for probe in seen.blind)


def _no_node_is_to_blame(
    context: Context, nodes: GpuNodes, seen: Judgement, expectation: Expectation
) -> PermanentError:
    """Return the error for a fault of image, launch template, spec or catalogue, which a new node would show too."""
    given = retreat(context, nodes)
    asked = [probe for probe in seen.blind if probe.name == f"dcgm_{expectation.dcgm_level}"]
    at_fault = (*seen.common, *asked)
    what = "every node shows the same fault, so none was replaced" if seen.common else "a diagnostic did not run"
    then = f"`bivouac run` continues, `bivouac down {context.spec.campaign}` removes what still bills"
    mend = f"mend image, launch template or spec (profile {expectation.profile}); then {then}"
    return PermanentError(
        what,
        seen="; ".join([*map(told, at_fault), given]),
        cure="; ".join([*(probe.cure for probe in at_fault if probe.cure), mend]),
    )


def _not_started(context: Context, nodes: GpuNodes, stuck: Sequence[Probe]) -> PermanentError:
    """Return the error for a fault in what the nodes share: image, rights, mounts, network or the cluster."""
    given = retreat(context, nodes)
    shown = [f"{one.name}: {one.seen}, wanted {one.wanted}" for one in stuck[:_SHOWN]]
    more = [f"and {len(stuck) - _SHOWN} more"] if len(stuck) > _SHOWN else []
    return PermanentError(
        f"the health check gave no report on {len(stuck)} of {context.spec.nodes.count} nodes; no single node is at "
        "fault, so none was replaced",
        seen="; ".join([*shown, *more, given]),
        cure="; ".join([*dict.fromkeys(one.cure for one in stuck if one.cure), "then `bivouac run` continues, "
                        f"`bivouac down {context.spec.campaign}` removes what still bills; a slow first pull needs a "
                        "longer recovery.startup_timeout"]),
    )  # fmt: skip


def _no_fabric(context: Context, nodes: GpuNodes, seen: Judgement, expectation: Expectation) -> PermanentError:
    """Return the error for a fault between the nodes or in what they share; no node is replaced."""
    given = retreat(context, nodes)
    shown = "; ".join([*(f"{v['node']}: {why(v, expectation.profile)}" for v in seen.verdicts), given])
    if seen.between == {SHARED_TIER}:
        return PermanentError(
            "the shared file system was too slow twice, though every node is fit alone",
            seen=shown,
            cure="look at the file system in FSx's console: its state, its throughput, who else uses it; the floor is "
            "half of what FSx promises for storage.shared, divided by the nodes; then `bivouac run` continues, or "
            f"`bivouac down {context.spec.campaign}`",
        )
    return PermanentError(
        "the fabric failed twice, though every node is fit alone",
        seen=shown,
        cure="look at what lies between the nodes: their security group (it must name itself, both ways, for EFA), "
        "one placement group, EFA plugin; a floor of bus bandwidth that this type does not reach is in "
        "infra/plan/catalogue/expectations.yaml or the spec's preflight.bus_bandwidth_gb_s; then `bivouac run` "
        f"continues, or `bivouac down {context.spec.campaign}`",
    )
