"""The pilot: one GPU node proves what all of them need before the others are asked for; see infra.plan.pilot."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from lightkube import Client

from infra.campaign import proving
from infra.campaign.billing import node_usd_per_hour
from infra.campaign.capacity import finish_replacements, give_up, refuse_when_late, replace, wait_for_nodes
from infra.campaign.repairs.known_faults import remember_node
from infra.campaign.verdicts import ANSWER, REPORT, judge, of_all, probe_text
from infra.cluster.fitness import NodeFacts
from infra.cluster.nodes import GpuNodes
from infra.errors import PermanentError
from infra.plan.pilot import pilot_first
from infra.record.payloads.attempts import NodeVerdict, PilotBegun, PilotProven
from infra.record.payloads.outputs import BakeOutput
from infra.session.context import Context
from infra.spec.campaign import Spec
from trainer.contract import Expectation, Probe, Verdict
from trainer.contract.workload import IMPORTS, SUPERVISOR

EXPECTATION = "pilot.json"
"""The pilot's expectation in the config map."""
_BUILT_IN = ("torch", "deepspeed")
"""What the built-in trainer imports."""
_QUICK_DCGM = 1


def for_one_node(spec: Spec, expectation: Expectation) -> Expectation:
    """Return what one node can show: no floor between nodes, DCGM's shortest level, and the trainer's imports."""
    level = None if expectation.dcgm_level is None else _QUICK_DCGM
    imports = _BUILT_IN if spec.runtime.is_built_in else ()
    return expectation.model_copy(update={"bus_bandwidth_gb_s": 0.0, "dcgm_level": level, "imports": imports})


def is_due(context: Context, nodes: GpuNodes, expectation: Expectation) -> bool:
    """Return whether a pilot comes first. Not if all nodes were asked for already, by a driver that was killed, or if
    an earlier pilot of this campaign has proven the same images and expectation."""
    if not pilot_first(context.spec) or nodes.desired() > 1:
        return False
    return context.state().pilot_proved != _digest(context, expectation)


def prove(context: Context, client: Client, nodes: GpuNodes, expectation: Expectation) -> None:
    """Bring up one node, check it, and replace it while it fails by its own fault. Raises `PermanentError` for a fault
    that every node would have, or that replacements do not cure; the other nodes were never asked for."""
    spec = context.spec
    context.guard()
    context.store.append(PilotBegun(nodes=1, of=spec.nodes.count))
    nodes.set_desired(1)
    finish_replacements(context, nodes)
    diagnostic = f"dcgm_{for_one_node(spec, expectation).dcgm_level}"
    marks, failures, start = set[tuple[str, str]](), list[Probe](), None
    unfit_verdicts = list[tuple[dict[str, Any], NodeFacts]]()
    for _ in range(spec.preflight.rounds):
        fit = wait_for_nodes(context, nodes, 1)
        start = start or datetime.now(UTC)
        proofs = [proving.prove(context, client, **changes) for changes in _checks(context)]
        refuse_when_late(context, nodes)
        failures, instance = list[Probe](), fit[0].instance
        for proof in proofs:
            failures += [probe for probe in _probes(proof) if probe.verdict is Verdict.FAIL]
            failures += [probe for probe in _probes(proof) if probe.name == diagnostic and not probe.looked]
            check = judge(proof.reports, fit, proof.unplaced)
            for verdict in check.verdicts:
                sound = all(row["ok"] or not row["looked"] for row in verdict["probes"])
                context.store.append(NodeVerdict(**verdict | {"fit": sound}))
            unfit_verdicts += [(verdict, fit[0]) for verdict in check.verdicts]
        if not failures:
            _remember(context, unfit_verdicts)
            context.guard()
            digest = _digest(context, expectation)
            context.store.append(PilotProven(node=fit[0].name, instance=instance, digest=digest))
            extra = spec.nodes.count - 1
            context.progress.note(f"the pilot {fit[0].name} proved what all nodes need; {extra} more are asked for")
            return
        if shared := [row for row in failures if of_all(row) or not row.looked or _mark(row) in marks]:
            raise _refusal(context, nodes, shared, start, "the pilot shows a fault that every node would have")
        marks |= {_mark(row) for row in failures}
        words = "; ".join(map(probe_text, failures))
        context.progress.note(f"the pilot {fit[0].name} is unfit: {words} (profile {expectation.profile}); replaced")
        replace(context, nodes, fit[0].name, instance)
    _remember(context, unfit_verdicts)
    title = f"no pilot was fit in {spec.preflight.rounds} rounds"
    raise _refusal(context, nodes, failures, start or datetime.now(UTC), title)


def _remember(context: Context, verdicts: Iterable[tuple[dict[str, Any], NodeFacts]]) -> None:
    """Note the pilots that failed, once no later one has shown the same: what all show is no node's fault. Nor is a job
    that ends without a report."""
    missing_report = Probe(name=REPORT, ok=False, seen="", wanted="")
    for verdict, node in verdicts:
        remember_node(context, verdict, (node,), (missing_report,))


def _checks(context: Context) -> Iterator[dict[str, Any]]:
    """Yield the checks of the node as changes of preflight's gang: its health, and a workload's own Python."""
    yield {"nodes": 1, "command": proving.health_check(EXPECTATION)}
    workload, images = context.spec.workload, BakeOutput.of(context.outputs)
    if workload is not None:
        yield {
            "nodes": 1,
            "image": images.job_image or images.image,
            "supervisor_image": images.image,
            "pull_secret": context.spec.pull_secret is not None,
            "command": ("python3", SUPERVISOR, IMPORTS),
            "resources": workload.on(context.spec.target).resources,
        }


def _probes(proof: proving.PreflightProof) -> Iterator[Probe]:
    yield from proof.unplaced
    for report in proof.reports.values():
        yield from report.probes


def _mark(probe: Probe) -> tuple[str, str]:
    """Return by what a failure is known again on the next node: last words of a log differ each time."""
    return probe.name, "" if probe.name in (ANSWER, REPORT) else probe.seen


def _refusal(
    context: Context, nodes: GpuNodes, failures: Sequence[Probe], start: datetime, title: str
) -> PermanentError:
    extra, hours = context.spec.nodes.count - 1, Decimal((datetime.now(UTC) - start).total_seconds()) / 3600
    usd = (node_usd_per_hour(context) * extra * hours).quantize(Decimal("0.01"))
    saving = f"about {usd} USD saved, which {extra} more nodes would have billed meanwhile"
    mend = f"mend image, launch template or spec (profile {context.spec.profile})"
    cures = [*(probe.cure for probe in failures if probe.cure), mend]
    title = f"{title}; the other {extra} were never asked for"
    return give_up(context, nodes, title, [*map(probe_text, failures), saving], cures)


def _digest(context: Context, expectation: Expectation) -> str:
    """Return what a pilot proves, as one digest."""
    images = BakeOutput.of(context.outputs)
    nodes = images.node_image and images.node_image.data()
    parts = [images.image, images.code, str(images.job_image), str(nodes)]
    return hashlib.sha256("\n".join([*parts, expectation.model_dump_json()]).encode()).hexdigest()
