"""Waits for the GPU nodes; gives all of them back when some do not come, since those that came bill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import httpx2

from infra.bounded import BoundedLook
from infra.campaign import launch_budget
from infra.campaign.reserved import bills_on, node_usd_per_hour
from infra.cluster.conditions import ConditionHistory
from infra.cluster.fitness import NodeFacts, Sickness, overdue, shared_cause
from infra.cluster.kubernetes import OF_WORLD, may_pass
from infra.cluster.nodes import GpuNodes, Launched
from infra.engine.failures import Cause, cause_of, cure_for
from infra.errors import PermanentError, UserError
from infra.plan import catalogue
from infra.plan.purchase import RESERVED
from infra.record.payloads.attempts import NodeVerdict
from infra.session.context import Context
from infra.spec import waits

_GLANCE_S = 15.0
_WORDS_S = 30.0
"""Time for looks that only people need, while the nodes bill."""
_OF_BUYING = frozenset({Cause.QUOTA, Cause.CAPACITY, Cause.ADDRESSES, Cause.FORBIDDEN})
_SHOWN = 3
_ALIKE = 2
"""Nodes in a row that do not become fit, after which a pilot's fault is that of every node."""
_MINIMUM = timedelta(seconds=60)
"""The shortest time that EC2 bills."""


def wait_for_nodes(context: Context, nodes: GpuNodes, wanted: int | None = None) -> list[NodeFacts]:
    """Wait for as many fit nodes as the spec wants, or `wanted`, each with its accelerators. Raises `PermanentError`
    after giving all back."""
    launch_budget.postpone(context)
    spec, wanted = context.spec, wanted or context.spec.nodes.count
    why = ""
    devices = catalogue.instance_type(spec.nodes.instance_type).accelerators
    fit, since, history, replaced = list[NodeFacts](), datetime.now(UTC), ConditionHistory(), set[str]()
    for turn, _ in enumerate(context.turns(spec.capacity_timeout.total_seconds())):
        try:
            facts = nodes.facts()
            fit = [node for node in facts if node.fit(devices)]
            if len(fit) >= wanted:
                return fit
            if not _replace_sick(context, nodes, facts, history.look(facts, devices), replaced):
                usable = [node for node in facts if node.fit(devices) or node.suspected(devices)]
                if len(usable) >= wanted:
                    context.progress.note(
                        "EKS calls more nodes sick than may be replaced: the health check will judge them"
                    )
                    return usable
        except httpx2.HTTPError as error:
            if not may_pass(error):
                raise
            why = f"; could not look, the cluster does not answer: {error}"[:200]
        except OF_WORLD as error:
            why = f"; could not look this time: {error}"[:200]
        else:
            # Show AWS's reasons every few seconds: capacity can take an hour.
            why = _why_missing(nodes, facts, devices, since) if turn % 10 == 5 else why
        if wanted < spec.nodes.count and len(replaced) >= _ALIKE:
            break  # a pilot's successor does not become fit either: so would no other node
        context.progress.step(f"{len(fit)} of {wanted} nodes ready{why}")
    raise _give_back(context, nodes, len(fit), wanted, since)


def _replace_sick(
    context: Context,
    nodes: GpuNodes,
    facts: Sequence[NodeFacts],
    sick_for: Mapping[str, Mapping[Sickness, timedelta]],
    replaced: set[str],
) -> bool:
    """Replace nodes that have been sick for too long. Returns False and replaces none if they are more than repairs
    allow, or all at once, and so share a cause."""
    sick = [
        one for one in facts if overdue(sick_for[one.name]) and not one.quarantined and one.instance_state != "gone"
    ]
    devices = catalogue.instance_type(context.spec.nodes.instance_type).accelerators
    repairs_left = context.spec.recovery.repairs_per_hour - len(replaced)
    if shared_cause(sick, sum(one.fit(devices) for one in facts), repairs_left):
        return False
    for one in sick:
        words = one.unfit(devices)
        context.progress.note(f"{one.name} does not become fit: {words}; it is replaced")
        probe = {"name": "node", "ok": False, "looked": True, "seen": words, "wanted": "fit for a pod of the gang"}
        context.store.append(NodeVerdict(node=one.name, instance=one.instance, fit=False, probes=[probe]))
        replaced.add(one.instance)
        replace(context, nodes, one.name, one.instance)
    return True


def replace(context: Context, nodes: GpuNodes, name: str, instance: str) -> None:
    """Quarantine a node and give it back; an instance outside of its group is terminated directly."""
    nodes.quarantine(name, "unfit")
    instance = instance or next((node.instance for node in nodes.facts() if node.name == name), "")
    if not instance:
        context.progress.note(f"{name} has left the cluster already; its group replaces it")
    elif not nodes.replace(instance) and instance in {one.instance for one in nodes.launched()}:
        context.progress.note(f"{instance} does not belong to its group any more: it is terminated directly")
        context.guard()
        context.account.client("ec2").terminate_instances(InstanceIds=[instance])


def finish_replacements(context: Context, nodes: GpuNodes) -> None:
    """Replace nodes that a killed driver quarantined: no gang uses them, but they count."""
    for node in nodes.facts():
        if node.quarantined and node.instance_state != "gone":
            context.progress.note(f"{node.name} was quarantined before and is replaced now")
            replace(context, nodes, node.name, node.instance)


def refuse_when_late(context: Context, nodes: GpuNodes) -> None:
    """Raise `UserError` after the deadline, with what was given back: a check that it cut off says nothing."""
    if is_late(context):
        raise deadline_passed(context, f"{context.deadline.isoformat()}; {retreat(context, nodes)}")


def is_late(context: Context) -> bool:
    return datetime.now(UTC) >= context.deadline


def deadline_passed(context: Context, seen: str) -> UserError:
    cure = f"`bivouac down {context.spec.campaign}`; a longer `money.deadline` needs a new campaign"
    return UserError("the campaign's deadline has passed", seen=seen, cure=cure)


def kept(context: Context) -> str | None:
    """Return the sentence for nodes that stay after a failure, since their places bill in any case; None if they go."""
    budget = context.state().launch_budget
    until = context.deadline if budget is None else min(context.deadline, budget.until)
    if context.spec.nodes.capacity not in RESERVED or datetime.now(UTC) >= until:
        return None
    return (
        f"the GPU nodes stay until {until.isoformat(timespec='minutes')}: their places bill in any case, and EC2 "
        "cleans a place for minutes before it starts another instance there"
    )


def retreat(context: Context, nodes: GpuNodes) -> str:
    """Set the GPU group to zero, wait for that within bounds, and return what was given back and paid, or why the nodes
    are kept.

    Looks that serve the message only are bounded and may fail, so they never delay the zero for long. Raises what AWS
    answers to the zero itself.
    """
    if stay := kept(context):
        return "; ".join(filter(None, [stay, bills_on(context)]))
    before: tuple[Launched, ...] | None = None
    with suppress(*OF_WORLD, TimeoutError):
        before = BoundedLook(nodes.launched, "launched").within(_GLANCE_S)
    nodes.set_desired(0)
    left, blind = before or (), ""
    for _ in context.turns(waits.SHUTDOWN.seconds):
        try:
            # What is shutting down no longer bills, and may take EC2 twenty minutes.
            left, blind = tuple(one for one in nodes.launched() if one.bills), ""
        except OF_WORLD as error:
            blind = f"; could not look which have gone: {error}"[:200]
        if not left and not blind:
            break
        context.progress.step(f"giving {len(left)} GPU instances back{blind}")
    on = bills_on(context)
    rest = f"{blind}{_billing(left)}{f'; {on}' if on else ''}"
    if before is None:
        return f"the GPU node group was set to zero; which instances it had could not be seen{rest}"
    if not before and not left:
        return f"no instance ever came{rest or ', nothing was paid for GPU nodes'}"
    paid = sum((_paid(context, one) for one in before), Decimal(0))
    return f"{len(before)} instances given back, about {paid.quantize(Decimal('0.01'))} USD paid for them{rest}"


def _billing(left: tuple[Launched, ...]) -> str:
    return f"; still not ending, and billing: {', '.join(one.instance for one in left)}" if left else ""


def see_the_cluster(context: Context) -> str:
    """Return the cure for an API server that does not answer."""
    return f"see that the cluster answers: `bivouac shell {context.spec.campaign} -- kubectl get nodes`"


def _give_back(context: Context, nodes: GpuNodes, came: int, wanted: int, since: datetime) -> PermanentError:
    spec, rest = context.spec, context.spec.nodes.count - wanted
    waited = min(spec.capacity_timeout, timedelta(seconds=round((datetime.now(UTC) - since).total_seconds())))
    try:
        # Only running instances can tell, so this precedes the retreat; it is bounded, since they bill.
        said, cures = BoundedLook(lambda: _last_words(context, nodes, since), "last words").within(_WORDS_S)
    except TimeoutError as error:
        said, cures = [f"could not find out why, AWS or the cluster does not answer: {error}"], {}
        cures[see_the_cluster(context)] = None
    given = retreat(context, nodes)
    return PermanentError(
        f"the pilot did not come; the other {rest} were never asked for" if rest else "the nodes did not come",
        seen="; ".join([f"{came} of {wanted} within {waited}", *said, given]),
        cure="; ".join([*(cures or [cure_for(Cause.CAPACITY)]), "then `bivouac run` continues",
                        f"`bivouac down {spec.campaign}` removes what still bills"]),
    )  # fmt: skip


def _last_words(context: Context, nodes: GpuNodes, since: datetime) -> tuple[list[str], dict[str, None]]:
    """Return why nodes are missing, by AWS and the instances, and the cures. Raises none of `OF_WORLD`."""
    said, cures, lost, unfit = list[str](), dict[str, None](), list[Launched](), list[str]()
    devices = catalogue.instance_type(context.spec.nodes.instance_type).accelerators
    try:
        said += nodes.refusals(since)
    except OF_WORLD as error:
        said.append(f"could not ask AWS why: {error}")
    cures |= dict.fromkeys(cure_for(cause) for cause in map(cause_of, said) if cause in _OF_BUYING)
    try:
        facts = nodes.facts()
        lost, unfit = _not_joined(nodes, facts), _unfit(facts, devices)
    except httpx2.HTTPError as error:  # unseen nodes bill too
        cures[see_the_cluster(context)] = None
        said.append(f"could not look which nodes have joined, the cluster does not answer: {error}")
    except OF_WORLD as error:
        said.append(f"could not look which nodes have joined: {error}")
    for one in lost:
        ran = (datetime.now(UTC) - one.at).total_seconds()
        said.append(f"{one.instance} has run for {ran:.0f} s without joining; console: {nodes.console(one.instance)}")
    if unfit:
        said += unfit[:_SHOWN] + ([f"{len(unfit) - _SHOWN} more unfit"] if len(unfit) > _SHOWN else [])
        cures["look at the unfit nodes: somebody else's cordon or taint, or a fault of what they share"] = None
    if lost:
        cures["compare the launch template's NodeConfig, the node role's access entry and the subnet's way out"] = None
    return said, cures


def _why_missing(nodes: GpuNodes, facts: Sequence[NodeFacts], devices: int, since: datetime) -> str:
    """Return the reason for the progress line; a failed look becomes part of it."""
    try:
        by_now = datetime.now(UTC) - timedelta(seconds=waits.BOOT.seconds)
        lost = [one for one in _not_joined(nodes, facts) if one.at < by_now]
        late = [f"{one.instance} runs and has not joined" for one in lost]
        said = [*late, *_unfit(facts, devices), *nodes.refusals(since)]
    except OF_WORLD as error:
        return f"; could not look why this time: {error}"[:200]
    return f"; {said[0][:160]}" if said else ""


def _unfit(facts: Sequence[NodeFacts], devices: int) -> list[str]:
    """Return the reason for each present node that no pod of the gang can use."""
    here = [node for node in facts if node.instance_state != "gone"]
    return [f"{node.name}: {node.unfit(devices)}" for node in here if not node.fit(devices)]


def _not_joined(nodes: GpuNodes, facts: Sequence[NodeFacts]) -> list[Launched]:
    joined = {node.instance for node in facts}
    return [one for one in nodes.launched() if one.state == "running" and one.instance not in joined]


def _paid(context: Context, one: Launched) -> Decimal:
    ran = max(datetime.now(UTC) - one.at, _MINIMUM)
    return node_usd_per_hour(context) * Decimal(repr(ran.total_seconds())) / 3600
