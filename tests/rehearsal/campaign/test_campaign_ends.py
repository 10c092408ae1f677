"""A campaign that meets trouble, from provision to its end: the real engine, plugins and program, fake machines."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from lightkube.codecs import from_dict
from lightkube.models.meta_v1 import ObjectMeta

from infra.campaign import billing, capacity, launch, preflight, proving, provision, teardown
from infra.cluster import kubernetes
from infra.cluster.kubernetes import JobSet, from_outside
from infra.cluster.nodes import GpuNodes
from infra.errors import PermanentError, UserError
from infra.inventory import certify
from infra.record.events import Stage
from infra.record.payloads import payload_of
from infra.record.payloads.outputs import BakeOutput
from infra.record.payloads.stages import StageStarted
from infra.session.context import Context
from tests.worlds.campaign_site import CampaignSite, camp

pytestmark = pytest.mark.nightly

OWN = {"name": "cpus", "ok": True, "seen": "8", "wanted": ">= 1"}
FABRIC = {"name": "fabric", "ok": True, "seen": "met", "wanted": "an all-reduce over all nodes"}


@pytest.fixture(scope="module")
def camped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CampaignSite]:
    with camp(tmp_path_factory.mktemp("camp"), recovery={"capacity_timeout": "8s"}) as one:
        yield one


@pytest.fixture(scope="module")
def context(camped: CampaignSite) -> Iterator[Context]:
    """A campaign whose provision failed once by an add-on and was run again."""
    camped.ask("troubles", add=[{"kind": "add-on", "name": "coredns", "phase": "create", "outcome": "fail"}])
    with camped.opened() as one:
        one.store.append(StageStarted(stage=Stage.BAKE))
        with pytest.raises(PermanentError) as failed:
            provision.run(one)
        assert "Addon coredns" in str(failed.value) and "an injected fault" in str(failed.value)
        eks, key = camped.client("eks"), {"clusterName": camped.names.cluster, "addonName": "coredns"}
        assert eks.describe_addon(**key)["addon"]["status"] == "CREATE_FAILED"
        one.outputs[Stage.PROVISION] = provision.run(one)
        assert eks.describe_addon(**key)["addon"]["status"] == "ACTIVE", "made anew, not taken for good"
        one.outputs[Stage.BAKE] = BakeOutput(image="base@sha256:0", code="c", manifest="none")
        yield one


@pytest.fixture(autouse=True)
def _no_kubelet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pod of the system node is run here."""
    monkeypatch.setattr(preflight.basics, "prove", lambda context, client: None)


@pytest.fixture
def nodes(context: Context) -> GpuNodes:
    client = from_outside(context.account, context.names.cluster)
    return GpuNodes(context.account, client, context.names, context.guard)


def test_partial_capacity_is_given_back_with_its_price_and_awss_words(
    camped: CampaignSite, context: Context, nodes: GpuNodes
) -> None:
    camped.ask("capacity", add=[{"instance_type": "p5*", "places": 1}])
    nodes.set_desired(2)
    with pytest.raises(PermanentError) as refused:
        capacity.wait_for_nodes(context, nodes)
    text = str(refused.value)
    assert "1 of 2 within" in text and "InsufficientInstanceCapacity" in text
    assert "1 instances given back, about 0.1" in text and "`bivouac down drilled`" in text
    assert nodes.desired() == 0 and not any(one.bills for one in nodes.launched())
    camped.ask("capacity", clear=True)
    assert "GPU nodes" not in billing.bill(context).sentence("drilled")


def test_a_node_that_boots_and_does_not_join_is_named_with_the_last_words_on_its_console(
    camped: CampaignSite, context: Context, nodes: GpuNodes
) -> None:
    camped.ask("troubles", add=[{"kind": "node", "name": "*-gpu", "phase": "create"}])
    nodes.set_desired(2)
    with pytest.raises(PermanentError) as refused:
        capacity.wait_for_nodes(context, nodes)
    camped.ask("troubles", clear=True)
    text = str(refused.value)
    assert "without joining; console: nodeadm: run | kubelet: cannot join the cluster" in text and "i-" in text
    assert "InsufficientInstanceCapacity" not in text, "an old refusal is no reason"
    assert "NodeConfig" in (refused.value.cure or "") and nodes.desired() == 0


def gang(camped: CampaignSite, report: Callable[[str], list[dict[str, Any]]]) -> list[str]:
    """A JobSet controller: each new JobSet's pods have ended at once with these reports. Names of the JobSets."""
    api, seen = camped.plane().api, list[str]()

    def created(document: dict[str, Any]) -> None:
        if document.get("kind") != "JobSet":
            return
        seen.append(document["metadata"]["name"])
        for number, node in enumerate(n for n in api.nodes() if n["metadata"]["labels"]["bivouac.dev/pool"] == "gpu"):
            host, name = node["metadata"]["name"], f"{seen[-1]}-gang-0-{number}"
            message = json.dumps({"node": host, "probes": report(host), "bus_bandwidth_gb_s": 1.0})
            labels = {**document["metadata"]["labels"], proving.JOBSET_LABEL: seen[-1]}
            ended = {"name": "trainer", "image": "", "imageID": "", "ready": False, "restartCount": 0,
                     "state": {"terminated": {"exitCode": 0, "message": message}}}  # fmt: skip
            api.objects["v1", "pods", "campaign", name] = {
                "metadata": {"name": name, "namespace": "campaign", "labels": labels},
                "spec": {"nodeName": host, "containers": []},
                "status": {"phase": "Succeeded", "containerStatuses": [ended]},
            }

    api.created = created
    return seen


def quarantined(camped: CampaignSite) -> list[str]:
    """Names of nodes, as the API server was told."""
    return [node for node, change in camped.plane().api.patches.items() if change["spec"].get("unschedulable")]


def gpu_instances(camped: CampaignSite) -> set[str]:
    """Those that bill; what shuts down may be seen for a while."""
    states = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    pages = camped.client("ec2").get_paginator("describe_instances").paginate(Filters=states)
    live = {instance["InstanceId"] for page in pages for held in page["Reservations"] for instance in held["Instances"]}
    return {m.settings["instance_id"] for m in camped.site.alive() if m.settings["capacity"]} & live


def test_only_a_node_that_fails_by_itself_is_replaced_though_its_peers_fail_with_it(
    camped: CampaignSite, context: Context, nodes: GpuNodes
) -> None:
    bad: list[str] = []

    def report(host: str) -> list[dict[str, Any]]:
        bad.extend([] if bad else [host])
        down = host in bad
        apart = any(one.name in bad for one in nodes.facts())
        return [{**OWN, "ok": not down}, {**FABRIC, "ok": not apart}]

    ran = gang(camped, report)
    verdicts = preflight.run(context).verdicts
    assert len(ran) == 2 and len(set(ran)) == 2, "each gang has a name of its own"
    assert bad[0] not in [v["node"] for v in verdicts] and len(verdicts) == 2
    assert quarantined(camped) == [bad[0]]
    recorded = [e.data for e in context.store.events() if e.kind == "node.verdict"]
    first = {v["node"]: v["fit"] for v in recorded[:2]}
    assert first[bad[0]] is False and list(first.values()).count(True) == 1
    kept = next(node for node, fit in first.items() if fit)
    assert kept in [v["node"] for v in verdicts], "the peer of the unfit node stays"


def test_a_launch_without_result_gives_the_nodes_back_and_the_next_run_proves_new_ones(
    camped: CampaignSite, context: Context, nodes: GpuNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = from_outside(context.account, context.names.cluster)
    labels = {"bivouac.dev/campaign": "drilled", "bivouac.dev/attempt": "1"}
    client.create(JobSet(metadata=ObjectMeta(name="waits", namespace="campaign", labels=labels)))
    template = {"metadata": {"labels": {"app": "steward"}}, "spec": {"containers": []}}
    spec = {"selector": {"matchLabels": {"app": "steward"}}, "template": template}
    client.create(
        from_dict({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "steward"}, "spec": spec})
    )

    def workloads() -> set[str]:
        return {key[3] for key in camped.plane().api.objects if key[1] in ("deployments", "jobsets")} & {
            "waits",
            "steward",
        }

    assert workloads() == {"waits", "steward"}
    for kind in ("stage.started", "stage.finished"):
        context.store.append(payload_of(kind, dict(stage=Stage.PREFLIGHT)))
    nodes.set_desired(2)
    monkeypatch.setattr(launch, "_STEWARD_S", 1.0 - context.spec.recovery.startup_timeout.total_seconds())
    with pytest.raises(PermanentError, match="no attempt began to train; the GPU nodes were given back") as refused:
        launch._first_attempt(context, client)
    assert "0 of 1 steward pods ready" in str(refused.value) and nodes.desired() == 0
    assert not workloads(), "neither waits for nodes that were given back"
    assert Stage.PREFLIGHT not in context.state().finished_stages, "new nodes have proven nothing yet"


def test_a_launch_in_a_silent_cluster_gives_the_nodes_back_all_the_same(
    camped: CampaignSite, context: Context, nodes: GpuNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = from_outside(context.account, context.names.cluster)
    nodes.set_desired(2)
    monkeypatch.setattr(launch, "_STEWARD_S", 1.0 - context.spec.recovery.startup_timeout.total_seconds())
    monkeypatch.setattr(kubernetes, "PATIENCE_S", 0.5)
    camped.plane().api.dropping = 1000
    try:
        with pytest.raises(PermanentError, match="the GPU nodes were given back") as refused:
            launch._first_attempt(context, client)
    finally:
        camped.plane().api.dropping = 0
    assert "neither seen nor ended" in str(refused.value) and nodes.desired() == 0


def test_a_fabric_that_fails_between_fit_nodes_replaces_nobody_and_ends_in_an_error(
    camped: CampaignSite, context: Context
) -> None:
    before, marked = gpu_instances(camped), quarantined(camped)
    gang(camped, lambda host: [OWN, {**FABRIC, "ok": False, "seen": "no route"}])
    with pytest.raises(PermanentError, match="fabric failed twice, though every node is fit alone") as refused:
        preflight.run(context)
    assert (
        quarantined(camped) == marked
        and "no route" in str(refused.value)
        and "2 instances given back" in str(refused.value)
    )
    launched = {m.settings["instance_id"] for m in camped.site.machines if m.settings["capacity"]}
    assert before <= launched and not gpu_instances(camped), "given back, none replaced"


def test_a_slow_file_system_replaces_nobody_though_every_node_sees_another_figure(
    camped: CampaignSite, context: Context
) -> None:
    def slow(host: str) -> list[dict[str, Any]]:
        seen = f"write {sum(host.encode())} MB/s"
        return [OWN, FABRIC, {"name": "shared_throughput", "ok": False, "seen": seen, "wanted": ">= 2344 MB/s"}]

    ran, before = gang(camped, slow), quarantined(camped)
    with pytest.raises(PermanentError, match="file system was too slow twice, though every node is fit") as refused:
        preflight.run(context)
    assert len(ran) == 2 and "FSx" in (refused.value.cure or "") and "2344" in str(refused.value)
    assert quarantined(camped) == before and not gpu_instances(camped)


def test_what_every_node_shows_alike_replaces_nobody_and_names_the_cure(camped: CampaignSite, context: Context) -> None:
    cure = "images/versions.yaml says 580; bake again, or correct the file"
    old = {"name": "version driver", "ok": False, "seen": "570.1", "wanted": "580", "cure": cure}
    ran, before = gang(camped, lambda host: [OWN, FABRIC, old]), quarantined(camped)
    with pytest.raises(PermanentError, match="every node shows the same fault, so none was replaced") as refused:
        preflight.run(context)
    assert len(ran) == 1, "another round would only bill"
    assert cure in (refused.value.cure or "") and "version driver: 570.1, wanted 580" in str(refused.value)
    assert quarantined(camped) == before and not gpu_instances(camped)


@pytest.fixture
def short_patience() -> Iterator[None]:
    os.environ["BIVOUAC_REHEARSAL_PATIENCE"] = "0.004"
    yield
    del os.environ["BIVOUAC_REHEARSAL_PATIENCE"]


def test_a_teardown_destroys_what_it_can_names_the_rest_and_can_be_entered_again(
    camped: CampaignSite, context: Context, short_patience: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teardown, "PATIENCE_S", 1.0)
    ec2 = camped.client("ec2")
    tagged = [{"Name": "tag:bivouac:campaign", "Values": [camped.names.campaign]}]
    subnet = ec2.describe_subnets(Filters=tagged)["Subnets"][0]["SubnetId"]
    interface = ec2.create_network_interface(SubnetId=subnet, Description="ELB app/theirs/0123")["NetworkInterface"]
    camped.ask("faults", add=[{"action": "DeleteRole", "code": "AccessDenied", "status": 403, "times": None}])
    with pytest.raises(PermanentError, match="is not torn down") as refused:
        teardown.run(context)
    camped.ask("faults", clear=True)
    text = str(refused.value)
    assert (
        f"network interface {interface['NetworkInterfaceId']} in {subnet}: of the load balancer app/theirs/0123" in text
    )
    assert "AccessDenied" in text and "DependencyViolation" in text and "bivouac down drilled" in text
    assert not camped.client("eks").list_clusters()["clusters"], "what could go has gone, with its bill"
    ec2.delete_network_interface(NetworkInterfaceId=interface["NetworkInterfaceId"])
    assert teardown.run(context).resources > 0
    assert teardown.run(context).resources == 0, "entered again, it finds nothing to do"
    assert certify.look_through(context.account, context.names, "", context.spec.account, ()).found == ()


def put_by_guardduty(camped: CampaignSite) -> tuple[str, str]:
    """Put into the campaign's VPC what GuardDuty's runtime monitoring does; return the ids of endpoint and group."""
    ec2, tags = camped.client("ec2"), [{"Key": "GuardDutyManaged", "Value": "true"}]
    ours = [{"Name": "tag:bivouac:campaign", "Values": [camped.names.campaign]}]
    subnet = ec2.describe_subnets(Filters=ours)["Subnets"][0]
    group = ec2.create_security_group(
        GroupName=f"GuardDutyManagedSecurityGroup-{subnet['VpcId']}", Description="Associated with VPC endpoint",
        VpcId=subnet["VpcId"], TagSpecifications=[{"ResourceType": "security-group", "Tags": tags}],
    )["GroupId"]  # fmt: skip
    endpoint = ec2.create_vpc_endpoint(
        VpcEndpointType="Interface", VpcId=subnet["VpcId"], ServiceName="com.amazonaws.us-east-1.guardduty-data",
        SubnetIds=[subnet["SubnetId"]], SecurityGroupIds=[group],
        TagSpecifications=[{"ResourceType": "vpc-endpoint", "Tags": tags}],
    )["VpcEndpoint"]["VpcEndpointId"]  # fmt: skip
    return endpoint, group


def test_what_guardduty_put_into_the_vpc_goes_with_it_and_the_certificate_names_it(
    camped: CampaignSite, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teardown, "_LOOK_AFTER_S", 1.0)
    monkeypatch.setattr(teardown, "_LOOK_EVERY_S", 0.5)
    endpoint, group = put_by_guardduty(camped)
    assert teardown.run(context).resources > 0
    ec2 = camped.client("ec2")
    assert not [one for one in ec2.describe_vpc_endpoints()["VpcEndpoints"] if one["VpcEndpointId"] == endpoint]
    certify.run(context)
    removed = (context.store.get_json(certify.CERTIFICATE) or {})["removed"]
    assert [f"VPC endpoint {endpoint}, made by GuardDuty"] == [one for one in removed if endpoint in one]
    assert [one for one in removed if group in one and one.endswith("made by GuardDuty")]


def test_an_empty_state_while_resources_exist_sweeps_what_is_tagged_and_names_the_rest(
    camped: CampaignSite, context: Context
) -> None:
    teardown.run(context)
    ec2, iam = camped.client("ec2"), camped.client("iam")
    tags = [{"ResourceType": "volume", "Tags": [{"Key": "bivouac:campaign", "Value": camped.names.campaign}]}]
    volume = ec2.create_volume(AvailabilityZone="us-east-1a", Size=1, TagSpecifications=tags)["VolumeId"]
    role = camped.names.role("node")
    iam.create_role(RoleName=role, AssumeRolePolicyDocument='{"Version":"2012-10-17","Statement":[]}')
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certify, "SETTLE_S", 0.5)
        with pytest.raises(PermanentError, match=role):
            teardown.run(context)
    assert volume not in [volume["VolumeId"] for volume in ec2.describe_volumes()["Volumes"]]
    iam.delete_role(RoleName=role)


def test_credentials_of_another_account_are_refused_before_anything_is_touched(camped: CampaignSite) -> None:
    before = camped.spec
    camped.spec = before.model_copy(update={"account": "210987654321"})
    try:
        with pytest.raises(UserError, match="another account"), camped.opened():
            raise AssertionError("opened")
    finally:
        camped.spec = before
