"""What is foretold of nodes, in the record: the cloud's announcements and the declines that their readings show. Each
stands there once, with the step that was committed when it came."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from infra.cluster.cloud_notice import CloudNotice
from infra.record.payloads.attempts import NodeAnnounced, NodeDeclining
from infra.record.store import CampaignStore
from infra.steward.seeing.views import REBALANCE, NodeView, Observation
from trainer.contract.job import SpotNotice, Status

SPOT = "spot-"
"""Begins the code of a spot interruption, before its action: `spot-terminate`."""


class Announcements:
    """Records each new announcement and decline; a successor reads them from the record."""

    def __init__(self, store: CampaignStore) -> None:
        self._store = store
        self._recorded = set[tuple[str | None, str | None, datetime | None]]()
        self.steps = dict[str, int]()
        """Instance -> newest committed step when the newest word on it was recorded."""
        self._notices = dict[str, CloudNotice]()
        """Instance -> its newest announcement."""
        self._declines = dict[str, str]()
        """Instance -> why it declines. A trend that was seen stands until the instance is gone."""

    def take_over(self) -> None:
        """Read what is recorded. Raises S3's errors."""
        for event in self._store.events():
            if isinstance(event.payload, NodeAnnounced | NodeDeclining):
                self._remember(event.payload)

    def note(self, view: Observation) -> None:
        """Record what is new in this look. Raises S3's errors."""
        for node in view.nodes:
            notice = node.cloud_notice
            if notice is not None and (node.instance, notice.code, notice.due) not in self._recorded:
                self._record(
                    NodeAnnounced(
                        node=node.name,
                        instance=node.instance,
                        code=notice.code,
                        due=notice.due,
                        committed_step=view.committed_step,
                    )
                )
            if node.decline and (node.instance, None, None) not in self._recorded:
                step = view.committed_step
                payload = NodeDeclining(node=node.name, instance=node.instance, why=node.decline, committed_step=step)
                self._record(payload)

    def with_spot(self, view: Observation, statuses: Mapping[str, Status]) -> Observation:
        """Return a view with what EC2 told the nodes of their end, and the nodes their agents. `statuses`: by pod. An
        interruption stands once it is recorded: EC2 takes none back, and a gang that drains tells no more."""
        told = {pod.node: statuses[pod.name].notice for pod in view.pods if pod.name in statuses}
        return view.model_copy(
            update={"nodes": tuple(self._with_notice(node, told.get(node.name)) for node in view.nodes)}
        )

    def _with_notice(self, node: NodeView, notice: SpotNotice | None) -> NodeView:
        kept = self._notices.get(node.instance or "")
        if notice is not None and notice.due is not None:
            spot = CloudNotice(code=f"{SPOT}{notice.action}", due=notice.due)
            return node.model_copy(update={"cloud_notice": spot})
        if kept is not None and kept.code.startswith(SPOT):
            return node.model_copy(update={"cloud_notice": kept})
        return node if notice is None or node.decline else node.model_copy(update={"decline": REBALANCE})

    def with_declines(self, view: Observation, declines: Mapping[str, str]) -> Observation:
        """Return a view with the declines of this look, and with those that were seen before."""
        self._declines = {**declines, **self._declines}
        return view.model_copy(update={"nodes": tuple(map(self._with_decline, view.nodes))})

    def _with_decline(self, node: NodeView) -> NodeView:
        return node.model_copy(update={"decline": self._declines.get(node.instance or "", node.decline)})

    def remember(self, view: Observation) -> Observation:
        """Return a view in which EC2's announcements stand though it does not answer now."""
        nodes = [
            node.model_copy(update={"cloud_notice": node.cloud_notice or self._notices.get(node.instance or "")})
            for node in view.nodes
        ]
        return view.model_copy(update={"nodes": tuple(nodes)})

    def _record(self, payload: NodeAnnounced | NodeDeclining) -> None:
        self._store.append(payload)
        self._remember(payload)

    def _remember(self, payload: NodeAnnounced | NodeDeclining) -> None:
        if isinstance(payload, NodeDeclining):
            self._recorded.add((payload.instance, None, None))
            if payload.instance:
                self._declines[payload.instance] = payload.why
                self.steps.setdefault(payload.instance, payload.committed_step)
            return
        self._recorded.add((payload.instance, payload.code, payload.due))
        if payload.instance and payload.code and payload.due:
            self.steps[payload.instance] = payload.committed_step
            self._notices[payload.instance] = CloudNotice(code=payload.code, due=payload.due)
