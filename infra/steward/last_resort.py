"""The last resort against an endless bill: without a record, the gang commits and the GPU nodes are given back.

S3, which holds the lease, does not answer. So only the steward acts that a config map in Kubernetes names as the last
holder of the lease, or any steward when the named one no longer lives.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress

import httpx2
from lightkube import Client
from lightkube.resources.core_v1 import ConfigMap, Pod

from infra.cluster import attempts
from infra.cluster.gang import CAMPAIGN_LABEL
from infra.cluster.kubernetes import OF_WORLD, or_none
from infra.cluster.standing.borrowed import GangNodes
from infra.errors import LeaseLost, LeaseUnproven
from infra.record.lease import Lease

log = logging.getLogger("steward")
HOLDER = "steward-holder"
STEWARD = "steward"
MARGIN_S = 15.0
"""Time beyond the gang's grace for its pods to be gone."""


def sign(client: Client, pod: str, campaign: str) -> None:
    """Name this pod in Kubernetes as holder of the lease; each holder does so before it touches anything."""
    attempts.create_config(client, HOLDER, {CAMPAIGN_LABEL: campaign}, {"pod": pod})


def other_holder(client: Client, pod: str) -> str | None:
    """Return the living steward that took the lease after this one, or None. Raises `ApiError`."""
    record = or_none(lambda: client.get(ConfigMap, HOLDER))
    if record is None:
        return None
    holder = (record.data or {}).get("pod")
    stewards = client.list(Pod, labels={"app": STEWARD})
    living = {steward.metadata.name for steward in stewards if steward.metadata}
    return holder if holder != pod and holder in living else None


def give_back(
    client: Client,
    nodes: GangNodes,
    lease: Lease,
    kind: attempts.Kind,
    campaign: str,
    grace_s: float,
    pause: Callable[[], None],
    reason: str,
) -> bool:
    """Ask every gang of the campaign to commit, wait for it, set the GPU nodes to zero; return whether that succeeded.

    Idempotent. Raises `LeaseLost` when another steward has the campaign. Does nothing when neither S3 nor Kubernetes
    answers: that may be our own network, and a schedule at AWS ends the bill at the deadline.
    """
    try:
        _refuse_other(client, lease)
        log.error("the GPU nodes go back, unrecorded: %s", reason)
        with suppress(httpx2.HTTPError):  # do not wait for a gang that cannot be asked
            for name in attempts.jobs(client, kind, campaign).values():
                attempts.remove(client, kind, name)
            deadline = time.monotonic() + grace_s + MARGIN_S
            while _gang(client, campaign) and time.monotonic() < deadline:
                pause()
        nodes.set_desired(0)
    except OF_WORLD as error:
        log.error("the GPU nodes are not given back yet: %s", error)
        return False
    return True


def _refuse_other(client: Client, lease: Lease) -> None:
    try:
        lease.check()
    except LeaseUnproven:
        holder = other_holder(client, os.uname().nodename)
        if holder is not None:
            cure = "nothing: it goes on, and this one ends"
            raise LeaseLost("another steward has the campaign", seen=holder, cure=cure) from None


def _gang(client: Client, campaign: str) -> list[str]:
    pods = attempts.pods(client, {CAMPAIGN_LABEL: campaign})
    return [
        str(pod.metadata.name)
        for pod in pods
        if pod.metadata
        and (pod.metadata.labels or {}).get("app") != STEWARD
        and (pod.status is None or pod.status.phase not in ("Succeeded", "Failed"))
    ]
