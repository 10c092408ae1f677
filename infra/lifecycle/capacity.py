"""Waiting for the GPU nodes, and the retreat when they do not all come: what did come bills until it is given back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import httpx2

from infra import catalogue
from infra.actions.cluster import may_pass
from infra.actions.nodes import GpuNodes, Launched, NodeFacts
from infra.errors import PermanentError
from infra.lifecycle.context import Context
from infra.lifecycle.failures import Cause, cause_of, cure_for

_RETREAT_S = 300.0
_JOIN_S = 240.0
"""An instance that has run for so long without joining has something wrong: boot and join take two minutes."""
_MINIMUM = timedelta(seconds=60)
"""EC2 bills an instance at least for this."""


def wait_for_nodes(context: Context, nodes: GpuNodes) -> list[NodeFacts]:
    """As many fit nodes as the spec wants, each with its accelerators. Raises `PermanentError` after giving back."""
    spec, wanted = context.spec, context.spec.nodes.count
    why = ""
    devices = catalogue.instance_type(spec.nodes.instance_type).accelerators
    fit, since = list[NodeFacts](), datetime.now(UTC)
    for turn, _ in enumerate(context.turns(spec.recovery.capacity_timeout.total_seconds())):
        try:
            fit = [node for node in nodes.facts() if node.fit and node.accelerators >= devices]
            if len(fit) >= wanted:
                return fit
            # Every few seconds what AWS says of the missing ones: an hour of silence helps nobody.
            why = _why_missing(nodes, fit, since) if turn % 10 == 5 else why
        except httpx2.HTTPError as error:
            if not may_pass(error):
                raise
            why = f"; could not look, the cluster does not answer: {error}"[:200]
        context.progress.step(f"{len(fit)} of {wanted} nodes ready{why}")
    raise _give_back(context, nodes, fit, since)


def retreat(context: Context, nodes: GpuNodes) -> str:
    """The GPU group to zero, waited for with a bound; says what that did and what was paid for it."""
    before = nodes.launched()
    nodes.set_desired(0)
    left = before
    for _ in context.turns(_RETREAT_S):
        left = nodes.launched()
        if not left:
            break
        context.progress.step(f"giving {len(left)} GPU instances back")
    paid = sum((_paid(context, one) for one in before), Decimal(0))
    said = f"{len(before)} instances given back, about {paid.quantize(Decimal('0.01'))} USD paid for them"
    if left:
        said += f"; still not terminated, and billing: {', '.join(one.instance for one in left)}"
    return said if before else "no instance ever came, nothing was paid for GPU nodes"


def see_the_cluster(context: Context) -> str:
    """The cure where the API server does not answer."""
    return f"see that the cluster answers: `bivouac shell {context.spec.campaign} -- kubectl get nodes`"


def _give_back(context: Context, nodes: GpuNodes, fit: list[NodeFacts], since: datetime) -> PermanentError:
    spec, said, unseen = context.spec, list(nodes.refusals(since)), dict[str, None]()
    try:
        lost = _not_joined(nodes, fit)
    except httpx2.HTTPError as error:  # nodes that nobody can see bill all the same
        lost, unseen[see_the_cluster(context)] = [], None
        said.append(f"could not look which nodes have joined, the cluster does not answer: {error}")
    for one in lost:
        ran = (datetime.now(UTC) - one.at).total_seconds()
        said.append(f"{one.instance} runs since {ran:.0f} s and has not joined; console: {nodes.console(one.instance)}")
    given = retreat(context, nodes)
    cures = dict.fromkeys(cure_for(cause) for cause in map(cause_of, said) if cause in (Cause.QUOTA, Cause.CAPACITY))
    cures |= unseen
    if lost:
        cures["compare the launch template's NodeConfig, the node role's access entry and the subnet's way out"] = None
    return PermanentError(
        "the nodes did not come",
        seen="; ".join([f"{len(fit)} of {spec.nodes.count} within {spec.recovery.capacity_timeout}", *said, given]),
        cure="; ".join([*(cures or [cure_for(Cause.CAPACITY)]), "then `bivouac run` continues",
                        f"`bivouac down {spec.campaign}` removes what still bills"]),
    )  # fmt: skip


def _why_missing(nodes: GpuNodes, fit: list[NodeFacts], since: datetime) -> str:
    lost = [one for one in _not_joined(nodes, fit) if (datetime.now(UTC) - one.at).total_seconds() > _JOIN_S]
    said = [*(f"{one.instance} runs and has not joined" for one in lost), *nodes.refusals(since)]
    return f"; {said[0][:160]}" if said else ""


def _not_joined(nodes: GpuNodes, fit: list[NodeFacts]) -> list[Launched]:
    joined = {node.instance for node in fit} | {node.instance for node in nodes.facts()}
    return [one for one in nodes.launched() if one.state == "running" and one.instance not in joined]


def _paid(context: Context, one: Launched) -> Decimal:
    """From its launch until now."""
    rate = sum((line.usd_per_hour for line in context.plan.cost if line.gpu), Decimal(0)) / context.spec.nodes.count
    ran = max(datetime.now(UTC) - one.at, _MINIMUM)
    return rate * Decimal(repr(ran.total_seconds())) / 3600
