"""Waits for the GPU nodes; gives all of them back when some do not come, since those that came bill."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import httpx2

from infra.campaign import launch_budget
from infra.campaign.billing import bills_on, node_usd_per_hour
from infra.campaign.repairs.known_faults import remember_node
from infra.clock import BoundedLook
from infra.cluster.fitness import ConditionHistory, NodeFacts, Sickness, overdue, shared_cause
from infra.cluster.kubernetes import OF_WORLD, kubectl, may_pass
from infra.cluster.nodes import Launched
from infra.cluster.standing.borrowed import GangNodes
from infra.engine.failures import Cause, cause_of, cure_for
from infra.errors import PermanentError, UserError
from infra.plan import catalogue
from infra.plan.purchase import RESERVED
from infra.plan.survey import environment
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


def wait_for_nodes(context: Context, nodes: GangNodes, wanted_count: int | None = None) -> list[NodeFacts]:
    """Wait for as many fit nodes as the spec wants, or `wanted_count`, each with its accelerators. Raises
    `PermanentError` after giving all back."""
    launch_budget.postpone(context)
    spec, wanted_count = context.spec, wanted_count or context.spec.nodes.count
    cause = ""
    devices = catalogue.instance_type(spec.nodes.instance_type).accelerators
    fit, start, history, replacements = list[NodeFacts](), datetime.now(UTC), ConditionHistory(), set[str]()
    for turn, _ in enumerate(context.turns(spec.capacity_timeout.total_seconds())):
        try:
            facts = nodes.facts()
            fit = [node for node in facts if node.fit(devices)]
            if len(fit) >= wanted_count:
                return fit
            if not _replace_sick(context, nodes, facts, history.look(facts, devices), replacements):
                usable = [node for node in facts if node.fit(devices) or node.only_suspect(devices)]
                if len(usable) >= wanted_count:
                    context.progress.note(
                        "EKS calls more nodes sick than may be replaced: the health check will judge them"
                    )
                    return usable
        except httpx2.HTTPError as error:
            if not may_pass(error):
                raise
            cause = f"; could not look, the cluster does not answer: {error}"[:200]
        except OF_WORLD as error:
            cause = f"; could not look this time: {error}"[:200]
        else:
            # Show AWS's reasons every few seconds: capacity can take an hour.
            cause = _why_missing(nodes, facts, devices, start) if turn % 10 == 5 else cause
        if wanted_count < spec.nodes.count and len(replacements) >= _ALIKE:
            break  # a pilot's successor does not become fit either: so would no other node
        context.progress.step(f"{len(fit)} of {wanted_count} nodes ready{cause}")
    raise _give_back(context, nodes, len(fit), wanted_count, start)


def _replace_sick(
    context: Context,
    nodes: GangNodes,
    facts: Sequence[NodeFacts],
    sick_for: Mapping[str, Mapping[Sickness, timedelta]],
    replacements: set[str],
) -> bool:
    """Replace nodes that have been sick for too long. Returns False and replaces none if they are more than repairs
    allow, or all at once, and so share a cause."""
    sick = [
        row for row in facts if overdue(sick_for[row.name]) and not row.quarantined and row.instance_state != "gone"
    ]
    devices = catalogue.instance_type(context.spec.nodes.instance_type).accelerators
    repairs_left = context.spec.recovery.repairs_per_hour - len(replacements)
    if shared_cause(sick, sum(row.fit(devices) for row in facts), repairs_left):
        return False
    for row in sick:
        words = row.unfit(devices)
        context.progress.note(f"{row.name} does not become fit: {words}; it is replaced")
        probe = {"name": "node", "ok": False, "looked": True, "seen": words, "wanted": "fit for a pod of the gang"}
        verdict = {"node": row.name, "instance": row.instance, "fit": False, "probes": [probe]}
        context.store.append(NodeVerdict(**verdict))
        remember_node(context, verdict, facts)
        replacements.add(row.instance)
        replace(context, nodes, row.name, row.instance)
    return True


def replace(context: Context, nodes: GangNodes, name: str, instance: str, *, has_spare: bool = False) -> None:
    """Quarantine a node and give it back; an instance outside of its group is terminated directly. `has_spare`: the
    group holds another in its place already, and starts none."""
    nodes.quarantine(name, "unfit")
    instance = instance or next((node.instance for node in nodes.facts() if node.name == name), "")
    if not instance:
        context.progress.note(f"{name} has left the cluster already; its group replaces it")
        return
    end = nodes.release if has_spare else nodes.replace
    if not end(instance) and instance in {launch.instance for launch in nodes.launched()}:
        context.progress.note(f"{instance} does not belong to its group any more: it is terminated directly")
        context.guard()
        context.account.client("ec2").terminate_instances(InstanceIds=[instance])


def finish_replacements(context: Context, nodes: GangNodes) -> None:
    """Replace nodes that a killed driver quarantined: no gang uses them, but they count."""
    for node in nodes.facts():
        if node.quarantined and node.instance_state != "gone":
            context.progress.note(f"{node.name} was quarantined before and is replaced now")
            replace(context, nodes, node.name, node.instance)


def refuse_when_late(context: Context, nodes: GangNodes) -> None:
    """Raise `UserError` after the deadline, with what was given back: a check that it cut off says nothing."""
    if is_late(context):
        raise deadline_passed(context, f"{context.deadline.isoformat()}; {retreat(context, nodes)}")


def is_late(context: Context) -> bool:
    return datetime.now(UTC) >= context.deadline


def deadline_passed(context: Context, fact: str) -> UserError:
    cure = f"`bivouac down {context.spec.campaign}`; a longer `money.deadline` needs a new campaign"
    return UserError("the campaign's deadline has passed", seen=fact, cure=cure)


def stay_reason(context: Context) -> str | None:
    """Return the sentence for nodes that stay after a failure, since their places bill in any case; None if they go."""
    budget = context.state().launch_budget
    end = context.deadline if budget is None else min(context.deadline, budget.until)
    if context.spec.nodes.capacity not in RESERVED or datetime.now(UTC) >= end:
        return None
    return (
        f"the GPU nodes stay until {end.isoformat(timespec='minutes')}: their places bill in any case, and EC2 "
        "cleans a place for minutes before it starts another instance there"
    )


def retreat(context: Context, nodes: GangNodes) -> str:
    """Set the GPU group to zero, wait for that within bounds, and return what was given back and paid, or why the nodes
    are kept.

    Looks that serve the message only are bounded and may fail, so they never delay the zero for long. Raises what AWS
    answers to the zero itself.
    """
    if not environment(context.spec).makes_cluster:
        return "the nodes are borrowed: they stay as they are"
    if stay := stay_reason(context):
        return "; ".join(filter(None, [stay, bills_on(context)]))
    launches: tuple[Launched, ...] | None = None
    with suppress(*OF_WORLD, TimeoutError):
        launches = BoundedLook(nodes.launched, "launched").within(_GLANCE_S)
    nodes.set_desired(0)
    left, blind = launches or (), ""
    for _ in context.turns(waits.SHUTDOWN.seconds):
        try:
            # What is shutting down no longer bills, and may take EC2 twenty minutes.
            left, blind = tuple(launch for launch in nodes.launched() if launch.bills), ""
        except OF_WORLD as error:
            blind = f"; could not look which have gone: {error}"[:200]
        if not left and not blind:
            break
        context.progress.step(f"giving {len(left)} GPU instances back{blind}")
    still = f"; still not ending, and billing: {', '.join(launch.instance for launch in left)}" if left else ""
    on = bills_on(context)
    suffix = f"{blind}{still}{f'; {on}' if on else ''}"
    if launches is None:
        return f"the GPU node group was set to zero; which instances it had could not be seen{suffix}"
    if not launches and not left:
        return f"no instance ever came{suffix or ', nothing was paid for GPU nodes'}"
    usd = sum((_cost_of(context, launch) for launch in launches), Decimal(0))
    return f"{len(launches)} instances given back, about {usd.quantize(Decimal('0.01'))} USD paid for them{suffix}"


def see_the_cluster(context: Context) -> str:
    """Return the cure for an API server that does not answer."""
    return f"see that the cluster answers: {kubectl(context.spec, 'get nodes')}"


def _give_back(context: Context, nodes: GangNodes, fit: int, wanted_count: int, start: datetime) -> PermanentError:
    spec, extra = context.spec, context.spec.nodes.count - wanted_count
    duration = min(spec.capacity_timeout, timedelta(seconds=round((datetime.now(UTC) - start).total_seconds())))
    try:
        # Only running instances can tell, so this precedes the retreat; it is bounded, since they bill.
        reasons, cures = BoundedLook(lambda: _last_words(context, nodes, start), "last words").within(_WORDS_S)
    except TimeoutError as error:
        reasons, cures = [f"could not find out why, AWS or the cluster does not answer: {error}"], {}
        cures[see_the_cluster(context)] = None
    title = f"the pilot did not come; the other {extra} were never asked for" if extra else "the nodes did not come"
    facts = [f"{fit} of {wanted_count} within {duration}", *reasons]
    return give_up(context, nodes, title, facts, cures or [cure_for(Cause.CAPACITY)])


def give_up(
    context: Context, nodes: GangNodes, title: str, facts: Iterable[str], cures: Iterable[str]
) -> PermanentError:
    """Give the nodes back; return the error, with what was given back and how to go on."""
    way_on = f"then `bivouac run` continues, `bivouac down {context.spec.campaign}` removes what still bills"
    words = "; ".join([*facts, retreat(context, nodes)])
    return PermanentError(title, seen=words, cure="; ".join([*dict.fromkeys(cures), way_on]))


def _last_words(context: Context, nodes: GangNodes, start: datetime) -> tuple[list[str], dict[str, None]]:
    """Return why nodes are missing, by AWS and the instances, and the cures. Raises none of `OF_WORLD`."""
    reasons, cures, strays, unfit = list[str](), dict[str, None](), list[Launched](), list[str]()
    devices = catalogue.instance_type(context.spec.nodes.instance_type).accelerators
    try:
        reasons += nodes.refusals(start)
    except OF_WORLD as error:
        reasons.append(f"could not ask AWS why: {error}")
    cures |= dict.fromkeys(cure_for(cause) for cause in map(cause_of, reasons) if cause in _OF_BUYING)
    try:
        facts = nodes.facts()
        strays, unfit = _not_joined(nodes, facts), _unfit(facts, devices)
    except httpx2.HTTPError as error:  # unseen nodes bill too
        cures[see_the_cluster(context)] = None
        reasons.append(f"could not look which nodes have joined, the cluster does not answer: {error}")
    except OF_WORLD as error:
        reasons.append(f"could not look which nodes have joined: {error}")
    for stray in strays:
        seconds = (datetime.now(UTC) - stray.at).total_seconds()
        reasons.append(
            f"{stray.instance} has run for {seconds:.0f} s without joining; console: {nodes.console(stray.instance)}"
        )
    if unfit:
        reasons += unfit[:_SHOWN] + ([f"{len(unfit) - _SHOWN} more unfit"] if len(unfit) > _SHOWN else [])
        cures["look at the unfit nodes: somebody else's cordon or taint, or a fault of what they share"] = None
    if strays:
        cures["compare the launch template's NodeConfig, the node role's access entry and the subnet's way out"] = None
    return reasons, cures


def _why_missing(nodes: GangNodes, facts: Sequence[NodeFacts], devices: int, start: datetime) -> str:
    """Return the reason for the progress line; a failed look becomes part of it."""
    try:
        by_now = datetime.now(UTC) - timedelta(seconds=waits.BOOT.seconds)
        strays = [stray for stray in _not_joined(nodes, facts) if stray.at < by_now]
        late = [f"{stray.instance} runs and has not joined" for stray in strays]
        reasons = [*late, *_unfit(facts, devices), *nodes.refusals(start)]
    except OF_WORLD as error:
        return f"; could not look why this time: {error}"[:200]
    return f"; {reasons[0][:160]}" if reasons else ""


def _unfit(facts: Sequence[NodeFacts], devices: int) -> list[str]:
    """Return the reason for each present node that no pod of the gang can use."""
    present = [node for node in facts if node.instance_state != "gone"]
    return [f"{node.name}: {node.unfit(devices)}" for node in present if not node.fit(devices)]


def _not_joined(nodes: GangNodes, facts: Sequence[NodeFacts]) -> list[Launched]:
    members = {node.instance for node in facts}
    return [launch for launch in nodes.launched() if launch.state == "running" and launch.instance not in members]


def _cost_of(context: Context, launch: Launched) -> Decimal:
    runtime = max(datetime.now(UTC) - launch.at, _MINIMUM)
    return node_usd_per_hour(context) * Decimal(repr(runtime.total_seconds())) / 3600
