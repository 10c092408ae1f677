"""A client of the cluster that is made once outlives the EKS tokens, which live 15 minutes."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightkube.resources.core_v1 import Node

from infra.cluster import kubernetes
from infra.rehearsal.kubernetes.pki import Authority
from tests.rehearsal.fake_kubernetes import FakeKubernetes


@pytest.fixture
def api() -> Iterator[FakeKubernetes]:
    made = FakeKubernetes(list)
    yield made
    made.stop()


def account(api: FakeKubernetes, folder: Path) -> Any:
    """EKS and its tokens: a new one for each that is asked for."""
    authority = base64.b64encode(Authority(folder, "c").pem.encode()).decode()
    described = {"cluster": {"endpoint": api.endpoint, "certificateAuthority": {"data": authority}}}
    numbers = iter(range(100))
    return SimpleNamespace(
        client=lambda service: SimpleNamespace(describe_cluster=lambda name: described),
        cluster_token=lambda name: f"token-{next(numbers)}",
    )


def test_a_token_is_used_while_it_lives_and_renewed_before_it_ends(
    api: FakeKubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = kubernetes.from_outside(account(api, tmp_path), "c")
    now = 1000.0
    monkeypatch.setattr(kubernetes.time, "clock_gettime", lambda clock: now)
    for now in (1000.0, 1300.0, 1599.0, 1601.0, 1700.0, 2300.0):  # noqa: B007
        list(client.list(Node))
    assert api.tokens == [f"Bearer token-{number}" for number in (0, 0, 0, 1, 1, 2)]
    assert kubernetes.TOKEN_RENEWAL_S < 15 * 60
