"""Everything that mounts a lost file system ends before its volume goes, and the steward starts again after."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from lightkube.codecs import from_dict
from lightkube.resources.core_v1 import Pod

from infra.campaign.repairs import repair
from infra.errors import PermanentError
from tests.worlds.progress import SilentProgress


class Cluster:
    """Pods by name; each look at them takes one of those that `leave`."""

    def __init__(self, *pods: dict[str, Any], leave: int = 99) -> None:
        self.pods, self.leave, self.looks = list(pods), leave, 0

    def list(self, kind: type, namespace: str) -> list[Any]:
        assert (kind, namespace) == (Pod, "campaign")
        self.looks += 1
        left = self.pods[min(self.looks - 1, self.leave) :]
        return [from_dict(pod) for pod in left]


def pod(name: str, claim: str = "shared", phase: str = "Running") -> dict[str, Any]:
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}, {"name": "e", "emptyDir": {}}]
    spec = {"containers": [], "volumes": volumes}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec, "status": {"phase": phase}}


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(repair, "withdraw", lambda context, client: found.append("steward and gang"))
    monkeypatch.setattr(repair.archive_job, "remove", lambda client, name: found.append(name))
    return found


def context(cluster: Cluster, turns: int = 20) -> Any:
    return SimpleNamespace(
        account=None, cluster_client=lambda: cluster, guard=lambda: None, turns=lambda seconds: range(turns),
        progress=SilentProgress(), spec=SimpleNamespace(campaign="x"),
        state=lambda: SimpleNamespace(version=2), store=None,
    )  # fmt: skip


def test_the_volume_goes_when_no_pod_mounts_it_any_more(ended: list[str]) -> None:
    cluster = Cluster(pod("gang-0"), pod("gang-1"), pod("other", "local"), pod("archive-0", phase="Succeeded"))
    repair.let_go(context(cluster))
    assert ended == ["steward and gang", "archive", "copy", "fetch"] and cluster.looks == 3


def test_a_pod_that_stays_is_named_with_the_cure(ended: list[str]) -> None:
    with pytest.raises(PermanentError, match=r"seen: gang-1; cure: .*kubectl delete pod --force"):
        repair.let_go(context(Cluster(pod("gang-0"), pod("gang-1"), leave=1)))


@pytest.mark.parametrize("known", [None, "the configuration"])
def test_the_steward_starts_with_the_configuration_in_force(monkeypatch: pytest.MonkeyPatch, known: str | None) -> None:
    deployed: list[Any] = []
    monkeypatch.setattr(repair, "recorded_config", lambda store, version: known if version == 2 else "another")
    monkeypatch.setattr(repair, "deploy", lambda client, store, config: deployed.append(config))
    repair.go_on(context(Cluster()))
    assert deployed == ([] if known is None else ["the configuration"])
