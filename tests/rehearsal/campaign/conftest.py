"""A driver before the nodes of its campaign, whose API server can be made to fall silent."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from infra.campaign import preflight
from infra.cluster import kubernetes
from infra.plan.plan import make_plan
from infra.plan.survey import survey
from infra.record.events import Stage
from infra.record.payloads.outputs import BakeOutput
from infra.session.context import Context
from infra.session.session import opened
from infra.spec.names import Names
from tests.worlds.campaign_site import node_of
from tests.worlds.steward_site import StewardSite, gpu_nodes, lone_camp

SPEC: dict[str, Any] = {"campaign": "deaf", "recovery": {"capacity_timeout": "3s"}}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StewardSite]:
    with lone_camp(tmp_path_factory, **SPEC) as camp:
        camp.api.nodes = lambda: [_with_a_gpu(node_of(gpu_node)) for gpu_node in gpu_nodes(camp)]
        yield camp


def _with_a_gpu(node: dict[str, Any]) -> dict[str, Any]:
    node["metadata"]["labels"]["bivouac.dev/pool"] = "gpu"
    node["status"]["allocatable"]["nvidia.com/gpu"] = "1"
    return node


@pytest.fixture
def said() -> StringIO:
    return StringIO()


@pytest.fixture
def context(made: StewardSite, tmp_path: Path, said: StringIO, monkeypatch: pytest.MonkeyPatch) -> Iterator[Context]:
    """A driver before its nodes; its patience with the API server is short, and no kubelet runs a pod."""
    monkeypatch.setattr(kubernetes, "PATIENCE_S", 0.6, raising=False)
    monkeypatch.setattr(preflight.basics, "prove", lambda context, client: None)
    made.forget()
    instances = [gpu_node.settings["instance_id"] for gpu_node in gpu_nodes(made)]
    name = {"Key": "Name", "Value": Names(made.spec.campaign).gpu_group}
    made.site.client("ec2").create_tags(Resources=instances, Tags=[name])
    with opened(made.spec, make_plan(made.spec, survey(made.spec)), Console(file=said, width=400), None) as one:
        one.results = tmp_path
        one.outputs[Stage.BAKE] = BakeOutput(image="base@sha256:0", code="c", manifest="none")
        yield one
    made.api.dropping = 0
