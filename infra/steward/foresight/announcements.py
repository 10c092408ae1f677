"""The cloud's announcements in the record: each once, with the step that was committed when it came."""

from __future__ import annotations

from datetime import datetime

from infra.cluster.cloud_notice import CloudNotice
from infra.record.payloads.attempts import NodeAnnounced
from infra.record.store import CampaignStore
from infra.steward.seeing.views import Observation


class Announcements:
    """Records each new announcement; a successor reads them from the record."""

    def __init__(self, store: CampaignStore) -> None:
        self._store = store
        self._recorded = set[tuple[str | None, str | None, datetime | None]]()
        self.steps = dict[str, int]()
        """Instance -> newest committed step when its newest announcement was recorded."""
        self._notices = dict[str, CloudNotice]()
        """Instance -> its newest announcement."""

    def take_over(self) -> None:
        """Read what is recorded. Raises S3's errors."""
        for event in self._store.events():
            if isinstance(event.payload, NodeAnnounced):
                self._remember(event.payload)

    def note(self, view: Observation) -> None:
        """Record what is new in this look. Raises S3's errors."""
        for node in view.nodes:
            notice = node.cloud_notice
            if notice is None or (node.instance, notice.code, notice.due) in self._recorded:
                continue
            payload = NodeAnnounced(
                node=node.name,
                instance=node.instance,
                code=notice.code,
                due=notice.due,
                committed_step=view.committed_step,
            )
            self._store.append(payload)
            self._remember(payload)

    def remember(self, view: Observation) -> Observation:
        """Return a view in which EC2's announcements stand though it does not answer now."""
        nodes = [
            node.model_copy(update={"cloud_notice": node.cloud_notice or self._notices.get(node.instance or "")})
            for node in view.nodes
        ]
        return view.model_copy(update={"nodes": tuple(nodes)})

    def _remember(self, payload: NodeAnnounced) -> None:
        self._recorded.add((payload.instance, payload.code, payload.due))
        if payload.instance and payload.code and payload.due:
            self.steps[payload.instance] = payload.committed_step
            self._notices[payload.instance] = CloudNotice(code=payload.code, due=payload.due)
