"""Preflight: GPU nodes up, each proves itself and all together the fabric; an unfit one is replaced before training."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

from lightkube import Client
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Pod

from infra import catalogue
from infra.actions import attempts
from infra.actions.cluster import from_outside
from infra.actions.gang import ATTEMPT_LABEL, CAMPAIGN_LABEL, Gang
from infra.actions.nodes import GpuNodes, NodeFacts
from infra.errors import PermanentError, UserError
from infra.events import Kind, Stage
from infra.layout import layout
from infra.lifecycle.context import Context
from trainer.contract import Expectation, HealthReport

CONFIG = "preflight"
_RUN_S = 600.0


def run(context: Context) -> dict[str, Any]:
    """Returns the verdicts of the fit gang. Raises `PermanentError` when nodes stay unfit or do not come."""
    spec = context.spec
    client = from_outside(context.account, context.names.cluster)
    nodes = GpuNodes(context.account, client, context.names, context.guard)
    expectation = catalogue.expectation(spec.preflight.profile or spec.nodes.instance_type)
    labels = {CAMPAIGN_LABEL: spec.campaign}
    attempts.create_config(client, CONFIG, labels, {"expectation.json": expectation.model_dump_json(indent=1)})
    if datetime.now(UTC) >= context.deadline:
        raise UserError(
            "the campaign's deadline has passed",
            seen=context.deadline.isoformat(),
            cure=f"`bivouac down {spec.campaign}`; a longer `money.deadline` needs a new campaign",
        )
    nodes.set_desired(spec.nodes.count)
    for turn in range(1, spec.preflight.rounds + 1):
        fit = wait_for_nodes(context, nodes)
        reports = _prove(context, client, turn)
        verdicts = _judge(reports, fit)
        for verdict in verdicts:
            context.store.append(Kind.NODE_VERDICT, **verdict)
        unfit = [v for v in verdicts if not v["fit"]]
        if not unfit and len(verdicts) == spec.nodes.count:
            bandwidth = min((r.bus_bandwidth_gb_s or 0.0) for r in reports.values())
            context.progress.note(f"{len(verdicts)} nodes fit; all-reduce {bandwidth:.3f} GB/s bus bandwidth")
            return {"verdicts": verdicts, "profile": expectation.profile, "bus_bandwidth_gb_s": bandwidth}
        for verdict in unfit:
            context.progress.note(f"{verdict['node']} is unfit: {_why(verdict, expectation)}; it is replaced")
            nodes.quarantine(verdict["node"], "unfit")
            nodes.replace(verdict["instance"])
    nodes.set_desired(0)
    raise PermanentError(
        f"the gang was not fit after {spec.preflight.rounds} rounds",
        seen=[_why(v, expectation) for v in unfit],
        cure="the nodes were given back; see the verdicts; raise preflight.rounds only if the nodes differ each time",
    )


def wait_for_nodes(context: Context, nodes: GpuNodes) -> list[NodeFacts]:
    """As many fit nodes as the spec wants, each with its accelerators; partial capacity is given back in time."""
    spec, wanted = context.spec, context.spec.nodes.count
    devices = catalogue.instance_type(spec.nodes.instance_type).accelerators
    fit: list[NodeFacts] = []
    for _ in context.turns(spec.recovery.capacity_timeout.total_seconds()):
        context.progress.step(f"{len(fit)} of {wanted} nodes ready")
        fit = [node for node in nodes.facts() if node.fit and node.accelerators >= devices]
        if len(fit) >= wanted:
            return fit
    nodes.set_desired(0)
    raise PermanentError(
        "the nodes did not come",
        seen=f"{len(fit)} of {wanted} within {spec.recovery.capacity_timeout}; given back",
        cure="try another zone, purchase option or time; `bivouac down` removes what still bills",
    )


def _prove(context: Context, client: Client, turn: int) -> dict[str, HealthReport]:
    """Run the health check as a gang over all nodes; node -> its report."""
    name = f"{context.spec.campaign}-preflight-{turn}"
    attempts.remove(client, name)
    gang = gang_of(context, name, ("python", "-m", "trainer.health", "--expectation", "/config/expectation.json"))
    context.guard()
    attempts.launch(client, gang)
    labels = {CAMPAIGN_LABEL: context.spec.campaign, ATTEMPT_LABEL: "0"}
    until, done, pods = time.monotonic() + _RUN_S, 0, list[Pod]()
    while time.monotonic() < until:
        pods = [p for p in attempts.pods(client, labels) if p.metadata and str(p.metadata.name).startswith(name)]
        done = sum(p.status is not None and p.status.phase in ("Succeeded", "Failed") for p in pods)
        if done == context.spec.nodes.count:
            break
        context.progress.step(f"health check: {done} of {context.spec.nodes.count} nodes have answered")
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
        command=command,
        config_map=CONFIG,
        grace_seconds=5,
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
        probe = {"name": "report", "ok": False, "seen": words, "wanted": "a health report"}
        return HealthReport.model_validate({"node": node, "probes": [probe]})


def _last_words(client: Client, pod: Pod) -> str:
    try:
        return " | ".join(client.log(str(pod.metadata.name if pod.metadata else ""), tail_lines=5, newlines=False))[
            -400:
        ]
    except ApiError as error:
        return f"no log: {error}"


def _judge(reports: dict[str, HealthReport], nodes: list[NodeFacts]) -> list[dict[str, Any]]:
    instances = {node.name: node.instance for node in nodes}
    return [
        {
            "node": node,
            "instance": instances.get(node, ""),
            "fit": report.fit,
            "probes": json.loads(report.model_dump_json())["probes"],
            "bus_bandwidth_gb_s": report.bus_bandwidth_gb_s,
        }
        for node, report in sorted(reports.items())
    ]


def _why(verdict: dict[str, Any], expectation: Expectation) -> str:
    bad = [f"{p['name']}: {p['seen']}, wanted {p['wanted']}" for p in verdict["probes"] if not p["ok"]]
    return f"{'; '.join(bad)} (profile {expectation.profile})"
