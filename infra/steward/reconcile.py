"""The repair of what a steward left when it was killed between recording and acting, or between acting and recording.

It compares record and cluster before the first decision. Each act is idempotent.
"""

from __future__ import annotations

import logging

from lightkube import Client

from infra.cluster import attempts
from infra.cluster.gang import ATTEMPT_LABEL, CAMPAIGN_LABEL
from infra.cluster.standing.borrowed import GangNodes
from infra.record.payloads.attempts import AttemptLaunched, GangResized, NodeQuarantined
from infra.record.store import CampaignStore
from infra.steward.returns import Returns

log = logging.getLogger("steward")
_GRACE_S = 1


def reconcile(
    client: Client,
    store: CampaignStore,
    nodes: GangNodes,
    returns: Returns,
    kind: attempts.Kind,
    campaign: str,
    committed_step: int,
) -> None:
    """Repair what is half done; `kind`: of the campaign's attempts."""
    _record_launched(client, store, kind, campaign, committed_step)
    _remove_ended(client, store, kind, campaign)
    _give_back(store, nodes, returns)


def _record_launched(
    client: Client, store: CampaignStore, kind: attempts.Kind, campaign: str, committed_step: int
) -> None:
    """Record attempts that only Kubernetes knows: their steward was killed right after the launch."""
    present = attempts.jobs(client, kind, campaign)
    known_numbers = {attempt.number for attempt in store.state().attempts}
    newest = max(known_numbers, default=0)
    for number, name in sorted(present.items()):
        if number > newest:
            log.info("attempt %d runs unrecorded as %s: it is recorded", number, name)
            size = _size(store)
            store.append(AttemptLaunched(attempt=number, jobset=name, committed_step=committed_step, **size))


def _size(store: CampaignStore) -> dict[str, int]:
    """Return the field with the nodes of the newest gang, as recorded before its launch; none where it has all."""
    sizes = [event.payload for event in store.events() if isinstance(event.payload, GangResized)]
    newest = sizes[-1] if sizes else None
    return {"nodes": newest.nodes} if newest is not None and newest.nodes < newest.of else {}


def _remove_ended(client: Client, store: CampaignStore, kind: attempts.Kind, campaign: str) -> None:
    """Remove the jobs of attempts that the record calls ended: they hold nodes."""
    present = attempts.jobs(client, kind, campaign)
    for attempt in store.state().attempts:
        number = attempt.number
        if attempt.ended is not None and number in present:
            log.info("attempt %d has ended: its job is removed", number)
            attempts.remove(client, kind, present[number])
            if attempt.failure is not None:
                attempts.end_now(client, {CAMPAIGN_LABEL: campaign, ATTEMPT_LABEL: str(number)}, _GRACE_S)


def _give_back(store: CampaignStore, nodes: GangNodes, returns: Returns) -> None:
    """Give back instances that still run although their node is quarantined, in the record or in Kubernetes."""
    quarantines = [(event.at, event.payload) for event in store.events() if isinstance(event.payload, NodeQuarantined)]
    quarantined_instances = {payload.instance for _, payload in quarantines}
    deaths = {payload.node: event_time if payload.died else None for event_time, payload in quarantines}
    nodes.restore(deaths)
    for node in nodes.facts():
        if node.instance_state == "gone" or not node.instance:
            continue
        if node.quarantined or node.instance in quarantined_instances:
            log.info("%s is quarantined and its instance %s still runs: it is given back", node.name, node.instance)
            nodes.quarantine(node.name, "dead", deaths.get(node.name))
            returns.give_back(node.instance)
