"""What is foretold of nodes, in the record: the cloud's announcements and the declines that their readings show. Each
stands there once, with the step that was committed when it came."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from infra.cluster.cloud_notice import CloudNotice
from infra.record.payloads.attempts import NodeAnnounced
from infra.record.store import CampaignStore
from infra.steward.foresight.trends import is_of_room
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
        self._rooms = dict[str, str]()
        """Instance -> that its `/dev/shm` fills, by the newest look."""
        self._declines = dict[str, str]()
        """Instance -> why it declines. A trend that was seen stands until the instance is gone, but for room."""
        self._room_attempts = dict[str, int | None]()
        """Instance -> the attempt in which its `/dev/shm` filled; None: an earlier steward's. It drains one attempt of
        an instance: a second such trend is how this job uses it."""

    def take_over(self) -> None:
        """Read what is recorded. Raises S3's errors."""
        for event in self._store.events():
            if isinstance(event.payload, NodeAnnounced):
                self._remember(event.payload)

    def note(self, view: Observation) -> None:
        """Record what is new in this look. Raises S3's errors."""
        for node in view.nodes:
            place: dict[str, Any] = {"node": node.name, "instance": node.instance}
            place["committed_step"] = view.committed_step
            if (notice := node.cloud_notice) is not None:
                self._record(NodeAnnounced(code=notice.code, due=notice.due, **place))
            if node.decline:
                self._record(NodeAnnounced(why=node.decline, **place), view.attempt)

    def with_news(self, view: Observation, statuses: Mapping[str, Status], declines: Mapping[str, str]) -> Observation:
        """Return a view with the declines of this look (instance -> why) and what EC2 told spot nodes of their end, and
        these their agents. `statuses`: by pod. Both stand: EC2 takes no interruption back, and a gang that drains tells
        no more."""
        standing = {instance: reason for instance, reason in declines.items() if not is_of_room(reason)}
        self._declines = {**standing, **self._declines}
        self._rooms = {
            instance: reason
            for instance, reason in declines.items()
            if is_of_room(reason) and self._room_attempts.get(instance, view.attempt) == view.attempt
        }
        notices = {pod.node: statuses[pod.name].notice for pod in view.pods if pod.name in statuses}
        nodes = tuple(self._with_news(node, notices.get(node.name)) for node in view.nodes)
        return view.model_copy(update={"nodes": nodes})

    def _with_news(self, node: NodeView, spot_notice: SpotNotice | None) -> NodeView:
        notice = self._notices.get(node.instance or "")
        if spot_notice is not None and spot_notice.due is not None:
            notice = CloudNotice(code=f"{SPOT}{spot_notice.action}", due=spot_notice.due)
        if notice is None or not notice.code.startswith(SPOT):
            notice = node.cloud_notice
        is_advised = spot_notice is not None and spot_notice.due is None
        room = self._rooms.get(node.instance or "", "")
        decline = self._declines.get(node.instance or "", REBALANCE if is_advised else room)
        return node.model_copy(update={"cloud_notice": notice, "decline": decline})

    def remember(self, view: Observation) -> Observation:
        """Return a view in which EC2's announcements stand though it does not answer now."""
        nodes = [
            node.model_copy(update={"cloud_notice": node.cloud_notice or self._notices.get(node.instance or "")})
            for node in view.nodes
        ]
        return view.model_copy(update={"nodes": tuple(nodes)})

    def _record(self, payload: NodeAnnounced, attempt: int | None = None) -> None:
        if _mark(payload) not in self._recorded:
            self._store.append(payload)
            self._remember(payload, attempt)

    def _remember(self, payload: NodeAnnounced, attempt: int | None = None) -> None:
        self._recorded.add(_mark(payload))
        if payload.instance and is_of_room(payload.why):
            self._room_attempts[payload.instance] = attempt
            self.steps[payload.instance] = payload.committed_step
        elif payload.instance and payload.why:
            self._declines[payload.instance] = payload.why
            self.steps[payload.instance] = payload.committed_step
        elif payload.instance and payload.code and payload.due:
            self.steps[payload.instance] = payload.committed_step
            self._notices[payload.instance] = CloudNotice(code=payload.code, due=payload.due)


def _mark(payload: NodeAnnounced) -> tuple[str | None, str | None, datetime | None]:
    """Return by what an announcement is known again. That room shrinks is one, whatever is left of it."""
    return payload.instance, payload.code or ("room" if is_of_room(payload.why) else payload.why), payload.due
