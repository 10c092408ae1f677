"""The rules over the resource graph: each broken graph is told; see test_fleet for those that pass."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from infra.plan.catalogue import instance_types
from infra.plan.checks import RULES as SPEC_RULES
from infra.plan.checks.finding import Level, rule_name
from infra.spec.campaign import Capacity
from infra.stack.rules import RULES, Graph, GraphResource, broken, findings
from infra.stack.rules.graph import UNKNOWN
from tests.example import example_spec
from tests.graph.engine import DRIVER, KEY, campaign_graph
from tests.graph.engine import Graph as Built
from tests.graph.test_fleet import GROUP, OPTIONS
from tests.graph.test_layouts import nodes

OPEN = {"api_allowed_cidrs": ["0.0.0.0/0"]}
SPEC = example_spec(money={"alarm_email": "someone@example.com"}, network=OPEN)


@pytest.fixture(scope="module")
def whole() -> Graph:
    return campaign_graph(SPEC).asked


@pytest.mark.parametrize("named", ["cr-0fedcba9876543210", GROUP, "open"])
def test_nodes_that_start_in_another_reservation_are_told(named: str) -> None:
    ways = [named for capacity, named in OPTIONS if capacity is Capacity.RESERVATION]
    for way in ways:
        chosen = {"count": 4, "instance_type": "p5.48xlarge", "capacity": "reservation", "reservation_id": way}
        wanted = example_spec(nodes=chosen | {"reservation_id": named})
        found = findings(campaign_graph(example_spec(nodes=chosen)).asked, wanted)
        assert broken(found) == (way != named), (way, named, found)


PRIVATE = {"network": {"api_endpoint": "private", "driver_vpc": DRIVER}}
EVERY: dict[str, dict[str, Any]] = {
    "way out by NAT": {"network": {"egress": "nat"}},
    "no way out": {"network": {"egress": "endpoints"}},
    "private endpoint": PRIVATE,
    "the whole internet": {"network": OPEN},
    "Lustre over EFA": {"storage": {"shared": {"efa": True, "capacity_gib": 19200, "metadata_iops": "automatic"}}},
    "scratch file system": {
        "storage": {"shared": {"deployment": "SCRATCH_2", "throughput_mbs_per_tib": None, "compression": "LZ4"}}
    },
    "disks in pairs": {"storage": {"local": {"layout": "RAID10"}}},
    "a key that is there": {"encryption": {"customer_key": True, "key_arn": KEY}},
    "EFA by DRA": {"addons": {"efa": "dra"}},
    "every add-on": {"addons": {"prometheus": True, "kueue": True}},
    "freeze": {"money": {"alarm_topic_arn": "arn:aws:sns:us-east-1:123456789012:pager", "freeze_roles": ["ci"]}},
}
EVERY["all together"] = {
    key: {name: value for one in EVERY.values() for name, value in one.get(key, {}).items()}
    for key in ("network", "encryption", "addons", "money")
} | {"storage": EVERY["Lustre over EFA"]["storage"]}


@pytest.mark.parametrize("option", EVERY)
def test_every_option_of_the_ground_passes_all_rules(option: str) -> None:
    spec = example_spec(**EVERY[option])
    key = {"key_arn": KEY} if spec.encryption.customer_key else {}
    found = findings(campaign_graph(spec, **key).asked, spec)
    assert [one for one in found if one.level is not Level.INFO] == []


def test_the_foundation_passes_all_rules(foundation: Built) -> None:
    assert findings(foundation.asked, SPEC) == ()


FEE = {"nodes": {"instance_type": "p5en.48xlarge", "capacity": "capacity-block", "block_fee_usd": "8000",
                 "reservation_id": "cr-0123456789abcdef0"}}  # fmt: skip


def test_a_budget_that_counts_a_blocks_fee_which_no_tag_carries_is_told() -> None:
    spec = example_spec(**FEE)
    graph = campaign_graph(spec).asked
    assert not [finding for finding in findings(graph, spec) if finding.rule == "campaign-budget"]
    for limit, word in (("10000", "more than the campaign"), ("2000.01", "more than the campaign"), ("0", "nothing")):
        told = findings(damaged(graph, "Budget budget", setting(limitAmount=limit)), spec)
        assert [word in one.message for one in told if one.rule == "campaign-budget"] == [True], limit


Change = Callable[[dict[str, Any]], None]


def damaged(graph: Graph, title: str, change: Change | None, **fields: Any) -> Graph:
    """The same graph with one resource changed, or without it."""
    other, hit = Graph(), 0
    for one in graph:
        if str(one) == title and not one.type.startswith("bivouac:"):
            hit += 1
            if change is None and not fields:
                continue
            inputs = json.loads(json.dumps(dict(one.inputs)))
            if change is not None:
                change(inputs)
            one = replace(one, inputs=inputs, **fields)
        other.add(one)
    assert hit == 1, f"{hit} resources {title}"
    return other


def setting(**changes: Any) -> Change:
    return lambda inputs: inputs.update(changes)


def at(path: str, value: Any) -> Change:
    def change(inputs: dict[str, Any]) -> None:
        *way, last = (int(part) if part.isdigit() else part for part in path.split("."))
        place: Any = inputs
        for part in way:
            place = place[part]
        place[last] = value

    return change


def gone(path: str) -> Change:
    def change(inputs: dict[str, Any]) -> None:
        *way, last = (int(part) if part.isdigit() else part for part in path.split("."))
        place: Any = inputs
        for part in way:
            place = place[part]
        del place[last]

    return change


def may(action: str, resource: str) -> Change:
    return setting(policy=json.dumps({"Statement": [{"Effect": "Allow", "Action": action, "Resource": resource}]}))


GPU = "LaunchTemplate gpu-nodes"
BROKEN: list[tuple[str, str, Change | None, str]] = [
    ("no-public-ingress", "SecurityGroupIngressRule nodes-self-in", setting(cidrIpv4="0.0.0.0/0"), "outside the VPC"),
    ("no-public-ingress", "SecurityGroupIngressRule lustre-nodes-in-988", setting(cidrIpv6="::/0"), "outside the VPC"),
    ("no-public-ingress", "Subnet gpu", setting(mapPublicIpOnLaunch=True), "public addresses"),
    ("no-public-ingress", GPU, at("networkInterfaces.0.associatePublicIpAddress", "true"), "public addresses"),
    ("node-to-node-traffic", "SecurityGroupEgressRule nodes-self-out", None, "names itself both ways"),
    ("node-to-node-traffic", "SecurityGroupIngressRule nodes-self-in", setting(ipProtocol="tcp"), "both ways"),
    ("node-to-node-traffic", GPU, at("networkInterfaces.7.securityGroups", ["sg-other"]), "different groups"),
    ("node-to-node-traffic", GPU, at("networkInterfaces.7.securityGroups", []), "different groups"),
    ("efa-devices", GPU, gone("networkInterfaces.5"), "does not attach all"),
    ("efa-devices", GPU, at("networkInterfaces.5.networkCardIndex", 7), "several EFA devices on one card"),
    ("efa-devices", GPU, at("networkInterfaces.0.interfaceType", "efa-only"), "no primary interface"),
    ("one-zone", "Subnet gpu", setting(availabilityZone="us-east-1f"), "campaign's zone"),
    ("purchase", GPU, setting(instanceMarketOptions={"marketType": "capacity-block"}), "not bought as the spec"),
    ("metadata-service", GPU, at("metadataOptions.httpTokens", "optional"), "version 1"),
    ("metadata-service", "LaunchTemplate system-nodes", at("metadataOptions.httpPutResponseHopLimit", 2),
     "node's role"),
    ("encrypted-volumes", GPU, at("blockDeviceMappings.0.ebs.encrypted", "false"), "not encrypted"),
    ("encrypted-volumes", GPU, setting(blockDeviceMappings=[]), "image's settings"),
    ("no-initial-nodes", "NodeGroup gpu-nodes", at("scalingConfig.desiredSize", 4), "at once"),
    ("deadline-guard", "Schedule deadline", None, "no schedule stops it"),
    ("deadline-guard", "Schedule deadline", at("target.input", '{"NodegroupName": "other"}'), "no schedule stops it"),
    ("campaign-budget", "Budget budget", None, "no budget watches"),
    ("campaign-budget", "Budget budget", setting(costFilters=[]), "something else"),
    ("campaign-budget", "Budget budget", setting(limitAmount="1000000"), "more than the campaign"),
    ("one-efa-plugin", "Release nvidia-device-plugin", at("values.mofedEnabled", True), "behind the EFA"),
    ("one-efa-plugin", "Release nvidia-device-plugin", gone("values.mofedEnabled"), "behind the EFA"),
    ("no-eks-repair", "NodeGroup gpu-nodes", at("nodeRepairConfig.enabled", True), "by EKS too"),
    ("no-eks-repair", "NodeGroup gpu-nodes", gone("nodeRepairConfig"), "by EKS too"),
    ("resource-tags", GPU, gone("tagSpecifications.1"), "does not mark"),
    ("resource-tags", "Vpc vpc", at("tags", {"bivouac:campaign": "other"}), "another's tag"),
    ("no-unmanaged-resources", "PersistentVolumeClaim shared", gone("spec.volumeName"), "volume that the stack"),
    ("no-wildcard-rights", "RolePolicy steward", may("ec2:*", "arn:aws:ec2:us-east-1:123456789012:instance/i-1"),
     "groups of actions"),
    ("no-wildcard-rights", "RolePolicy steward", may("ec2:*Instances", "arn:aws:ec2:::x"), "groups of actions"),
    ("no-wildcard-rights", "RolePolicy guard", may("ec2:Terminate?nstances", "arn:aws:ec2:::x"), "groups of actions"),
    ("no-wildcard-rights", "RolePolicy steward", may("ec2:TerminateInstances", "*"), "for every resource"),
    ("no-wildcard-rights", "RolePolicy archive", may("s3:GetObject", "arn:aws:s3:::*"), "for every resource"),
    ("no-wildcard-rights", "RolePolicy archive", setting(policy=json.dumps(
        {"Statement": {"Effect": "Allow", "NotAction": "iam:CreateRole", "Resource": "arn:aws:s3:::x"}})), "all but"),
    ("no-wildcard-rights", "RolePolicyAttachment node-AmazonEKSWorkerNodePolicy",
     setting(policyArn="arn:aws:iam::aws:policy/AdministratorAccess"), "not this role's"),
    ("no-wildcard-rights", "RolePolicyAttachment node-AmazonEKSWorkerNodePolicy",
     setting(policyArn="arn:aws:iam::aws:policy/AmazonEKS_CNI_Policy"), "not this role's"),
    ("no-wildcard-rights", "Role guard", setting(managedPolicyArns=["arn:aws:iam::aws:policy/PowerUserAccess"]),
     "of its own"),
    ("no-wildcard-rights", "Role guard", setting(assumeRolePolicy=json.dumps(
        {"Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"AWS": "*"}}]})), "lent to"),
    ("cluster-access", "Cluster cluster", at("accessConfig.authenticationMode", "API_AND_CONFIG_MAP"),
     "its creator access"),
    ("cluster-access", "Cluster cluster", at("upgradePolicy.supportType", "EXTENDED"), "extended support"),
    ("pod-admission", "Namespace campaign", at("metadata.labels", {}), "privileged pods"),
    ("pod-admission", "ValidatingAdmissionPolicy steward", None, "bivouac-example-steward"),
    ("pod-admission", "ValidatingAdmissionPolicy pods", at("spec.failurePolicy", "Ignore"), "bivouac-example-pods"),
    ("pod-admission", "ValidatingAdmissionPolicyBinding pods", at("spec.validationActions", ["Audit"]),
     "bivouac-example-pods"),
    ("known-host-paths", "PersistentVolume local", at("spec.hostPath.path", "/"), "folder of the nodes"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "title", "change", "word"), BROKEN)
def test_a_broken_graph_is_told_by_its_rule(
    whole: Graph, rule: str, title: str, change: Change | None, word: str
) -> None:
    told = [finding for finding in findings(damaged(whole, title, change), SPEC) if finding.level is Level.ERROR]
    assert rule in {one.rule for one in told}, told
    assert any(word in one.message and one.cure and one.seen for one in told if one.rule == rule), told


def test_edges_that_are_missing_are_told(whole: Graph) -> None:
    alone: dict[str, Any] = {"depends": frozenset(), "refers": {}}
    rules = {finding.rule for finding in findings(damaged(whole, "NodeGroup gpu-nodes", None, **alone), SPEC)}
    assert {"cni-deletion-order", "deadline-guard", "one-zone"} <= rules
    free = damaged(whole, "ServiceAccount trainer", None, deleted_with="")
    assert "no-unmanaged-resources" in {finding.rule for finding in findings(free, SPEC)}
    strange = damaged(whole, "Vpc vpc", None, provider="urn:pulumi:x::y::pulumi:providers:aws::default::1")
    assert "resource-tags" in {finding.rule for finding in findings(strange, SPEC)}


def test_a_card_that_carries_no_efa_and_a_block_in_a_placement_group_are_told() -> None:
    b300 = example_spec(nodes={"instance_type": "p6-b300.48xlarge"})
    moved = damaged(campaign_graph(b300).asked, GPU, at("networkInterfaces.1.networkCardIndex", 0))
    assert any("card 0" in finding.message for finding in findings(moved, b300))
    item = next(one for one in instance_types() if one.capacity_block)
    block = example_spec(nodes=nodes(item, Capacity.CAPACITY_BLOCK).model_dump(mode="json"))
    placed = damaged(campaign_graph(block).asked, GPU, setting(placement={"groupName": "x"}))
    assert any("capacity block" in finding.message for finding in findings(placed, block))


def test_rights_that_come_by_another_way_are_told(whole: Graph) -> None:
    role = next(one for one in whole if str(one) == "RolePolicy steward")
    for kind in ("PolicyAttachment", "UserPolicy", "AccessKey"):
        other = Graph()
        for one in whole:
            other.add(one)
        other.add(replace(role, urn=f"{role.urn}-2", type=f"aws:iam/x:{kind}", name="aside"))
        told = [finding for finding in findings(other, SPEC) if finding.rule == "no-wildcard-rights"]
        assert [(one.level, one.resource) for one in told] == [(Level.ERROR, f"{kind} aside")]


def test_two_that_hand_out_efa_devices_are_told(whole: Graph) -> None:
    other = Graph()
    for one in whole:
        other.add(one)
        if str(one) == "Release aws-efa-k8s-device-plugin":
            other.add(replace(one, urn=f"{one.urn}-2", name="aws-dranet"))
    told = [finding for finding in findings(other, SPEC) if finding.rule == "one-efa-plugin"]
    assert [(one.level, one.seen) for one in told] == [(Level.ERROR, "aws-dranet, aws-efa-k8s-device-plugin")]


DOOR = "SecurityGroupIngressRule driver-api"


@pytest.mark.parametrize(
    "change",
    [
        setting(fromPort=22),
        setting(ipProtocol="-1"),
        setting(cidrIpv4="10.0.0.0/8"),
        setting(cidrIpv4="0.0.0.0/0"),
    ],
)
def test_the_drivers_door_is_no_wider_than_its_own_addresses_and_https(change: Change) -> None:
    spec = example_spec(**PRIVATE)
    graph = campaign_graph(spec).asked
    assert not broken(findings(graph, spec))
    told = [finding for finding in findings(damaged(graph, DOOR, change), spec) if finding.level is Level.ERROR]
    assert [(one.rule, one.resource) for one in told] == [("no-public-ingress", DOOR)]


def test_the_driver_reaches_the_clusters_api_and_not_the_nodes() -> None:
    spec = example_spec(**PRIVATE)
    graph = campaign_graph(spec).asked
    nodes = next(one for one in graph if str(one) == "SecurityGroupIngressRule nodes-self-in")
    moved = damaged(graph, DOOR, None, refers={"securityGroupId": nodes.refers["securityGroupId"]})
    assert "no-public-ingress" in {finding.rule for finding in findings(moved, spec) if finding.level is Level.ERROR}


def test_an_api_server_that_the_internet_reaches_is_mentioned_unless_ranges_are_named(whole: Graph) -> None:
    def mentioned(graph: Graph) -> list[Level]:
        return [finding.level for finding in findings(graph, SPEC) if finding.rule == "public-control-plane"]

    assert mentioned(whole) == [Level.INFO]
    narrow = at("vpcConfig.publicAccessCidrs", ["198.51.100.0/24"])
    assert mentioned(damaged(whole, "Cluster cluster", narrow)) == []
    assert mentioned(damaged(whole, "Cluster cluster", at("vpcConfig.endpointPublicAccess", False))) == []


SEEN_ELSEWHERE = {"private-buckets", "cni-deletion-order", "public-control-plane", "confined-pods"}
"""Rules whose failing has a test of its own, in this file or in test_pods.py."""


def test_no_rule_is_without_a_graph_that_it_refuses() -> None:
    assert {rule_name(rule) for rule in RULES} == {row[0] for row in BROKEN} | SEEN_ELSEWHERE


def test_an_open_bucket_is_told_by_name(foundation: Built) -> None:
    for kind, word in (
        ("BucketPublicAccessBlock", "opened to the world"),
        ("BucketVersioning", "keeps no versions"),
        ("BucketPolicy", "without TLS"),
        ("BucketServerSideEncryptionConfiguration", "not encrypted"),
        ("BucketLifecycleConfiguration", "broken uploads"),
    ):
        found = findings(damaged(foundation.asked, f"{kind} archive", None), SPEC)
        assert [word in one.message and "bivouac-archive" in one.message for one in found] == [True], (kind, found)
    assert broken(findings(damaged(foundation.asked, "Bucket data", setting(forceDestroy=True)), SPEC))


def test_values_that_only_aws_will_give_are_judged_by_what_they_come_from(whole: Graph) -> None:
    """As a preview of a stack that does not stand yet sees them."""

    def veiled(one: GraphResource) -> GraphResource:
        def veil(value: Any) -> Any:
            if isinstance(value, list):
                return [veil(part) for part in value]
            if isinstance(value, dict):
                return {key: veil(part) for key, part in value.items()}
            given = isinstance(value, str) and (value.split("-")[0] in KINDS or value.startswith("sg-"))
            return UNKNOWN if given else value

        return replace(one, inputs=veil(dict(one.inputs)))

    blind = Graph()
    for one in whole:
        blind.add(veiled(one))
    assert any(one.inputs.get("securityGroupId") == UNKNOWN for one in blind)
    assert not broken(findings(blind, SPEC))
    without = Graph()
    for one in blind:
        if str(one) != "SecurityGroupIngressRule nodes-self-in":
            without.add(one)
    assert broken(findings(without, SPEC))


KINDS = {"SecurityGroup", "Subnet", "Vpc", "RouteTable", "LustreFileSystem", "NatGateway", "Eip", "InternetGateway"}


def test_every_rule_says_what_it_wants() -> None:
    assert all(rule.__doc__ and len(rule.__doc__) > 40 for rule in RULES)
    names = [rule_name(rule) for rule in RULES] + [rule_name(rule) for rule in SPEC_RULES]
    assert len(set(names)) == len(names) and max(map(len, names)) <= 24
