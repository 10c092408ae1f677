"""An alert goes the whole way: a steward's metrics, the real Prometheus and Alertmanager by the chart's own values, and
the steward's reading of them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import ThreadingHTTPServer
from typing import Any

import pytest
from lightkube import ApiError, Client
from lightkube.models.core_v1 import Container, ContainerPort, PodSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace, Pod

from infra.clock import Clock
from infra.monitoring.alerts import CHART, HEARTBEAT, with_alerts
from infra.monitoring.prometheus import PORT, SERVICE
from infra.plan import catalogue
from infra.rehearsal.kubernetes.control_plane import ControlPlane
from infra.rehearsal.kubernetes.monitoring import ALERTMANAGER_PORT
from infra.spec.names import NAMESPACE
from infra.steward.monitoring import alerts
from infra.steward.monitoring.exporter import Exporter
from infra.steward.seeing.agents import NoAnswer
from infra.steward.seeing.views import Observation
from tests.waiting import until as eventually
from tests.worlds.control_plane import ADDRESS, WEBHOOK, ask, release_secret, state_of
from trainer.contract.metrics import STEWARD_PORT

pytestmark = [pytest.mark.nightly, pytest.mark.inside("net", "pid")]


def look(held: bool) -> Observation:
    now = datetime.now(UTC)
    facts: dict[str, Any] = {
        "now": now, "deadline": now + timedelta(hours=9), "spent_usd": 1, "usd_per_hour": 1, "attempt": 1,
        "in_flight": False, "held_since": now if held else None,
    }  # fmt: skip
    return Observation.model_validate(facts)


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    steward = Exporter("train", Clock(), timedelta(minutes=5))
    server: ThreadingHTTPServer = steward.open(WEBHOOK, STEWARD_PORT)
    yield steward
    server.shutdown()


def active() -> set[str]:
    """The alerts that a steward reads; those of no answer, or before the first heartbeat, are none yet."""
    try:
        names = {alert.labels["alertname"] for alert in alerts.read(ADDRESS, ALERTMANAGER_PORT)}
    except NoAnswer:
        return {"not answered"}
    return names - {HEARTBEAT} if HEARTBEAT in names else {"no heartbeat"}


def make(client: Client, pod: Pod) -> bool:
    try:
        client.create(pod)
    except ApiError:  # the namespace has no service account yet
        return False
    return True


def test_a_held_campaign_is_an_alert_until_it_goes_on(plane: ControlPlane, client: Client, exporter: Exporter) -> None:
    (chart,) = (chart for chart in catalogue.charts() if chart.name == CHART)
    client.create(Namespace(metadata=ObjectMeta(name=NAMESPACE)))
    container = Container(name="steward", image="s", ports=[ContainerPort(containerPort=STEWARD_PORT, name="metrics")])
    metadata = ObjectMeta(name="steward-0", namespace=NAMESPACE, labels={"app": "steward"})
    pod = Pod(metadata=metadata, spec=PodSpec(containers=[container]))
    eventually(lambda: make(client, pod), "a pod")
    ip = {"status": {"podIP": WEBHOOK, "podIPs": [{"ip": WEBHOOK}]}}
    client.patch(Pod.Status, "steward-0", ip, namespace=NAMESPACE)
    client.create(release_secret(CHART, chart.chart, with_alerts(CHART, chart.values_from(None))))
    eventually(lambda: state_of(client, CHART), "the release takes effect")
    ready = f"/api/v1/namespaces/kube-system/services/http:{SERVICE}:{PORT}/proxy/-/ready"
    eventually(lambda: ask(plane, "owner", ready) == 200, "Prometheus answers through the API server")
    assert ask(plane, "node", ready) == 403, "a node has no way to it there"

    def after_look(held: bool) -> set[str]:
        exporter.note(look(held), 100.0, 1, 0.1, timedelta(minutes=10))
        return active()

    eventually(lambda: after_look(held=False) == set(), "no alert while all is well")
    eventually(lambda: after_look(held=True) == {"Held"}, "the alert")
    (alert,) = (row for row in alerts.read(ADDRESS, ALERTMANAGER_PORT) if row.labels["alertname"] != HEARTBEAT)
    assert alert.fired().summary == "the campaign is held for a person, and bills"
    assert alert.fired().runbook == "docs/runbooks/Held.md" and alert.labels["campaign"] == "train"
    eventually(lambda: after_look(held=False) == set(), "its end", within_s=600)
