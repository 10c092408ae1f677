"""Nodes that AWS does not start: what is said, that nothing bills afterwards, and the cure that helps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from infra.campaign import capacity, provision
from infra.cluster.kubernetes import from_outside
from infra.cluster.nodes import GpuNodes
from infra.errors import PermanentError
from infra.record.events import Stage
from infra.record.payloads.stages import StageStarted
from infra.session.context import Context
from tests.worlds.campaign_site import CampaignSite, camp

pytestmark = pytest.mark.nightly

DENIED = (
    "You are not authorized to perform this operation. User: arn:aws:sts::123456789012:assumed-role/x/y is not "
    "authorized to perform: ec2:RunInstances with an explicit deny in a service control policy"
)
FULL = "There are not enough free addresses in subnet 'subnet-0a1b2c3d' to satisfy the requested number of instances."
RANGES = ["198.51.100.0/24", "203.0.113.7/32"]
QUOTA = "You have requested more vCPU capacity than your current vCPU limit of 0 allows for the instance bucket."


@pytest.fixture(scope="module")
def camped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CampaignSite]:
    network = {"api_allowed_cidrs": RANGES}
    with camp(tmp_path_factory.mktemp("refused"), recovery={"capacity_timeout": "8s"}, network=network) as one:
        yield one


@pytest.fixture(scope="module")
def context(camped: CampaignSite) -> Iterator[Context]:
    with camped.opened() as one:
        one.store.append(StageStarted(stage=Stage.BAKE))
        one.outputs[Stage.PROVISION] = provision.run(one)
        yield one


def test_the_cluster_is_open_to_the_ranges_of_the_spec(camped: CampaignSite, context: Context) -> None:
    cluster = camped.client("eks").describe_cluster(name=context.names.cluster)["cluster"]["resourcesVpcConfig"]
    assert cluster["endpointPublicAccess"] and cluster["endpointPrivateAccess"]
    assert sorted(cluster["publicAccessCidrs"]) == RANGES


@pytest.mark.parametrize(
    ("code", "message", "cure"),
    [
        ("InsufficientFreeAddressesInSubnet", FULL, "network.cidr"),
        ("UnauthorizedOperation", DENIED, "organization"),
        ("VcpuLimitExceeded", QUOTA, "Service Quotas"),
    ],
    ids=["subnet full", "organization", "quota 0"],
)
def test_nodes_that_aws_refuses_are_given_back_with_its_words_and_the_cure_for_them(
    camped: CampaignSite, context: Context, code: str, message: str, cure: str
) -> None:
    nodes = GpuNodes(
        context.account, from_outside(context.account, context.names.cluster), context.names, context.guard
    )
    camped.ask("capacity", add=[{"instance_type": "p5*", "code": code, "message": message}])
    nodes.set_desired(2)
    with pytest.raises(PermanentError) as refused:
        capacity.wait_for_nodes(context, nodes)
    camped.ask("capacity", clear=True)
    assert "0 of 2 within" in str(refused.value) and message in str(refused.value)
    assert cure in str(refused.value.cure) and "bivouac down" in str(refused.value.cure)
    assert nodes.desired() == 0 and not any(one.bills for one in nodes.launched())
