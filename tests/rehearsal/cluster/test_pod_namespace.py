"""The steward's client works in the namespace of its pod, whatever that is called."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest
from lightkube import KubeConfig

from infra.cluster.kubernetes import from_pod
from infra.cluster.pod_logs import PodLogs
from infra.rehearsal.kubernetes.pki import Authority


def test_a_client_from_a_pod_has_the_namespace_of_its_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ca.crt").write_text(Authority(tmp_path / "pki", "racks").pem)
    (tmp_path / "token").write_text("t")
    (tmp_path / "namespace").write_text("team-a")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    made = KubeConfig.from_service_account(tmp_path)
    monkeypatch.setattr(KubeConfig, "from_service_account", lambda: made)
    assert from_pod(lambda source, date: None).namespace == "team-a"


@pytest.mark.parametrize(("namespace", "space"), [((), "campaign"), (("team-a",), "team-a")])
def test_the_end_of_a_pod_is_asked_in_the_campaigns_namespace(namespace: tuple[str, ...], space: str) -> None:
    paths: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        paths.append(request.url.path)
        return httpx2.Response(200, json={"status": {"phase": "Succeeded"}})

    http = httpx2.Client(base_url="http://kubernetes", transport=httpx2.MockTransport(answer))
    assert PodLogs(http, *namespace).ended("rank-0")
    assert paths == [f"/api/v1/namespaces/{space}/pods/rank-0"]
