"""Pure parts of the programs: EFA layouts, purchase options, subnets, names, policies, over the whole catalogue."""

from __future__ import annotations

import subprocess
import sys
from ipaddress import IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.errors import UserError
from infra.plan import catalogue
from infra.plan.catalogue import InstanceType, instance_type, instance_types
from infra.spec.campaign import MAX_NAME, Capacity, Nodes
from infra.spec.names import Names, buckets
from infra.stack.cluster.nodes import Interface, efa_layout, purchase
from infra.stack.cluster.workloads import wanted_charts
from infra.stack.network.addresses import second_zone, subnet_plan
from infra.stack.rules import broken, findings
from tests.example import example_spec
from tests.graph.engine import Graph, campaign_graph

SOLD = [
    (item, capacity)
    for item in instance_types()
    for capacity in Capacity
    if capacity is not Capacity.CAPACITY_BLOCK or item.capacity_block
]


def nodes(item: InstanceType, capacity: Capacity, **more: object) -> Nodes:
    needs_id = capacity in (Capacity.RESERVATION, Capacity.CAPACITY_BLOCK)
    reservation = "cr-0123456789abcdef0" if needs_id else None
    base = {"count": 4, "instance_type": item.name, "capacity": capacity, "reservation_id": reservation}
    return Nodes.model_validate(base | more)


def layout_problems(item: InstanceType, layout: tuple[Interface, ...]) -> list[str]:
    """What EC2 would refuse, or what would leave a fabric slower than the type offers; empty for a sound layout."""
    problems = []
    efas = [one for one in layout if one.kind == "efa-only"]
    if len({(one.card, one.device) for one in layout}) != len(layout):
        problems.append("two interfaces share a card and device index")
    if layout[:1] != (Interface(0, 0, "interface"),):
        problems.append("card 0, device 0 must be the plain primary interface")
    if len(efas) != item.efa_interfaces:
        problems.append(f"{len(efas)} EFA devices where {item.name} has {item.efa_interfaces}")
    if len({efa.card for efa in efas}) != len(efas):
        problems.append("more than one EFA device on a card")
    if not item.efa_on_first_card and any(efa.card == 0 for efa in efas):
        problems.append("card 0 carries no EFA")
    for card in range(item.network_cards):
        if sum(one.card == card for one in layout) > item.interfaces_per_card:
            problems.append(f"card {card} holds at most {item.interfaces_per_card} interfaces")
    if any(one.card >= item.network_cards for one in layout):
        problems.append(f"{item.name} has only {item.network_cards} cards")
    return problems


@pytest.mark.parametrize("item", instance_types(), ids=lambda item: item.name)
def test_every_type_of_the_catalogue_has_a_layout_that_ec2_accepts(item: InstanceType) -> None:
    assert not layout_problems(item, efa_layout(item))


@given(cards=st.integers(1, 64), first=st.booleans(), per_card=st.integers(2, 15))
def test_any_shape_of_instance_gets_one_efa_per_card_that_can_carry_it(cards: int, first: bool, per_card: int) -> None:
    change = {
        "network_cards": cards,
        "interfaces_per_card": per_card,
        "efa_on_first_card": first,
        "efa_interfaces": cards if first else cards - 1,
    }
    item = instance_type("p5.48xlarge").model_copy(update=change)
    layout = efa_layout(item)
    assert not layout_problems(item, layout)
    assert len(layout) == 1 + item.efa_interfaces


def test_the_card_that_carries_no_efa_gets_none() -> None:
    layout = efa_layout(instance_type("p6-b300.48xlarge"))
    assert [one for one in layout if one.card == 0] == [Interface(0, 0, "interface")]
    assert len(layout) == 17


def test_a_bad_layout_is_told_in_full() -> None:
    item = instance_type("p6-b300.48xlarge")
    problems = layout_problems(item, (Interface(0, 0, "efa-only"), Interface(0, 0, "efa-only")))
    assert len(problems) >= 4


@pytest.mark.parametrize(("item", "capacity"), SOLD, ids=lambda part: getattr(part, "name", part))
def test_every_type_can_be_bought_in_every_way_that_aws_sells_it(item: InstanceType, capacity: Capacity) -> None:
    bought = purchase(nodes(item, capacity), item)
    assert bought.capacity_type == {"spot": "SPOT", "capacity-block": "CAPACITY_BLOCK"}.get(capacity, "ON_DEMAND")
    assert bought.placement_group == (capacity in (Capacity.ON_DEMAND, Capacity.SPOT))


@pytest.mark.parametrize("capacity", list(Capacity))
def test_the_launch_template_says_how_the_node_is_bought(capacity: Capacity) -> None:
    chosen = nodes(instance_type("p5en.48xlarge"), capacity).model_dump(mode="json")
    graph = campaign_graph(example_spec(nodes=chosen))
    template = graph.one("LaunchTemplate", "gpu-nodes").inputs
    group = graph.one("NodeGroup", "gpu-nodes").inputs
    block = capacity is Capacity.CAPACITY_BLOCK
    assert (group["capacityType"] == "CAPACITY_BLOCK") == block
    assert (template.get("instanceMarketOptions") == {"marketType": "capacity-block"}) == block
    assert ("capacityReservationSpecification" in template) == (chosen["reservation_id"] is not None)
    assert ("placement" in template) == (capacity in (Capacity.ON_DEMAND, Capacity.SPOT))
    assert sum(interface["interfaceType"] == "efa-only" for interface in template["networkInterfaces"]) == 16


def test_a_group_that_would_go_on_to_buy_on_demand_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    group = "arn:aws:resource-groups:us-east-1:123456789012:group/training"
    chosen = {"count": 4, "instance_type": "p5.48xlarge", "capacity": "reservation", "reservation_id": group}
    spec = example_spec(nodes=chosen)
    graph = campaign_graph(spec).asked
    assert not broken(findings(graph, spec))
    (template,) = [one for one in graph.of("LaunchTemplate") if one.name == "gpu-nodes"]
    specification = template.inputs["capacityReservationSpecification"]
    monkeypatch.delitem(specification, "capacityReservationPreference")
    assert any("on demand once it is full" in finding.seen for finding in findings(graph, spec))


def test_what_aws_does_not_sell_is_refused_with_a_cure() -> None:
    p5, g5 = instance_type("p5.48xlarge"), instance_type("g5.48xlarge")
    block = nodes(p5, Capacity.CAPACITY_BLOCK)
    refused = (
        (nodes(g5, Capacity.CAPACITY_BLOCK), g5, "sells no capacity blocks"),
        (block.model_copy(update={"reservation_id": None}), p5, "needs the reservation"),
        (block.model_copy(update={"placement_group": True}), p5, "takes no placement group"),
        (nodes(p5, Capacity.ON_DEMAND, reservation_id="cr-1"), p5, "uses no reservation"),
    )
    for wanted, item, message in refused:
        with pytest.raises(UserError, match=message) as caught:
            purchase(wanted, item)
        assert caught.value.cure


def test_one_node_needs_no_placement_group() -> None:
    p5 = instance_type("p5.48xlarge")
    assert not purchase(nodes(p5, Capacity.ON_DEMAND, count=1), p5).placement_group


@given(prefix=st.integers(16, 20), second=st.integers(0, 255))
def test_subnets_lie_in_the_vpc_and_do_not_overlap(prefix: int, second: int) -> None:
    vpc = next(IPv4Network(f"10.{second}.0.0/16").subnets(new_prefix=prefix))
    plan = subnet_plan(str(vpc))
    parts = [IPv4Network(text) for text in (plan.public, *plan.control_plane, plan.gpu)]
    assert all(part.subnet_of(vpc) and part.prefixlen <= 28 for part in parts)
    assert not any(a.overlaps(b) for i, a in enumerate(parts) for b in parts[:i])


@pytest.mark.parametrize("cidr", ["10.42.0.1/16", "10.0.0.0/8", "10.0.0.0/24", "172.20.0.0/16", "nonsense"])
def test_an_unusable_range_is_refused(cidr: str) -> None:
    with pytest.raises(UserError, match=r"network\.cidr"):
        subnet_plan(cidr)


def test_the_second_zone_is_another_one() -> None:
    for letter in "abcdef":
        spec = example_spec(zone=f"us-east-1{letter}")
        assert second_zone(spec) != spec.zone
    assert second_zone(example_spec(second_zone="us-east-1d")) == "us-east-1d"


def subnets_of(graph: Graph) -> dict[str, str]:
    return {one.name: str(one.inputs["availabilityZone"]) for one in graph.of("Subnet")}


def test_nodes_may_stand_where_eks_puts_no_control_plane() -> None:
    graph = campaign_graph(example_spec(zone="us-east-1e"), control_plane_zones="us-east-1a,us-east-1b")
    assert subnets_of(graph) == {
        "control-plane-a": "us-east-1a", "control-plane-b": "us-east-1b", "gpu": "us-east-1e", "public": "us-east-1e"
    }  # fmt: skip
    assert not broken(findings(graph.asked, example_spec(zone="us-east-1e")))


def test_a_campaign_whose_zones_no_driver_chose_keeps_those_it_has() -> None:
    before, after = (
        campaign_graph(example_spec(), **more) for more in ({}, {"control_plane_zones": "us-east-1a,us-east-1b"})
    )
    assert subnets_of(before) == subnets_of(after)


def test_the_longest_campaign_name_fits_every_aws_name() -> None:
    names = Names("a" * MAX_NAME)
    assert all(len(role) <= 64 for role in names.roles)
    assert len(names.schedule) <= 64 and len(names.gpu_group) <= 63 and len(names.cluster) <= 100
    longest = buckets("1" * 12, "ap-southeast-1")
    assert all(len(name) <= 63 for name in (longest.state, longest.data, longest.archive))
    assert Names(example_spec()) == Names("example")


def test_charts_follow_the_hardware() -> None:
    no_efa = instance_type("p5.48xlarge").model_copy(update={"efa_interfaces": 0})
    assert [chart.name for chart in wanted_charts(no_efa)] == [
        "jobset", "nvidia-device-plugin", "dcgm-exporter", "kube-prometheus-stack",
    ]  # fmt: skip
    assert len(wanted_charts(instance_type("p5.48xlarge"))) == 5


def test_an_unknown_name_lists_its_neighbours() -> None:
    with pytest.raises(UserError, match=r"near names: .*p5\.48xlarge"):
        instance_type("p5.48xlarg")
    with pytest.raises(UserError, match=r"p6-b200\.48xlarge"):
        catalogue.expectation("p6-b200.48xlarg")


def test_every_type_has_an_expectation_and_measured_ones_a_floor() -> None:
    for item in instance_types():
        wanted = catalogue.expectation(item.name)
        assert wanted.accelerators == item.accelerators and 0 < wanted.local_disk_gib < item.nvme_total_gib
    assert catalogue.expectation("p5.48xlarge").bus_bandwidth_gb_s == pytest.approx(0.7 * 437)
    assert catalogue.expectation("this-machine").accelerators == 0


def test_what_the_driver_imports_does_not_load_pulumi() -> None:
    code = (
        "import sys, infra.plan.catalogue, infra.spec.names, infra.stack.outputs, infra.stack.settings; "
        "sys.exit('pulumi' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
