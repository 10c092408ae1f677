"""Objects that stand in the namespace under the names that a campaign takes, and whose they are."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from lightkube import Client
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.batch_v1 import Job
from lightkube.resources.core_v1 import ConfigMap, PersistentVolumeClaim

from infra.archive import archive_job
from infra.campaign import proving
from infra.cluster.gang import CAMPAIGN_LABEL
from infra.cluster.kubernetes import or_none
from infra.cluster.standing.placing import CA_CONFIG, shared_claim
from infra.cluster.steward_config import config_map
from infra.errors import UserError
from infra.plan.standing_facts import HeldName
from infra.spec.campaign import Spec
from infra.spec.standing import StandingCluster
from infra.standing import bring
from infra.steward import judging
from infra.steward.last_resort import HOLDER, STEWARD

FIXED: tuple[tuple[Any, str], ...] = (
    (Deployment, STEWARD),
    (ConfigMap, config_map(0)),
    (ConfigMap, HOLDER),
    (ConfigMap, proving.CONFIG),
    (ConfigMap, judging.CONFIG),
    (ConfigMap, archive_job.CONFIG),
    (Job, archive_job.NAME),
    (ConfigMap, bring.NAME),
    (ConfigMap, CA_CONFIG),
    (Job, bring.NAME),
)
"""(kind, name) of what each campaign writes over or removes: two campaigns in one namespace would take each other's."""


def held_names(client: Client, spec: Spec, cluster: StandingCluster) -> tuple[HeldName, ...]:
    """Return the objects under a name of the campaign's that do not have its label. Raises `ApiError`."""
    return tuple(_held(client, spec, cluster))


def refuse_held(client: Client, spec: Spec, cluster: StandingCluster) -> None:
    """Raise `UserError` before anything is made or removed where another campaign's objects, or somebody else's, have
    the names of ours."""
    if taken_names := held_names(client, spec, cluster):
        raise UserError(
            "the namespace has objects of others under the campaign's names",
            seen="; ".join(
                f"{row.kind} {row.name} of {f'campaign {row.campaign}' if row.campaign else 'somebody else'}"
                for row in taken_names
            ),
            cure="give the campaign a namespace of its own, or wait until the other campaign is over",
        )


def _held(client: Client, spec: Spec, cluster: StandingCluster) -> Iterator[HeldName]:
    own_claim = [(PersistentVolumeClaim, shared_claim(cluster, spec.campaign))] if cluster.shared.claim is None else []
    for kind, name in (*FIXED, *own_claim):
        item = or_none(partial(client.get, kind, name))
        if item is None:
            continue
        labels = (item.metadata.labels if item.metadata else None) or {}
        if labels.get(CAMPAIGN_LABEL) != spec.campaign:
            yield HeldName(kind=kind.__name__, name=name, campaign=labels.get(CAMPAIGN_LABEL, ""))
