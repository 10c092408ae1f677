"""Preflight: GPU nodes up, each proves itself and all together the fabric; an unfit one is replaced before training."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import httpx2
from lightkube import Client
from lightkube.resources.core_v1 import Pod

from infra import catalogue
from infra.actions import attempts
from infra.actions.cluster import from_outside, may_pass
from infra.actions.gang import ATTEMPT_LABEL, CAMPAIGN_LABEL, Gang
from infra.actions.nodes import GpuNodes
from infra.errors import PermanentError, UserError
from infra.events import Kind, Stage
from infra.layout import layout
from infra.lifecycle.blocks import await_active
from infra.lifecycle.capacity import retreat, see_the_cluster, wait_for_nodes
from infra.lifecycle.context import Context
from infra.lifecycle.expecting import expectation_of, read_versions
from infra.lifecycle.verdicts import REPORT, SHARED_TIER, Judgement, judge, told, why
from trainer.contract import DCGM_LONGEST_S, Expectation, HealthReport

CONFIG = "preflight"
JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
_RUN_S = 600.0
_LONGEST = 45
"""Of a JobSet's name: the pods' names add 18 characters and are names of hosts."""


def run(context: Context) -> dict[str, Any]:
    """Returns the verdicts of the fit gang. Raises `PermanentError` when nodes stay unfit or do not come."""
    spec = context.spec
    client = from_outside(context.account, context.names.cluster)
    nodes = GpuNodes(context.account, client, context.names, context.guard)
    expectation = expectation_of(spec, context.account.client("s3").meta.endpoint_url, read_versions())
    labels = {CAMPAIGN_LABEL: spec.campaign}
    attempts.create_config(client, CONFIG, labels, {"expectation.json": expectation.model_dump_json(indent=1)})
    if datetime.now(UTC) >= context.deadline:
        raise UserError(
            "the campaign's deadline has passed",
            seen=context.deadline.isoformat(),
            cure=f"`bivouac down {spec.campaign}`; a longer `money.deadline` needs a new campaign",
        )
    await_active(context)
    nodes.set_desired(spec.nodes.count)
    try:
        return _rounds(context, client, nodes, expectation)
    except httpx2.HTTPError as error:
        # They bill, and nobody can be sent to look at them.
        raise PermanentError(
            "the cluster does not answer, or refuses",
            seen=f"{error}; {retreat(context, nodes)}",
            cure=f"{see_the_cluster(context)}; then `bivouac run` continues, `bivouac down {spec.campaign}` removes "
            "what still bills",
        ) from error


def _rounds(context: Context, client: Client, nodes: GpuNodes, expectation: Expectation) -> dict[str, Any]:
    """Prove, replace who is unfit, prove again: the verdicts of the fit gang, or the error."""
    spec = context.spec
    _finish_replacements(context, nodes)
    seen, fabric_failures = Judgement((), (), ()), 0
    for _ in range(spec.preflight.rounds):
        fit = wait_for_nodes(context, nodes)
        reports = _prove(context, client)
        seen = judge(reports, fit)
        for verdict in seen.verdicts:
            context.store.append(Kind.NODE_VERDICT, **verdict)
        _say_what_was_not_seen(context, seen)
        if seen.common or _blind_where_asked(seen, expectation):
            raise _no_node_is_to_blame(context, nodes, seen, expectation)
        if not seen.unfit and len(seen.verdicts) == spec.nodes.count and seen.fabric:
            bandwidth = min((r.bus_bandwidth_gb_s or 0.0) for r in reports.values())
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
            _replace(context, nodes, verdict["node"], verdict["instance"])
        if len(seen.verdicts) < spec.nodes.count:
            context.progress.note(f"{spec.nodes.count - len(seen.verdicts)} nodes never ran the health check")
        elif not seen.unfit:
            fabric_failures += 1
            context.progress.note(
                "every node is fit by itself, but together they are not: tried once more, none replaced"
            )
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
    """A diagnostic that the spec asks for and that did not run is no diagnostic."""
    asked = f"dcgm_{expectation.dcgm_level}"
    return expectation.dcgm_level is not None and any(probe.name == asked for probe in seen.blind)


def _no_node_is_to_blame(
    context: Context, nodes: GpuNodes, seen: Judgement, expectation: Expectation
) -> PermanentError:
    """Image, launch template, spec or catalogue: another node would only show the same, at its price."""
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


def _no_fabric(context: Context, nodes: GpuNodes, seen: Judgement, expectation: Expectation) -> PermanentError:
    """No single node can be blamed, so none is replaced: the way between them is at fault, or what they share."""
    given = retreat(context, nodes)
    shown = "; ".join([*(f"{v['node']}: {why(v, expectation.profile)}" for v in seen.verdicts), given])
    if seen.between == {SHARED_TIER}:
        return PermanentError(
            "the shared file system is too slow twice though every node is fit by itself",
            seen=shown,
            cure="look at the file system in FSx's console: its state, its throughput, who else uses it; the floor is "
            "half of what FSx promises for storage.shared, divided by the nodes; then `bivouac run` continues, or "
            f"`bivouac down {context.spec.campaign}`",
        )
    return PermanentError(
        "the fabric fails twice though every node is fit by itself",
        seen=shown,
        cure="look at what lies between the nodes: their security group (it must name itself, both ways, for EFA), "
        "one placement group, EFA plugin; a floor of bus bandwidth that this type does not reach is in "
        "infra/catalogue/expectations.yaml or the spec's preflight.bus_bandwidth_gb_s; then `bivouac run` continues, "
        f"or `bivouac down {context.spec.campaign}`",
    )


def _finish_replacements(context: Context, nodes: GpuNodes) -> None:
    """A driver killed between quarantine and replacement left nodes that nobody will use, but that count."""
    for node in nodes.facts():
        if node.quarantined and node.instance_state != "gone":
            context.progress.note(f"{node.name} was quarantined before and is replaced now")
            _replace(context, nodes, node.name, node.instance)


def _replace(context: Context, nodes: GpuNodes, name: str, instance: str) -> None:
    """Quarantine, then give back; an instance that its group does not hold is ended directly."""
    nodes.quarantine(name, "unfit")
    instance = instance or next((node.instance for node in nodes.facts() if node.name == name), "")
    if not instance:
        context.progress.note(f"{name} has left the cluster already; its group replaces it")
    elif not nodes.replace(instance) and instance in {one.instance for one in nodes.launched()}:
        context.progress.note(f"{instance} does not belong to its group any more: it is terminated directly")
        context.guard()
        context.account.client("ec2").terminate_instances(InstanceIds=[instance])


def _prove(context: Context, client: Client) -> dict[str, HealthReport]:
    """Run the health check as a gang over all nodes; node -> its report.

    Each gang has a name of its own, so that a pod of a killed driver's gang is never taken for one of this.
    """
    labels = {CAMPAIGN_LABEL: context.spec.campaign, ATTEMPT_LABEL: "0"}
    for old in attempts.gangs(client, labels):
        attempts.remove(client, old)
    name = f"{context.spec.campaign}-preflight-{int(time.time() * 1000):x}"[-_LONGEST:]
    gang = gang_of(context, name, ("python", "-m", "trainer.health", "--expectation", "/config/expectation.json"))
    context.guard()
    attempts.launch(client, gang)
    longest = _RUN_S + DCGM_LONGEST_S.get(context.spec.preflight.dcgm_level or 0, 0.0)
    until, done, pods = time.monotonic() + longest, 0, list[Pod]()
    while time.monotonic() < until:
        blind = ""
        try:
            pods = attempts.pods(client, labels | {JOBSET_LABEL: name})
        except httpx2.HTTPError as error:
            if not may_pass(error):
                raise
            blind = f"; could not look, the cluster does not answer: {error}"[:200]
        done = sum(p.status is not None and p.status.phase in ("Succeeded", "Failed") for p in pods)
        if done == context.spec.nodes.count:
            break
        context.progress.step(f"health check: {done} of {context.spec.nodes.count} nodes have answered{blind}")
        time.sleep(0.3)
    reports = {str(p.spec.nodeName): _report(client, p) for p in pods if p.spec and p.spec.nodeName}
    attempts.remove(client, name)
    return reports


def gang_of(context: Context, name: str, command: tuple[str, ...]) -> Gang:
    bake, shape = context.outputs[Stage.BAKE], layout(context.spec)
    instance = catalogue.instance_type(context.spec.nodes.instance_type)
    return Gang(
        name=name,
        campaign=context.spec.campaign,
        attempt=0,
        image=bake["image"],
        code_digest=bake["code"],
        nodes=shape.nodes,
        ranks_per_node=shape.ranks_per_node,
        accelerators=instance.accelerators,
        efa_interfaces=instance.efa_interfaces,
        efa_by_claim=context.spec.addons.efa == "dra",
        command=command,
        config_map=CONFIG,
        grace_seconds=5,
        # The kernel log tells of Xid errors, and of nothing to a container without this.
        capabilities=("IPC_LOCK", "SYSLOG") if instance.maker == "nvidia" else ("IPC_LOCK",),
    )


def _report(client: Client, pod: Pod) -> HealthReport:
    """The pod's own report; without one, a report that says so with the last words of the pod."""
    message = ""
    for container in (pod.status.containerStatuses if pod.status else None) or ():
        ended = container.state.terminated if container.state else None
        if ended is not None:
            message = ended.message or f"exit code {ended.exitCode} without a report"
    node = str(pod.spec.nodeName if pod.spec else "")
    try:
        return HealthReport.model_validate_json(message)
    except ValueError:
        words = f"{message[:200] or 'nothing'}; {_last_words(client, pod)}"
        probe = {"name": REPORT, "ok": False, "seen": words, "wanted": "a health report"}
        return HealthReport.model_validate({"node": node, "probes": [probe]})


def _last_words(client: Client, pod: Pod) -> str:
    try:
        return " | ".join(client.log(str(pod.metadata.name if pod.metadata else ""), tail_lines=5, newlines=False))[
            -400:
        ]
    except httpx2.HTTPError as error:
        return f"no log: {error}"
