"""Preflight at an existing cluster: the same health check, on nodes that are borrowed. An unfit one is left out."""

from __future__ import annotations

from datetime import UTC, datetime

from lightkube import Client

from infra.campaign import preflight
from infra.campaign.capacity import deadline_passed, is_late
from infra.campaign.launch import withdraw
from infra.campaign.proving import CONFIG, EXPECTATION
from infra.cluster import attempts
from infra.cluster.gang import CAMPAIGN_LABEL
from infra.cluster.standing.borrowed import BorrowedNodes
from infra.cluster.standing.fabric_claims import template_name
from infra.plan.catalogue.reading import image_versions
from infra.record.events import Stage
from infra.record.payloads.attempts import NodeQuarantined
from infra.record.payloads.outputs import PreflightOutput
from infra.session.context import Context
from infra.spec.campaign import Spec
from infra.spec.standing import StandingCluster
from infra.standing.belongings import node_trouble
from infra.standing.tenancy import refuse_held
from trainer.contract import Expectation

OF_NODE_IMAGE = frozenset({"efa"})
"""Components of AWS's node images that other nodes have not."""


class JudgedNodes(BorrowedNodes):
    """Borrowed nodes whose leaving out is recorded, so that the steward's gangs keep off them too."""

    def __init__(self, client: Client, cluster: StandingCluster, context: Context) -> None:
        super().__init__(client, cluster, context.spec.campaign, context.spec.nodes.count)
        self._context = context
        for event in context.store.events():
            if isinstance(event.payload, NodeQuarantined):
                super().quarantine(event.payload.node, "recorded", event.at if event.payload.died else None)

    def quarantine(self, node: str, reason: str, died_at: datetime | None = None) -> None:
        """Leave this node out of later gangs, and record why. One that is not Ready counts as dead: it comes back."""
        if node in self.left_out:
            return
        death = datetime.now(UTC) if node_trouble(self.client, node) else died_at
        self._context.guard()
        self._context.store.append(NodeQuarantined(node=node, instance=node, reason=reason, died=death is not None))
        super().quarantine(node, reason, death)


def run(context: Context) -> PreflightOutput:
    """Return the verdicts of the fit gang. Raises `PermanentError` when too few nodes are fit."""
    spec, cluster = context.spec, context.spec.cluster
    assert cluster is not None, "the stage is one of an existing cluster"
    if is_late(context):
        raise deadline_passed(context, context.deadline.isoformat())
    client = context.cluster_client()
    refuse_held(client, spec, cluster)
    nodes = JudgedNodes(client, cluster, context)
    expectation = expectation_of(spec, cluster, context.account.client("s3").meta.endpoint_url)
    if Stage.LAUNCH not in context.state().finished_stages:
        withdraw(context, client)  # a failed launch may have left steward and gang
    files = {EXPECTATION: expectation.model_dump_json(indent=1)}
    attempts.create_config(client, CONFIG, {CAMPAIGN_LABEL: spec.campaign}, files)
    return preflight.rounds(context, client, nodes, expectation)


def expectation_of(spec: Spec, cluster: StandingCluster, endpoint: str) -> Expectation:
    """Return what a node must have: the instance type's accelerators, without what only AWS's own nodes have.

    `endpoint`: URL of S3, whose clock the nodes' are compared with.
    """
    # Pods do not know a CA of one's own, so they could not ask such an endpoint.
    time_source = endpoint if cluster.s3.ca is None else None
    base = preflight.expectation_of(spec, time_source, image_versions())
    versions = {name: version for name, version in base.versions.items() if name not in OF_NODE_IMAGE}
    has_rdma = any(name.startswith("rdma/") for name in cluster.nodes.devices) or bool(template_name(cluster.fabric))
    changes = {"efa_devices": 0, "versions": versions, "gpudirect": base.gpudirect and has_rdma, "rdma": has_rdma}
    fabric = {"adapters": cluster.fabric.adapters or 0, "one_leaf": cluster.fabric.one_leaf}
    return base.model_copy(update={**changes, **fabric})
