"""Every instance type of the catalogue, bought in every way: the graph of its campaign, held against EC2's rules."""

from __future__ import annotations

import base64
import email
from collections import Counter
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from infra.errors import UserError
from infra.plan.catalogue import InstanceType, instance_type, instance_types
from infra.plan.checks.finding import Level
from infra.spec.campaign import Capacity, Nodes
from infra.stack.cluster.nodes import Interface, efa_layout, purchase
from infra.stack.cluster.user_data import MOST_BYTES, huge_pages, node_config, user_data
from infra.stack.rules import findings
from tests.example import example_spec
from tests.graph.engine import Graph, campaign_graph

ID = "cr-0123456789abcdef0"
GROUP = "arn:aws:resource-groups:us-east-1:123456789012:group/training"
OPTIONS: tuple[tuple[Capacity, str | None], ...] = (
    (Capacity.ON_DEMAND, None),
    (Capacity.SPOT, None),
    (Capacity.RESERVATION, ID),
    (Capacity.RESERVATION, GROUP),
    (Capacity.RESERVATION, "open"),
    (Capacity.CAPACITY_BLOCK, ID),
)
ANY_TYPE = st.sampled_from(instance_types())
SOLD = [
    pytest.param(
        item,
        *option,
        id=f"{item.name}-{option[0].value}-{option[1] or ''}"[:60],
        marks=() if number == 0 or item.name == "p5.48xlarge" else pytest.mark.nightly,
    )
    for item in instance_types()
    for number, option in enumerate(OPTIONS)
    if (option[0] is not Capacity.CAPACITY_BLOCK or item.capacity_block)
    and (option[1] in (None, ID) or item.name == "p5.48xlarge")
]
"""How a reservation is named does not depend on the type: those ways are built for one. Each type in one way, and one
type in each way, are tested at once; all pairs at night."""


def parts(template: dict[str, Any]) -> dict[str, str]:
    """Content type -> body of the template's user data; of several parts of one type, all."""
    raw = base64.b64decode(template["userData"])
    assert len(raw) <= MOST_BYTES
    found: dict[str, str] = {}
    for part in email.message_from_bytes(raw).walk():
        kind = part.get_content_type()
        found[kind] = found.get(kind, "") + str(part.get_payload())
    return found


def check_interfaces(item: InstanceType, nics: list[dict[str, Any]]) -> None:
    """https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html"""
    places = Counter((nic["networkCardIndex"], nic["deviceIndex"]) for nic in nics)
    assert max(places.values()) == 1
    (primary,) = [nic for nic in nics if nic["interfaceType"] == "interface"]
    assert (primary["networkCardIndex"], primary["deviceIndex"]) == (0, 0)
    efas = [nic for nic in nics if nic["interfaceType"] == "efa-only"]
    assert len(efas) == item.efa_interfaces == len(nics) - 1
    assert len({nic["networkCardIndex"] for nic in efas}) == len(efas)
    for nic in efas:
        assert nic["deviceIndex"] == (1 if nic["networkCardIndex"] == 0 else 0)
        assert nic["networkCardIndex"] < item.network_cards
        assert nic["networkCardIndex"] > 0 or item.efa_on_first_card
    per_card = Counter(nic["networkCardIndex"] for nic in nics)
    assert max(per_card.values()) <= item.interfaces_per_card
    for nic in nics:
        assert "associatePublicIpAddress" not in nic and "subnetId" not in nic
        assert nic["deleteOnTermination"] == "true"


def check_nodes(graph: Graph, item: InstanceType, capacity: Capacity, named: str | None) -> None:
    template, group = (graph.one(kind, "gpu-nodes").inputs for kind in ("LaunchTemplate", "NodeGroup"))
    check_interfaces(item, template["networkInterfaces"])
    nodes = graph.one("SecurityGroup", "nodes").urn
    groups = [tuple(nic["securityGroups"]) for nic in template["networkInterfaces"]]
    assert set(groups) == {("SecurityGroup-nodes", "sg-cluster")}, nodes
    assert "vpcSecurityGroupIds" not in template and "instanceTypes" not in group
    assert template["instanceType"] == item.name and template["imageId"].startswith("ami-")
    assert template["metadataOptions"] == {
        "httpEndpoint": "enabled", "httpTokens": "required", "httpPutResponseHopLimit": 1,
    }  # fmt: skip
    kinds = {specification["resourceType"]: specification["tags"] for specification in template["tagSpecifications"]}
    assert set(kinds) == {"instance", "volume", "network-interface"}
    assert all(tags["bivouac:campaign"] == "example" and "bivouac:expires" in tags for tags in kinds.values())
    assert not {"iamInstanceProfile", "instanceInitiatedShutdownBehavior", "hibernationOptions"} & set(template)
    scaling = group["scalingConfig"]
    assert (scaling["minSize"], scaling["desiredSize"]) == (0, 0) and scaling["maxSize"] >= 4
    assert len(group["subnetIds"]) == 1
    check_purchase(graph, template, group, capacity, named)


def check_purchase(
    graph: Graph, template: dict[str, Any], group: dict[str, Any], capacity: Capacity, named: str | None
) -> None:
    block = capacity is Capacity.CAPACITY_BLOCK
    kinds = {Capacity.SPOT: "SPOT", Capacity.CAPACITY_BLOCK: "CAPACITY_BLOCK"}
    assert group["capacityType"] == kinds.get(capacity, "ON_DEMAND")
    assert template.get("instanceMarketOptions") == ({"marketType": "capacity-block"} if block else None)
    asked = {
        None: None,
        ID: {"capacityReservationTarget": {"capacityReservationId": ID}},
        GROUP: {
            "capacityReservationPreference": "capacity-reservations-only",
            "capacityReservationTarget": {"capacityReservationResourceGroupArn": GROUP},
        },
        "open": {"capacityReservationPreference": "capacity-reservations-only"},
    }
    assert template.get("capacityReservationSpecification") == asked[named]
    placed = capacity in (Capacity.ON_DEMAND, Capacity.SPOT)
    assert ("placement" in template) == placed == bool(graph.of("PlacementGroup"))


@pytest.mark.parametrize(("item", "capacity", "named"), SOLD)
def test_every_type_bought_in_every_way_passes_all_rules_and_fits_ec2_and_eks(
    item: InstanceType, capacity: Capacity, named: str | None
) -> None:
    chosen = {"count": 4, "instance_type": item.name, "capacity": capacity.value, "reservation_id": named}
    money, batch = {"alarm_email": "someone@example.com"}, {"global_batch": 4 * item.accelerators * 2}
    spec = example_spec(nodes=chosen, money=money, training=batch)
    graph = campaign_graph(spec)
    assert [finding for finding in findings(graph.asked, spec) if finding.level is not Level.INFO] == []
    check_nodes(graph, item, capacity, named)
    body = parts(graph.one("LaunchTemplate", "gpu-nodes").inputs)
    config = yaml.safe_load(body["application/node.eks.aws"])["spec"]
    assert config["cluster"] == {
        "name": "bivouac-example", "apiServerEndpoint": "https://control.plane", "certificateAuthority": "Q0E=",
        "cidr": graph.one("Cluster", "cluster").inputs["kubernetesNetworkConfig"]["serviceIpv4Cidr"],
    }  # fmt: skip
    assert config["instance"]["localStorage"] == {"strategy": "RAID0"}
    assert "vm.nr_hugepages = 5128" in body["text/x-shellscript"]


@given(item=ANY_TYPE)
def test_a_layout_breaks_no_rule_of_ec2(item: InstanceType) -> None:
    layout = efa_layout(item)
    assert layout[0] == Interface(0, 0, "interface")
    shown = [{"networkCardIndex": x.card, "deviceIndex": x.device, "interfaceType": x.kind} for x in layout]
    check_interfaces(item, [{**nic, "deleteOnTermination": "true"} for nic in shown])


@given(
    item=ANY_TYPE,
    capacity=st.sampled_from(Capacity),
    named=st.sampled_from([None, ID, GROUP, "open", "cr-x", ""]),
    group=st.sampled_from([None, True, False]),
    count=st.integers(1, 80),
)
def test_a_purchase_is_refused_or_keeps_every_rule_of_placement(
    item: InstanceType, capacity: Capacity, named: str | None, group: bool | None, count: int
) -> None:
    chosen = Nodes(count=count, instance_type=item.name, capacity=capacity, reservation_id=named, placement_group=group)
    try:
        bought = purchase(chosen, item)
    except UserError as refused:
        assert refused.cure
        return
    block = capacity is Capacity.CAPACITY_BLOCK
    assert not (block and bought.placement_group) and (not block or (item.capacity_block and count <= 64))
    assert (bought.market_type == "capacity-block") == (bought.capacity_type == "CAPACITY_BLOCK") == block
    assert (bought.reservation is not None) == (capacity in (Capacity.RESERVATION, Capacity.CAPACITY_BLOCK))


@given(pages=st.integers(0, 20_000), size=st.integers(0, 12_000))
def test_user_data_never_exceeds_what_ec2_takes(pages: int, size: int) -> None:
    config = node_config("c", "https://endpoint", "A" * size, {"a": "b"}, "t=v:NoSchedule", raid="RAID0")
    try:
        text = user_data(config, *((huge_pages(pages),) if pages else ()))
    except UserError as refused:
        assert size > 10_000 and "16384" in refused.what
        return
    found = parts({"userData": text})
    assert yaml.safe_load(found["application/node.eks.aws"]) == config
    assert ("text/x-shellscript" in found) == (pages > 0)


def test_a_certificate_authority_of_the_wrong_size_is_refused() -> None:
    config = node_config("c", "https://endpoint", "A" * 20_000, {}, None, raid=None)
    with pytest.raises(UserError, match="exceeds EC2's 16384 bytes"):
        user_data(config)


def test_a_type_without_efa_gets_no_huge_pages_and_no_second_interface() -> None:
    bare = instance_type("g5.8xlarge").model_copy(update={"efa_interfaces": 0})
    assert efa_layout(bare) == (Interface(0, 0, "interface"),)
