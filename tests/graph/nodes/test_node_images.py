"""The AMI of the GPU nodes, and what their user data does about it."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from infra.stack.cluster.tuning import tuning_script
from infra.stack.cluster.user_data import MOST_BYTES
from infra.stack.lustre import client_script
from infra.stack.rules import Level, findings
from tests.example import example_spec
from tests.graph.engine import campaign_graph
from tests.graph.nodes.test_lustre_client import scripts

OWN, FOUND = "ami-0123456789abcdef0", "ami-0fedcba9876543210"
LUSTRE = {"shared": {"efa": True, "capacity_gib": 19200, "metadata_iops": "automatic"}}


def spec(nodes: str, **more: Any) -> Any:
    return example_spec(image={"base": "bivouac/base:cuda", "nodes": nodes}, **more)


@pytest.mark.parametrize(
    ("nodes", "client", "tuned"), [("bake", False, False), ("eks", True, True), (OWN, True, False)]
)
def test_only_eks_own_image_is_set_up_at_boot_and_only_a_baked_one_has_its_client(
    nodes: str, client: bool, tuned: bool
) -> None:
    graph = campaign_graph(spec(nodes), node_image=FOUND)
    assert graph.one("LaunchTemplate", "gpu-nodes").inputs["imageId"] == FOUND, "that which the bake stage recorded"
    run = scripts(graph, "gpu")
    assert (client_script() in run, tuning_script() in run) == (client, tuned)
    assert tuning_script() not in scripts(graph, "system")


def test_the_longest_user_data_fits_and_breaks_no_rule() -> None:
    whole = spec("eks", storage=LUSTRE, money={"alarm_email": "someone@example.com"})
    graph = campaign_graph(whole, node_image=FOUND)
    text = base64.b64decode(graph.one("LaunchTemplate", "gpu-nodes").inputs["userData"])
    room = 4096  # a real cluster's certificate authority and endpoint are longer than these
    assert len(text) < MOST_BYTES - room and len(scripts(graph, "gpu")) == 4
    assert [finding for finding in findings(graph.asked, whole) if finding.level is not Level.INFO] == []
