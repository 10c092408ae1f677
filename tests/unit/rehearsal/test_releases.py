"""The controller of Helm releases: it learns of each by a watch, and says what it runs, whatever goes wrong."""

from __future__ import annotations

import base64
import json
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Secret

from infra.rehearsal.kubernetes import releases
from infra.rehearsal.kubernetes.releases import ReleaseController
from infra.rehearsal.plugins.kubernetes.releases import STATE_ANNOTATION
from tests.fake_cluster import answer
from tests.waiting import HUNG_S


def secret_of(name: str) -> Secret:
    release = json.dumps({"chart": {"metadata": {"name": name, "version": "1.0"}}})
    content = base64.b64encode(base64.b64encode(release.encode())).decode()
    meta = ObjectMeta(name=f"sh.helm.release.v1.{name}.v1", namespace="kube-system", labels={"name": name})
    return Secret(metadata=meta, data={"release": content})


class Releases:
    """The API server as far as the controller sees it. The first watch ends in nonsense, the second goes on."""

    def __init__(self) -> None:
        self.secrets, self.refusals = list[Secret](), 0
        self.watches, self.news, self.states = 0, threading.Semaphore(0), dict[str, str]()
        self.annotated, self.is_watched = threading.Event(), threading.Event()

    def list(self, kind: Any, **_: Any) -> list[Secret]:
        return list(self.secrets)

    def watch(self, kind: Any, **_: Any) -> Iterator[None]:
        self.watches += 1
        if self.watches == 1:
            json.loads('{"type": "ADD')  # an API server that died in the middle of a line
        self.is_watched.set()
        while True:
            self.news.acquire()
            yield None

    def patch(self, kind: Any, name: str, patch: Any, **_: Any) -> None:
        if self.refusals:
            self.refusals -= 1
            raise answer(503, "the API server is ending")
        self.states[name] = patch["metadata"]["annotations"][STATE_ANNOTATION]
        self.annotated.set()

    def add(self, name: str) -> None:
        self.annotated.clear()
        self.secrets.append(secret_of(name))
        self.news.release()


class LateNews(threading.Event):
    """News that comes once, right after a wait that was in vain."""

    def __init__(self) -> None:
        super().__init__()
        self.is_due = True

    def wait(self, timeout: float | None = None) -> bool:
        has_come = super().wait(timeout)
        if not has_come and self.is_due:
            self.is_due = False
            self.set()
        return has_come


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[Releases]:
    monkeypatch.setattr(releases, "POLL_S", 0.01)
    made: Any = Releases()
    controller = ReleaseController(lambda: made, {}, logging.getLogger("releases"))
    controller.start()
    yield made
    controller.ask_to_stop()
    controller.join()


def test_a_release_is_noticed_though_the_watch_before_it_ended_in_nonsense(api: Releases) -> None:
    assert api.is_watched.wait(HUNG_S), "it watches again"
    api.add("efa")
    assert api.annotated.wait(HUNG_S) and api.states == {"sh.helm.release.v1.efa.v1": "recorded"}


def test_a_release_whose_state_could_not_be_written_gets_it_at_the_next_try(api: Releases) -> None:
    assert api.is_watched.wait(HUNG_S)
    api.refusals = 2
    api.add("dcgm")
    assert api.annotated.wait(HUNG_S) and api.states == {"sh.helm.release.v1.dcgm.v1": "recorded"}


def test_news_between_a_wait_in_vain_and_the_next_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster: Any = Releases()
    cluster.secrets.append(secret_of("efa"))
    monkeypatch.setattr(cluster, "watch", lambda *_, **__: iter(lambda: threading.Event().wait(), None))
    monkeypatch.setattr(releases, "POLL_S", 0.01)
    controller = ReleaseController(lambda: cluster, {}, logging.getLogger("releases"))
    monkeypatch.setattr(controller, "_changed", LateNews())
    controller.start()
    try:
        assert cluster.annotated.wait(HUNG_S) and cluster.states == {"sh.helm.release.v1.efa.v1": "recorded"}
    finally:
        controller.ask_to_stop()
        controller.join()
